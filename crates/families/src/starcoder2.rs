//! `StarCoder2` (Lozhkov et al. 2024): layer norms, biases everywhere, and a feed-forward block without
//! a gate. Sliding windows are ignored, as in mlx-lm.

use serde_json::{Value, json};

use super::decoder::Description;
use super::dense::{DenseConfig, DenseLayer, Inward, LayerModules};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{completed, parse};
use jackalope_spec::{Activation, AttentionSpec, MlpSpec, NormKind};

const MODULES: LayerModules =
    LayerModules { inward: Inward::Ungated("mlp.c_fc"), down: "mlp.c_proj", ..LayerModules::LLAMA };

/// The names under which configurations state the activation, which is `gelu` in mlx-lm.
const ACTIVATIONS: &[&str] = &["gelu", "gelu_pytorch_tanh"];

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let defaults = json!({"rope_theta": 100_000.0, "rms_norm_eps": 1e-5, "vocab_size": 49_152});
    let renames = [("norm_epsilon", "rms_norm_eps")];
    let config: DenseConfig = parse(&completed(config, &renames, &defaults))?;
    let sizes = config.decoder.sizes_with(ACTIVATIONS)?;
    let rope = config.decoder.rope.unscaled(config.head_dim(sizes)?)?;
    let attention = AttentionSpec {
        has_qkv_bias: true,
        has_output_bias: true,
        ..config.attention(sizes, rope)?
    };
    let mlp = MlpSpec { has_bias: true, activation: Activation::Gelu, ..config.mlp()? };
    let layer = DenseLayer {
        norm_kind: NormKind { is_centred: true, adds_one: false, has_bias: true },
        ..DenseLayer::new(MODULES, attention, mlp)
    };
    Ok(layer.repeated(sizes, &config.decoder))
}
