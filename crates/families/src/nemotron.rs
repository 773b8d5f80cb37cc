//! Nemotron-4 and Minitron (Parmar et al. 2024): layer norms whose factor is one more than the
//! weight, and a feed-forward block of the squared positive part.

use serde_json::{Value, json};

use super::decoder::Description;
use super::dense::{DenseConfig, DenseLayer, Inward, LayerModules};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{completed, parse};
use jackalope_spec::{Activation, MlpSpec, NormKind};

const MODULES: LayerModules =
    LayerModules { inward: Inward::Ungated("mlp.up_proj"), ..LayerModules::LLAMA };

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let renames = [("norm_eps", "rms_norm_eps")];
    let defaults = json!({"rope_theta": 10_000.0});
    let config: DenseConfig = parse(&completed(config, &renames, &defaults))?;
    let sizes = config.decoder.sizes_with(&["relu2"])?;
    let rope = &config.decoder.rope;
    rope.require(&["default", "linear"])?;
    let rope = rope.spec(rope.rotated_dims(config.head_dim(sizes)?, Some(0.5))?, None)?;
    // `rope_traditional` is ignored, as in mlx-lm.
    let rope = rope.with_pairs(false);
    let mlp = MlpSpec { activation: Activation::ReluSquared, ..config.mlp()? };
    let layer = DenseLayer {
        norm_kind: NormKind { is_centred: true, adds_one: true, has_bias: true },
        ..DenseLayer::new(MODULES, config.attention(sizes, rope)?, mlp)
    };
    Ok(layer.repeated(sizes, &config.decoder))
}
