//! Mamba-2 (Dao and Gu 2024): layers of a state space alone.

use serde::Deserialize;
use serde_json::{Value, json};

use super::blocks::{Block, MixerBlock};
use super::decoder::{DecoderConfig, DecoderNames, Description, LayerBuilder};
use super::state_space::StateSpaceConfig;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{completed, parse};
use jackalope_spec::{BlockNorms, CacheKind, FeedForward, LayerNorms, Mixer};

pub(super) const MODULES: DecoderNames =
    DecoderNames { embedding: "backbone.embeddings", norm: "backbone.norm_f", head: "lm_head" };

/// Fields that other families with state spaces name differently.
const RENAMES: &[(&str, &str)] = &[
    ("num_heads", "mamba_n_heads"),
    ("head_dim", "mamba_d_head"),
    ("n_groups", "mamba_n_groups"),
    ("state_size", "mamba_d_state"),
    ("ssm_state_size", "mamba_d_state"),
    ("conv_kernel", "mamba_d_conv"),
    ("use_conv_bias", "mamba_conv_bias"),
    ("use_bias", "mamba_proj_bias"),
    ("layer_norm_epsilon", "rms_norm_eps"),
];

/// What the norms of the layers add to the mean square in mlx-lm, whatever the configuration states.
const LAYER_EPS: f32 = 1e-5;

#[derive(Debug, Deserialize)]
struct Config {
    #[serde(flatten)]
    space: StateSpaceConfig,
    #[serde(flatten)]
    decoder: DecoderConfig,
}

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let defaults = json!({"num_attention_heads": 1});
    let config: Config = parse(&completed(config, RENAMES, &defaults))?;
    let sizes = config.decoder.sizes()?;
    let space = config.space.layer(config.decoder.rms_norm_eps, [0.0, f64::INFINITY])?;
    let layers = (0..sizes.num_layers).map(|layer_idx| {
        let prefix = format!("backbone.layers.{layer_idx}");
        let mixer = space.at(&format!("{prefix}.mixer"), sizes.hidden);
        let input = Some(format!("{prefix}.norm"));
        let norms = LayerNorms {
            mixer: BlockNorms { input, output: None },
            feed_forward: BlockNorms::default(),
            eps: Some(LAYER_EPS),
        };
        let layer = LayerBuilder::pre_norm(prefix, sizes.hidden);
        LayerBuilder { norms, ..layer }.build(mixer, Block::none())
    });
    let layers = layers.collect();
    Ok(Description { modules: MODULES, ..config.decoder.with_layers(sizes, layers) })
}

impl MixerBlock {
    /// Returns the mixer of a layer that has none.
    pub(super) fn none() -> MixerBlock {
        MixerBlock { mixer: Mixer::None, cache: CacheKind::None, tensors: Vec::new() }
    }
}

impl Block {
    /// Returns the block of a layer that has none.
    pub(super) fn none() -> Block {
        Block { feed_forward: FeedForward::None, tensors: Vec::new() }
    }
}
