//! Nemotron-H and Nemotron 3 (NVIDIA 2025): each layer is one block, a state space, attention without
//! rotations, experts or a dense block.

mod config;
mod experts;

use serde_json::{Value, json};

use self::config::Config;
use super::blocks::{Block, ExpertNames, MixerBlock, SharedProjections, attention, experts};
use super::decoder::{Description, LayerBuilder, Sizes};
use super::mamba2::MODULES;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{completed, count, parse, setting};
use jackalope_config::names::TensorNames;
use jackalope_spec::{BlockNorms, HeadTable, LayerNorms, LayerSpec, Mixer};

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
];

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
