//! A dense decoder layer: grouped-query attention and a SwiGLU MLP, each after a norm.

use std::marker::PhantomData;
use std::rc::Rc;

use serde::de::DeserializeOwned;

use super::decoder::{DecoderConfig, DecoderLayer, Family, HeadShape, Shared, Sizes};
use crate::error::LoadError;
use crate::layers::{Attention, AttentionParts, Bias, Linear, Mlp, Residual, RmsNorm, Rope};
use crate::split::Cut;
use crate::step::Step;
use crate::weights::Weights;

/// A family whose layers are all [`DenseLayer`]s.
pub(super) trait DenseFamily {
    /// The fields of `config.json` that the family reads.
    type Config: DeserializeOwned;

    /// Returns the fields that every family has.
    fn decoder(config: &Self::Config) -> &DecoderConfig;

    /// Returns the settings of the layers.
    ///
    /// # Errors
    /// Fails if a value is out of bounds or not supported.
    fn layers(config: &Self::Config, sizes: &Sizes<'_>) -> Result<DenseLayers, LoadError>;
}

/// The settings that the layers of a dense family share.
#[derive(Debug)]
pub(super) struct DenseLayers {
    pub(super) heads: HeadShape,
    /// Inner dimension of the MLP.
    pub(super) inner: usize,
    /// Biases of queries, keys and values.
    pub(super) qkv_bias: Bias,
    /// Bias of the attention's output.
    pub(super) o_bias: Bias,
    /// Biases of the MLP.
    pub(super) mlp_bias: Bias,
    /// Whether each query and key head is normalised before its rotation.
    pub(super) has_head_norms: bool,
    /// Number of positions that a query of each layer sees, including its own; `None` if all.
    pub(super) windows: Vec<Option<usize>>,
    pub(super) rope: Rc<Rope>,
}

/// Implements [`Family`] for a [`DenseFamily`].
#[derive(Debug)]
pub(super) struct Dense<F> {
    layers: DenseLayers,
    family: PhantomData<F>,
}

impl<F: DenseFamily> Family for Dense<F> {
    type Config = F::Config;
    type Layer = DenseLayer;

    fn decoder(config: &F::Config) -> &DecoderConfig {
        F::decoder(config)
    }

    fn new(config: &F::Config, sizes: &Sizes<'_>) -> Result<Dense<F>, LoadError> {
        Ok(Dense { layers: F::layers(config, sizes)?, family: PhantomData })
    }

    fn heads(&self) -> HeadShape {
        self.layers.heads
    }

    fn load_layer(
        &self,
        w: &Weights<'_>,
        shared: &Shared<'_>,
        layer_idx: usize,
    ) -> Result<DenseLayer, LoadError> {
        DenseLayer::load(w, &self.layers, shared, layer_idx)
    }
}

/// A dense decoder layer.
#[derive(Debug)]
pub(super) struct DenseLayer {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: Mlp,
}

impl DenseLayer {
    /// Loads the layer `layer_idx`, whose tensors are at `w`.
    ///
    /// # Errors
    /// Fails if a tensor is missing or has another shape.
    fn load(
        w: &Weights<'_>,
        options: &DenseLayers,
        shared: &Shared<'_>,
        layer_idx: usize,
    ) -> Result<DenseLayer, LoadError> {
        let hidden = shared.sizes.hidden;
        let mlp_sizes = (hidden, options.inner);
        Ok(DenseLayer {
            input_layernorm: shared.norm(&w.at("input_layernorm"), hidden)?,
            self_attn: attention(&w.at("self_attn"), options, shared, layer_idx)?,
            post_attention_layernorm: shared.norm(&w.at("post_attention_layernorm"), hidden)?,
            mlp: Mlp::load(&w.at("mlp"), mlp_sizes, options.mlp_bias, shared.parallel)?,
        })
    }
}

fn attention(
    w: &Weights<'_>,
    options: &DenseLayers,
    shared: &Shared<'_>,
    layer_idx: usize,
) -> Result<Attention, LoadError> {
    let Shared { heads, parallel, .. } = shared;
    let (hidden, qkv_bias) = (shared.sizes.hidden, options.qkv_bias);
    let head_norm = |name| shared.norm(&w.at(name), heads.head_dim);
    let head_norms = if options.has_head_norms {
        Some((head_norm("q_norm")?, head_norm("k_norm")?))
    } else {
        None
    };
    let parts = AttentionParts {
        q_proj: Linear::column(&w.at("q_proj"), hidden, &heads.queries(), qkv_bias, parallel)?,
        k_proj: Linear::column(&w.at("k_proj"), hidden, &heads.keys(), qkv_bias, parallel)?,
        v_proj: Linear::column(&w.at("v_proj"), hidden, &heads.keys(), qkv_bias, parallel)?,
        o_proj: heads.o_proj(&w.at("o_proj"), hidden, options.o_bias, parallel)?,
        head_norms,
        rope: Rc::clone(&options.rope),
        heads: heads.clone(),
        window: options.windows[layer_idx],
    };
    Ok(Attention::new(parts, layer_idx, w.dtype(), parallel))
}

impl DecoderLayer for DenseLayer {
    fn forward(&self, x: Residual, step: &mut Step<'_, '_>) -> Residual {
        let h = self.self_attn.add_to(x, &self.input_layernorm, step);
        self.mlp.add_to(h, &self.post_attention_layernorm)
    }

    fn inner(&self) -> &Cut {
        &self.mlp.inner
    }
}
