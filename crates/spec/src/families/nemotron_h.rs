//! Nemotron-H and Nemotron 3 (NVIDIA 2025): each layer is one block, a state space, attention without
//! rotations, experts or a dense block.

use serde::Deserialize;
use serde_json::{Value, json};

use super::blocks::{
    Block, ExpertCounts, ExpertNames, ExpertSizes, MixerBlock, SharedProjections, attention, dense,
    experts,
};
use super::decoder::{DecoderConfig, Description, LayerBuilder, Sizes};
use super::mamba2::MODULES;
use super::state_space::{StateSpaceConfig, StateSpaceLayer};
use crate::config::{bad_value, completed, count, dimension, or_absent, parse, setting};
use crate::error::SpecError;
use crate::model::{
    Activation, AttentionSpec, ExpertActivation, HeadTable, LayerSpec, Mixer, MlpSpec,
    RouterGroups, RouterScores, RouterSpec,
};
use crate::modules::{BlockNorms, InwardModules, LayerNorms, MlpModules};
use crate::names::TensorNames;
use crate::recurrent::GroupNormSpec;
use crate::rope::RopeSpec;

const NAMES: ExpertNames = ExpertNames {
    stacked_projections: ["", "fc1", "fc2"],
    score_bias: Some("gate.e_score_correction_bias"),
    shared: "shared_experts",
    shared_projections: SharedProjections::Ungated,
    ..ExpertNames::QWEN
};

/// Fields that other families with state spaces name differently.
const RENAMES: &[(&str, &str)] = &[
    ("mamba_num_heads", "mamba_n_heads"),
    ("mamba_head_dim", "mamba_d_head"),
    ("n_groups", "mamba_n_groups"),
    ("ssm_state_size", "mamba_d_state"),
    ("conv_kernel", "mamba_d_conv"),
    ("use_conv_bias", "mamba_conv_bias"),
    ("layer_norm_epsilon", "rms_norm_eps"),
    ("layer_types", "layers_block_type"),
];

#[derive(Debug, Deserialize)]
struct Config {
    hybrid_override_pattern: Option<Pattern>,
    layers_block_type: Option<Vec<String>>,
    intermediate_size: u32,
    num_key_value_heads: u32,
    head_dim: Option<u32>,
    attention_bias: bool,
    mlp_bias: bool,
    mlp_hidden_act: Option<String>,
    moe_intermediate_size: Option<u32>,
    moe_shared_expert_intermediate_size: Option<u32>,
    moe_latent_size: Option<u32>,
    n_routed_experts: Option<u32>,
    n_shared_experts: Option<u32>,
    num_experts_per_tok: Option<u32>,
    norm_topk_prob: Option<bool>,
    routed_scaling_factor: Option<f32>,
    n_group: Option<u32>,
    topk_group: Option<u32>,
    #[serde(flatten)]
    space: StateSpaceConfig,
    #[serde(flatten)]
    decoder: DecoderConfig,
}

/// The letters of the layers, in one string or one by one.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Pattern {
    Text(String),
    Letters(Vec<String>),
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    // The number of layers is that of the pattern, whatever the configuration states.
    let defaults = json!({"num_hidden_layers": 1});
    let config: Config = parse(&completed(config, RENAMES, &defaults))?;
    let sizes = config.decoder.sizes_with(&["silu", "swish", "relu2"])?;
    setting("activation", config.mlp_hidden_act.as_deref(), &["relu2"])?;
    let letters = config.letters()?;
    let sizes =
        Sizes { num_layers: count("hybrid_override_pattern", letters.len() as u32)?, ..sizes };
    let space = config.space()?;
    let gqa = config.attention(sizes)?;
    let has_experts = letters.iter().any(|letter| letter == "E");
    let sparse = has_experts.then(|| config.experts()).transpose()?;
    let layers = letters.iter().enumerate().map(|(layer_idx, letter)| {
        let prefix = format!("backbone.layers.{layer_idx}");
        let (module, hidden) = (format!("{prefix}.mixer"), sizes.hidden);
        let (mixer, block) = match (letter.as_str(), sparse) {
            ("M", _) => (space.at(&module, hidden), Block::none()),
            ("*", _) => (attention(&module, hidden, gqa.clone()), Block::none()),
            ("-", _) => (MixerBlock::none(), config.dense(&module, hidden)?),
            ("E", Some(sparse)) => (MixerBlock::none(), experts(&module, hidden, &NAMES, sparse)),
            _ => {
                let (found, supported) = (letter.clone(), &["M", "*", "-", "E"][..]);
                return Err(SpecError::Setting { what: "layer type", found, supported });
            }
        };
        Ok(layer(prefix, hidden, mixer, block))
    });
    let layers = layers.collect::<Result<_, SpecError>>()?;
    Ok(Description {
        modules: MODULES,
        head_table: HeadTable::Own,
        ..config.decoder.with_layers(sizes, layers)
    }
    .with_names(TensorNames::DRAFTING))
}

/// Returns a layer of one block, which follows a norm.
fn layer(prefix: String, hidden: usize, mixer: MixerBlock, block: Block) -> LayerSpec {
    let own = BlockNorms { input: Some(format!("{prefix}.norm")), output: None };
    let norms = match &mixer.mixer {
        Mixer::None => LayerNorms { feed_forward: own, ..LayerNorms::default() },
        _ => LayerNorms { mixer: own, ..LayerNorms::default() },
    };
    LayerBuilder { norms, ..LayerBuilder::pre_norm(prefix, hidden) }.build(mixer, block)
}

