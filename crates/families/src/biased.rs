//! Families that are Llama with biases in other places: Seed-OSS, `MiMo` (whose layers for speculation
//! are not used), ERNIE 4.5 and Helium.

use serde::Deserialize;
use serde_json::{Value, json};

use super::decoder::Description;
use super::dense::{DenseConfig, DenseLayer, LayerModules};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{completed, parse};
use jackalope_config::names::TensorNames;
use jackalope_config::rope::RopeSpec;
use jackalope_spec::{AttentionSpec, MlpSpec};

/// Base of the rotations in checkpoints that do not state one.
const DEFAULT_ROPE_THETA: f64 = 10_000.0;

#[derive(Debug, Deserialize)]
struct Config {
    #[serde(default)]
    attention_out_bias: bool,
    #[serde(default)]
    use_bias: bool,
    #[serde(flatten)]
    dense: DenseConfig,
}

/// The products that have biases.
#[derive(Clone, Copy, Debug)]
struct Biases {
    qkv: bool,
    output: bool,
    mlp: bool,
}

/// Reads `seed_oss`.
pub(super) fn read_seed_oss(config: &Value) -> Result<Description, SpecError> {
    let config: Config = parse(config)?;
    let dense = &config.dense;
    let (qkv, output) = (dense.attention_bias, config.attention_out_bias);
    describe(dense, scaled(dense)?, Biases { qkv, output, mlp: dense.mlp_bias })
}

/// Reads `mimo`, in which queries, keys and values have biases. mlx-lm does not read a width of
/// heads.
pub(super) fn read_mimo(config: &Value) -> Result<Description, SpecError> {
    let config: Config = parse(&completed(config, &[], &json!({"head_dim": null})))?;
    let biases = Biases { qkv: true, output: false, mlp: false };
    let description = describe(&config.dense, scaled(&config.dense)?, biases)?;
    Ok(description.with_names(TensorNames::DRAFTING))
}

/// Reads `ernie4_5`. `rope_scaling` is ignored, as in mlx-lm.
pub(super) fn read_ernie(config: &Value) -> Result<Description, SpecError> {
    let config: Config = parse(config)?;
    let has = config.use_bias;
    let biases = Biases { qkv: has, output: has, mlp: has };
    describe(&config.dense, neighbours(&config.dense)?, biases)
}

/// Reads `helium`. `rope_scaling` and `head_dim` are ignored, as in mlx-lm.
pub(super) fn read_helium(config: &Value) -> Result<Description, SpecError> {
    let config: Config = parse(&completed(config, &[], &json!({"head_dim": null})))?;
    let dense = &config.dense;
    let biases = Biases { qkv: dense.attention_bias, output: false, mlp: dense.mlp_bias };
    describe(dense, neighbours(dense)?, biases)
}

fn scaled(config: &DenseConfig) -> Result<RopeSpec, SpecError> {
    let head_dim = config.head_dim(config.decoder.sizes()?)?;
    config.decoder.rope.spec(head_dim, Some(DEFAULT_ROPE_THETA))
}

/// Returns a rotation in which neighbouring elements are a pair.
fn neighbours(config: &DenseConfig) -> Result<RopeSpec, SpecError> {
    let head_dim = config.head_dim(config.decoder.sizes()?)?;
    Ok(RopeSpec { is_traditional: true, ..config.decoder.rope.unscaled(head_dim)? })
}

fn describe(
    config: &DenseConfig,
    rope: RopeSpec,
    biases: Biases,
) -> Result<Description, SpecError> {
    let sizes = config.decoder.sizes()?;
    let attention = AttentionSpec {
        has_qkv_bias: biases.qkv,
        has_output_bias: biases.output,
        ..config.attention(sizes, rope)?
    };
    let mlp = MlpSpec { has_bias: biases.mlp, ..config.mlp()? };
    let layer = DenseLayer::new(LayerModules::LLAMA, attention, mlp);
    Ok(layer.repeated(sizes, &config.decoder))
}
