//! ERNIE 4.5 with experts (Baidu 2025): some layers are dense, and experts have one that every token
//! passes. The bias that corrects the choice of experts is ignored, as in mlx-lm.

use serde::Deserialize;
use serde_json::Value;

use super::blocks::{ExpertCounts, ExpertNames, ExpertSizes, experts, mlp};
use super::decoder::{DecoderConfig, Description};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{count, dimension, parse};
use jackalope_config::names::TensorNames;
use jackalope_spec::{AttentionSpec, MlpSpec, RouterScores, RouterSpec};

const NAMES: ExpertNames = ExpertNames { shared: "shared_experts", ..ExpertNames::QWEN };

#[derive(Debug, Deserialize)]
struct Config {
    intermediate_size: u32,
    num_key_value_heads: u32,
    head_dim: Option<u32>,
    use_bias: bool,
    moe_num_experts: u32,
    moe_k: Option<u32>,
    moe_intermediate_size: Option<u32>,
    #[serde(default)]
    moe_num_shared_experts: u32,
    moe_layer_start_index: Option<Bound>,
    moe_layer_end_index: Option<Bound>,
    moe_layer_interval: Option<u32>,
    moe_gate_act: Option<String>,
    #[serde(flatten)]
    decoder: DecoderConfig,
}

/// A bound of the layers with experts; a list has one for each kind of input.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a number or a list of numbers")]
enum Bound {
    One(usize),
    Each(Vec<usize>),
}

impl Bound {
    fn all(&self) -> &[usize] {
        match self {
            Bound::One(bound) => std::slice::from_ref(bound),
            Bound::Each(bounds) => bounds,
        }
    }
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let config: Config = parse(config)?;
    let sizes = config.decoder.sizes()?;
    if config.use_bias {
        let (what, found) = ("use_bias", "true".to_owned());
        return Err(SpecError::Setting { what, found, supported: &["false"] });
    }
    let kv_heads = sizes.kv_heads(config.num_key_value_heads)?;
    let head_dim = sizes.head_dim_or(config.head_dim)?;
    let mut rope = config.decoder.rope.unscaled(head_dim)?;
    rope.is_traditional = true;
    let attention = AttentionSpec::plain(sizes.heads, kv_heads, head_dim, rope);
    let inner = dimension("intermediate_size", config.intermediate_size)?;
    let dense = MlpSpec::plain(inner);
    let stated = config.moe_intermediate_size.filter(|inner| *inner != 0);
    let expert_inner = dimension("moe_intermediate_size", stated.unwrap_or(inner as u32))?;
    let per_token = config.moe_k.unwrap_or(1);
    let counts = ExpertCounts::new("moe_num_experts", config.moe_num_experts, per_token)?;
    let num_shared = config.moe_num_shared_experts as usize;
    let sparse = ExpertSizes {
        shared_inner: (0 < num_shared).then_some(expert_inner * num_shared),
        ..ExpertSizes::plain(counts, expert_inner, router(&config)?)
    };
    let interval = count("moe_layer_interval", config.moe_layer_interval.unwrap_or(1))?;
    let bounds = |bound: &Option<Bound>| bound.as_ref().map(|it| it.all().to_vec());
    let first = bounds(&config.moe_layer_start_index).unwrap_or_default();
    let first = first.into_iter().min().unwrap_or(0);
    let last = bounds(&config.moe_layer_end_index).unwrap_or_default();
    let last = last.into_iter().max().unwrap_or(sizes.num_layers);
    let description = config.decoder.repeated(sizes, &attention, |layer_idx, prefix| {
        let module = format!("{prefix}.mlp");
        if (layer_idx + 1).is_multiple_of(interval) && (first..=last).contains(&layer_idx) {
            experts(&module, sizes.hidden, &NAMES, sparse)
        } else {
            mlp(&module, sizes.hidden, dense.clone())
        }
    });
    Ok(description.with_names(TensorNames::ERNIE))
}

fn router(config: &Config) -> Result<RouterSpec, SpecError> {
    let scores = match config.moe_gate_act.as_deref() {
        None | Some("softmax") => RouterScores::Softmax,
        Some("sigmoid") => RouterScores::Sigmoid,
        Some(other) => {
            let (what, found) = ("moe_gate_act", other.to_owned());
            return Err(SpecError::Setting { what, found, supported: &["softmax", "sigmoid"] });
        }
    };
    // mlx-lm divides by the sum, or by 1e-12 if that is more.
    Ok(RouterSpec { scores, normalization_eps: Some(1e-12), ..RouterSpec::SOFTMAX })
}