impl Config {
    /// Returns a letter for each layer: `M`, `*`, `-` or `E`, or what else the configuration states.
    fn letters(&self) -> Result<Vec<String>, SpecError> {
        match (&self.hybrid_override_pattern, &self.layers_block_type) {
            (Some(Pattern::Text(text)), _) => Ok(text.chars().map(String::from).collect()),
            (Some(Pattern::Letters(letters)), _) => Ok(letters.clone()),
            (None, Some(types)) => Ok(types.iter().map(|kind| letter(kind)).collect()),
            (None, None) => {
                let field = "hybrid_override_pattern";
                Err(bad_value(field, "absent", "a letter for each layer"))
            }
        }
    }

    /// Returns the state spaces, in which each group of heads is normalised separately.
    fn space(&self) -> Result<StateSpaceLayer, SpecError> {
        let layer = self.space.layer(self.decoder.rms_norm_eps, [0.0, f64::INFINITY])?;
        let groups = layer.sizes.groups;
        let norm = layer.norm.map(|norm| GroupNormSpec { groups, ..norm });
        Ok(StateSpaceLayer { norm, ..layer })
    }

    fn attention(&self, sizes: Sizes) -> Result<AttentionSpec, SpecError> {
        let kv_heads = sizes.kv_heads(self.num_key_value_heads)?;
        let head_dim = sizes.head_dim_or(self.head_dim)?;
        Ok(AttentionSpec {
            has_qkv_bias: self.attention_bias,
            has_output_bias: self.attention_bias,
            ..AttentionSpec::plain(sizes.heads, kv_heads, head_dim, RopeSpec::NONE)
        })
    }

    fn dense(&self, module: &str, hidden: usize) -> Result<Block, SpecError> {
        let inner = dimension("intermediate_size", self.intermediate_size)?;
        let modules = MlpModules {
            inward: InwardModules::Ungated(format!("{module}.up_proj")),
            down: format!("{module}.down_proj"),
            activation: String::new(),
        };
        let activation = Activation::ReluSquared;
        let plain = MlpSpec::plain(inner);
        Ok(dense(hidden, MlpSpec { has_bias: self.mlp_bias, activation, modules, ..plain }))
    }

    fn experts(&self) -> Result<ExpertSizes, SpecError> {
        let required = |field: &'static str, number: Option<u32>| {
            number.ok_or_else(|| bad_value(field, or_absent(number), "a number"))
        };
        let field = "moe_intermediate_size";
        let inner = dimension(field, required(field, self.moe_intermediate_size)?)?;
        let field = "n_routed_experts";
        let number = required(field, self.n_routed_experts)?;
        let per_token = required("num_experts_per_tok", self.num_experts_per_tok)?;
        let counts = ExpertCounts::new(field, number, per_token)?;
        let shared = self.moe_shared_expert_intermediate_size.filter(|inner| *inner != 0);
        let shared = dimension(
            "moe_shared_expert_intermediate_size",
            shared.unwrap_or(self.intermediate_size),
        )?;
        let latent = self.moe_latent_size.map(|width| dimension("moe_latent_size", width));
        if latent.is_some() && self.mlp_bias {
            return Err(bad_value("mlp_bias", true, "false, with moe_latent_size"));
        }
        Ok(ExpertSizes {
            shared_inner: self.n_shared_experts.map(|_| shared),
            has_shared_bias: self.mlp_bias,
            activation: ExpertActivation::ReluSquared,
            latent: latent.transpose()?,
            ..ExpertSizes::plain(counts, inner, self.router(counts.num_experts)?)
        })
    }

    /// Returns the router: the logistic function, of groups of experts if there are several.
    fn router(&self, num_experts: usize) -> Result<RouterSpec, SpecError> {
        let num_groups = count("n_group", self.n_group.unwrap_or(1))?;
        let chosen = count("topk_group", self.topk_group.unwrap_or(1))?;
        if !num_experts.is_multiple_of(num_groups) {
            let expected = format!("a divisor of n_routed_experts, {num_experts}");
            return Err(bad_value("n_group", num_groups, expected));
        }
        let Some(scale) = self.routed_scaling_factor else {
            return Err(bad_value("routed_scaling_factor", "absent", "a number"));
        };
        let per_token = self.num_experts_per_tok.unwrap_or(1);
        let is_normalized = self.norm_topk_prob.unwrap_or(false) && 1 < per_token;
        let groups = RouterGroups { count: num_groups, chosen, best: 2 };
        Ok(RouterSpec {
            scores: RouterScores::Sigmoid,
            groups: (chosen < num_groups).then_some(groups),
            normalization_eps: is_normalized.then_some(1e-20),
            scale,
            ..RouterSpec::SOFTMAX
        })
    }
}

/// Returns the letter of a layer's type.
fn letter(kind: &str) -> String {
    let letter = match kind {
        "mamba" | "conv" | "linear_attention" => "M",
        "attention" | "full_attention" => "*",
        "mlp" => "-",
        "moe" => "E",
        other => other,
    };
    letter.to_owned()
}
