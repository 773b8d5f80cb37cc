//! What a layer with n-grams adds to the streams.

use super::engram::EngramConfig;
use crate::blocks::matrix;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, dimension};
use jackalope_spec::{
    Dimension, NgramHash, NgramProjections, NgramSpec, NgramTable, TensorCut, TensorRole,
    TensorSpec, TokenMapSpec,
};

impl EngramConfig {
    /// Returns what a layer adds to `num_streams` streams, with its tensors.
    pub(super) fn table(
        &self,
        module: &str,
        hash: NgramHash,
        num_rows: u32,
        [hidden, num_streams]: [usize; 2],
    ) -> Result<(NgramSpec, Vec<TensorSpec>), SpecError> {
        let part_rows = num_rows as usize;
        let num_hashed: i64 = hash.moduli.iter().sum();
        if i64::from(num_rows) < num_hashed || i32::try_from(num_rows).is_err() {
            let expected = format!("at least {num_hashed}, and less than 2^31");
            return Err(bad_value("engram_num_embeddings", num_rows, expected));
        }
        let width = dimension("engram_head_dim", self.engram_head_dim)?;
        let at = |name: &str| format!("{module}.{name}");
        let of_streams = |name: &str| {
            let shape = vec![num_streams, hidden];
            let norm = matrix("", TensorRole::Norm, shape, TensorCut::Replicated);
            TensorSpec { name: at(name), is_quantizable: false, ..norm }
        };
        let norms = ["k_weight", "q_weight"].map(of_streams);
        let rows = TensorCut::whole_column(Dimension::NgramRows, part_rows);
        let table = matrix(&at("embed"), TensorRole::PerLayerTable, vec![part_rows, width], rows);
        let shape = vec![hidden * (num_streams + 1), hash.moduli.len() * width];
        let joint = matrix(&at("wkv"), TensorRole::Mixer, shape, TensorCut::Replicated);
        let spec = NgramSpec {
            hash: NgramHash { ends_itself: true, ..hash },
            map: Some(TokenMapSpec {
                num_numbers: self.engram_compressed_vocab_size as usize,
                padding_token: self.engram_pad_token_id,
                image_token: self.image_token_id,
            }),
            table: NgramTable { module: at("embed"), parts: None, num_parts: 1, part_rows, width },
            projections: NgramProjections::Joint(joint.clone()),
            norms: norms.clone(),
            convolution: None,
        };
        Ok((spec, [&[table, joint][..], &norms].concat()))
    }
}
