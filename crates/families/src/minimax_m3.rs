//! `MiniMax` M3 (MiniMax 2026): attention to blocks of positions that an indexer chooses for each key-value
//! head; dense layers first, then experts with one that every token passes.

mod choice;
mod config;
mod fields;

use serde_json::Value;

use self::config::Config;
use self::fields::{check, completed_text};
use super::blocks::{ExpertNames, experts, mlp};
use super::decoder::{Description, LayerBuilder};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{dimension, parse};
use jackalope_config::names::TensorNames;
use jackalope_spec::{Activation, AttentionSpec, MlpSpec, NormKind, PackedExperts};

const NAMES: ExpertNames = ExpertNames {
    projections: ["w1", "w3", "w2"],
    score_bias: Some("e_score_correction_bias"),
    shared: "shared_experts",
    ..ExpertNames::QWEN
};

/// As mlx-vlm stores experts of one size.
const PACKED: PackedExperts = PackedExperts {
    num_experts: 0,
    gate_up: "switch_mlp.gate_up_proj",
    down: "switch_mlp.down_proj",
    each: NAMES.each,
    projections: NAMES.projections,
    shared: NAMES.shared,
    shared_projections: ["gate_proj", "up_proj", "down_proj"],
};

/// Reads the language model of `minimax_m3_vl`, and `minimax_m3`.
pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let text = completed_text(config);
    let config: Config = parse(&text)?;
    check(&text)?;
    config.decoder.rope.require(&["default"])?;
    let sizes = config.decoder.sizes_with(&["swigluoai"])?;
    let norm_kind = NormKind { adds_one: config.use_gemma_norm, ..NormKind::default() };
    let attention = config.attention(sizes)?;
    let blocks = config.block_choice(&attention)?;
    let [alpha, limit] = config.activation()?;
    let activation = Activation::ClampedSilu { alpha, limit };
    let inner = dimension("dense_intermediate_size", config.dense_intermediate_size)?;
    let dense = MlpSpec { activation, ..MlpSpec::plain(inner) };
    let sparse = config.experts(activation)?;
    let (are_sparse, choose) =
        (config.are_sparse(sizes.num_layers)?, config.choose(sizes.num_layers)?);
    let layers = (0..sizes.num_layers).map(|layer_idx| {
        let prefix = format!("model.layers.{layer_idx}");
        let block = if are_sparse[layer_idx] {
            experts(&format!("{prefix}.block_sparse_moe"), sizes.hidden, &NAMES, sparse)
        } else {
            mlp(&format!("{prefix}.mlp"), sizes.hidden, dense.clone())
        };
        let blocks = blocks.clone().filter(|_| choose[layer_idx]);
        let spec = AttentionSpec { blocks, ..attention.clone() };
        let mixer = super::blocks::attention(&format!("{prefix}.self_attn"), sizes.hidden, spec);
        let builder = LayerBuilder::pre_norm(prefix, sizes.hidden);
        LayerBuilder { norm_kind, ..builder }.build(mixer, block)
    });
    let description = config.decoder.with_layers(sizes, layers.collect());
    let packed = Some(PackedExperts { num_experts: sparse.num_experts, ..PACKED });
    Ok(Description { norm_kind, packed, ..description }.with_names(TensorNames::MINIMAX))
}
