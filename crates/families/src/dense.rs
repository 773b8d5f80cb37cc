//! Families whose layers are all alike: attention and a dense block, under names of their own.

use serde::Deserialize;

use super::blocks::{attention_of, dense};
use super::decoder::{DecoderConfig, Description, LayerBuilder, Sizes};
use jackalope_config::error::SpecError;
use jackalope_config::fields::dimension;
use jackalope_config::rope::RopeSpec;
use jackalope_spec::{
    AttentionModules, AttentionSpec, BlockNorms, InwardModules, LayerNorms, LayerSpec, MlpModules,
    MlpSpec, NormKind, QkvModules,
};

/// The fields of `config.json` that most of these families have.
#[derive(Debug, Deserialize)]
pub(super) struct DenseConfig {
    intermediate_size: u32,
    num_key_value_heads: Option<u32>,
    head_dim: Option<u32>,
    #[serde(default)]
    pub(super) attention_bias: bool,
    #[serde(default)]
    pub(super) mlp_bias: bool,
    #[serde(flatten)]
    pub(super) decoder: DecoderConfig,
}

impl DenseConfig {
    /// Returns the width of a head.
    ///
    /// # Errors
    /// Fails if it is out of bounds.
    pub(super) fn head_dim(&self, sizes: Sizes) -> Result<usize, SpecError> {
        sizes.head_dim_or(self.head_dim)
    }

    /// Returns attention whose products all have biases or none.
    ///
    /// # Errors
    /// Fails if a number of heads is invalid.
    pub(super) fn attention(
        &self,
        sizes: Sizes,
        rope: RopeSpec,
    ) -> Result<AttentionSpec, SpecError> {
        let kv_heads = sizes.kv_heads_or_all(self.num_key_value_heads)?;
        Ok(AttentionSpec {
            has_qkv_bias: self.attention_bias,
            has_output_bias: self.attention_bias,
            ..AttentionSpec::plain(sizes.heads, kv_heads, self.head_dim(sizes)?, rope)
        })
    }

    /// Returns the dense block.
    ///
    /// # Errors
    /// Fails if the inner dimension is out of bounds.
    pub(super) fn mlp(&self) -> Result<MlpSpec, SpecError> {
        let inner = dimension("intermediate_size", self.intermediate_size)?;
        Ok(MlpSpec { has_bias: self.mlp_bias, ..MlpSpec::plain(inner) })
    }
}

/// The modules of a layer, below its prefix.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerModules {
    /// The part of the prefix before the layer's number.
    pub(super) layers: &'static str,
    pub(super) qkv: Qkv,
    pub(super) output: &'static str,
    pub(super) qk_norms: [&'static str; 2],
    pub(super) inward: Inward,
    pub(super) down: &'static str,
    /// Parameters of the activation.
    pub(super) activation: &'static str,
    /// Norms of the mixer's input and output, then of the feed-forward block's.
    pub(super) norms: [Option<&'static str>; 4],
}

/// See [`QkvModules`].
#[derive(Clone, Copy, Debug)]
pub(super) enum Qkv {
    Apart([&'static str; 3]),
    Stacked(&'static str),
    Grouped(&'static str),
}

/// See [`InwardModules`].
#[derive(Clone, Copy, Debug)]
pub(super) enum Inward {
    Apart([&'static str; 2]),
    Stacked(&'static str),
    Ungated(&'static str),
}

impl LayerModules {
    /// The modules of Llama's checkpoints.
    pub(super) const LLAMA: LayerModules = LayerModules {
        layers: "model.layers",
        qkv: Qkv::Apart(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
        output: "self_attn.o_proj",
        qk_norms: ["self_attn.q_norm", "self_attn.k_norm"],
        inward: Inward::Apart(["mlp.gate_proj", "mlp.up_proj"]),
        down: "mlp.down_proj",
        activation: "mlp.act_fn",
        norms: [Some("input_layernorm"), None, Some("post_attention_layernorm"), None],
    };
}

/// What a layer consists of.
#[derive(Clone, Debug)]
pub(super) struct DenseLayer {
    pub(super) modules: LayerModules,
    pub(super) attention: AttentionSpec,
    pub(super) mlp: MlpSpec,
    pub(super) norm_kind: NormKind,
    pub(super) is_parallel: bool,
    pub(super) residual_factor: f32,
}

impl DenseLayer {
    /// Creates a layer whose blocks follow one another.
    pub(super) fn new(modules: LayerModules, attention: AttentionSpec, mlp: MlpSpec) -> DenseLayer {
        let norm_kind = NormKind::default();
        DenseLayer { modules, attention, mlp, norm_kind, is_parallel: false, residual_factor: 1.0 }
    }

    /// Returns the layer of this number.
    pub(super) fn at(self, layer_idx: usize, hidden: usize) -> LayerSpec {
        let DenseLayer { modules, attention, mlp, norm_kind, is_parallel, residual_factor } = self;
        let prefix = format!("{}.{layer_idx}", modules.layers);
        let at = |name: &str| format!("{prefix}.{name}");
        let [mixer_input, mixer_output, input, output] = modules.norms.map(|name| name.map(&at));
        let norms = LayerNorms {
            mixer: BlockNorms { input: mixer_input, output: mixer_output },
            feed_forward: BlockNorms { input, output },
            eps: None,
        };
        let qkv = match modules.qkv {
            Qkv::Apart(names) => QkvModules::Apart(names.map(&at)),
            Qkv::Stacked(name) => QkvModules::Stacked(at(name)),
            Qkv::Grouped(name) => QkvModules::Grouped(at(name)),
        };
        let inward = match modules.inward {
            Inward::Apart(names) => InwardModules::Apart(names.map(&at)),
            Inward::Stacked(name) => InwardModules::Stacked(at(name)),
            Inward::Ungated(name) => InwardModules::Ungated(at(name)),
        };
        let block = modules.output.rsplit_once('.').map_or("", |(block, _)| block);
        let attention_modules = AttentionModules {
            block: at(block),
            qkv,
            output: at(modules.output),
            qk_norms: modules.qk_norms.map(&at),
        };
        let (down, activation) = (at(modules.down), at(modules.activation));
        let mlp = MlpSpec { modules: MlpModules { inward, down, activation }, ..mlp };
        let builder =
            LayerBuilder { prefix, hidden, norm_kind, norms, is_parallel, residual_factor };
        let attention = AttentionSpec { modules: attention_modules, ..attention };
        builder.build(attention_of(hidden, attention), dense(hidden, mlp))
    }

    /// Returns a decoder of such layers.
    pub(super) fn repeated(self, sizes: Sizes, decoder: &DecoderConfig) -> Description {
        let norm_kind = self.norm_kind;
        let layers = (0..sizes.num_layers).map(|idx| self.clone().at(idx, sizes.hidden));
        Description { norm_kind, ..decoder.with_layers(sizes, layers.collect()) }
    }
}
