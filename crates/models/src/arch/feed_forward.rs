//! The feed-forward block of a layer: dense, or a mixture of experts.

use jackalope_kernels::{self as kernels, ActivationFunction};
use jackalope_spec::{
    self as spec, Dimension, ExpertLatent, ExpertsSpec, FeedForward, MlpSpec, RouterScores,
    RouterSpec,
};

use super::parts::{LayerParts, mlp_weights};
use crate::layers::{
    BlockActivation, BlockFrame, DenseBeside, ExpertSizes, ExpertWeights, Experts, HasBias, Latent,
    Linear, Mlp, MlpBlock, Norm, Residual, Router, RouterSettings, RouterVectors, RowInput,
    SharedExpert, SparseMlp, TokenExperts, TokenRows, VectorNorm,
};
use crate::split::Cut;
use jackalope_weights::LoadError;
use jackalope_weights::Weights;

/// The feed-forward block of a layer.
#[derive(Debug)]
pub(super) enum FeedForwardBlock {
    Dense(Box<Mlp>),
    Sparse(Box<SparseMlp>),
}

impl FeedForwardBlock {
    /// Loads the block of a layer, if it has one.
    ///
    /// # Errors
    /// Fails if a tensor cannot be read.
    pub(super) fn load(parts: &LayerParts<'_, '_>) -> Result<Option<FeedForwardBlock>, LoadError> {
        Ok(match &parts.spec.feed_forward {
            FeedForward::Mlp(mlp) => Some(FeedForwardBlock::Dense(Box::new(dense(mlp, parts)?))),
            FeedForward::Experts(spec) => {
                Some(FeedForwardBlock::Sparse(Box::new(mixture(spec, parts)?)))
            }
            FeedForward::None => None,
        })
    }

    /// Adds the block to the stream.
    pub(super) fn add_to(
        &self,
        residual: Residual,
        frame: &BlockFrame,
        tokens: Option<&TokenRows>,
    ) -> Residual {
        match self {
            FeedForwardBlock::Dense(mlp) => mlp.add_to(residual, frame),
            FeedForwardBlock::Sparse(mixture) => mixture.add_to(residual, frame, tokens),
        }
    }

    /// Returns this rank's part of the inner dimension, of each expert if there are several.
    pub(super) fn inner(&self) -> &Cut {
        match self {
            FeedForwardBlock::Dense(mlp) => &mlp.inner,
            FeedForwardBlock::Sparse(mixture) => mixture.inner(),
        }
    }
}

pub(super) fn dense(spec: &MlpSpec, parts: &LayerParts<'_, '_>) -> Result<Mlp, LoadError> {
    mlp(spec, parts.layout.inner_units[&Dimension::Inner], parts)
}

/// Loads a block that every token passes, with `unit` inner elements in an indivisible unit.
fn mlp(spec: &MlpSpec, unit: usize, parts: &LayerParts<'_, '_>) -> Result<Mlp, LoadError> {
    let block = MlpBlock {
        inner: spec.inner,
        unit,
        has_bias: spec.has_bias,
        activation: activation(spec.activation, &parts.root.at(&spec.modules.activation))?,
        cutoff: spec.cutoff,
    };
    let weights = mlp_weights(parts.root, &spec.modules, spec.inner);
    Mlp::load(&weights, parts.model.hidden_size, block, parts.parallel)
}

/// Loads an activation, whose parameters are below `w` if it has any.
fn activation(activation: spec::Activation, w: &Weights<'_>) -> Result<BlockActivation, LoadError> {
    Ok(BlockActivation::Function(match activation {
        spec::Activation::ClampedSilu { alpha, limit } => {
            return Ok(BlockActivation::ClampedSilu { alpha, limit });
        }
        spec::Activation::Silu => ActivationFunction::Silu,
        spec::Activation::BoundedSilu { bound, limit } => {
            ActivationFunction::BoundedSilu { bound, limit }
        }
        spec::Activation::Situ { beta, cap } => ActivationFunction::Situ { beta, cap },
        spec::Activation::Gelu => ActivationFunction::Gelu,
        spec::Activation::GeluTanh => ActivationFunction::GeluTanh,
        spec::Activation::ReluSquared => ActivationFunction::ReluSquared,
        spec::Activation::Xielu => {
            let softplus = |x: f32| f64::from(x).exp().ln_1p() as f32;
            let beta = w.number("beta")?;
            ActivationFunction::Xielu {
                positive: softplus(w.number("alpha_p")?),
                negative: beta + softplus(w.number("alpha_n")?),
                beta,
                eps: w.number("eps")?,
            }
        }
    }))
}

pub(super) fn mixture(
    spec: &ExpertsSpec,
    parts: &LayerParts<'_, '_>,
) -> Result<SparseMlp, LoadError> {
    let LayerParts { root, parallel, .. } = *parts;
    let (hidden, modules) = (parts.model.hidden_size, &spec.modules);
    let unit = |dimension| parts.layout.inner_units[&dimension];
    let vectors = RouterVectors {
        selection_bias: modules.selection_bias.as_ref().map(|name| root.at(name)),
        expert_scales: modules.expert_scales.as_ref().map(|name| root.at(name)),
        token_experts: modules
            .token_experts
            .as_ref()
            .map(|name| TokenExperts { w: root.at(name), vocab: parts.model.vocab_size }),
        norm: modules.router_norm.as_ref().map(|name| router_norm(name, parts)).transpose()?,
    };
    let gate = root.at(&modules.router);
    let router = Router::load(&gate, vectors, hidden, settings(spec), parallel)?;
    let [gate_proj, up_proj, down_proj] =
        modules.experts.each_ref().map(|module| root.experts(module, spec.num_experts));
    let gate_proj = spec.activation.has_gate().then_some(gate_proj);
    let weights = ExpertWeights { gate_proj, up_proj, down_proj };
    let latent = spec.latent.as_ref().map(|latent| load_latent(latent, parts)).transpose()?;
    let sizes = ExpertSizes {
        num_experts: spec.num_experts,
        hidden: spec.latent.as_ref().map_or(hidden, |latent| latent.width),
        inner: spec.inner,
        unit: unit(Dimension::ExpertInner),
        activation: activation(spec.activation, root)?,
        weighs_input: spec.router.weighs_input,
        has_bias: spec.has_bias,
    };
    let experts = Experts::load(&weights, sizes, parallel)?;
    let shared = spec.shared.as_ref().map(|shared| {
        let mlp = mlp(shared, unit(Dimension::SharedInner), parts)?;
        let one = Cut::of_all_ranks(1);
        let gate = modules.shared_gate.as_ref();
        let gate = gate.map(|module| Linear::column(&root.at(module), hidden, &one, HasBias::No));
        Ok::<_, LoadError>(SharedExpert { mlp, gate: gate.transpose()? })
    });
    let shared = shared.transpose()?;
    let beside = spec.beside.as_ref().map(|beside| dense_beside(beside, parts)).transpose()?;
    Ok(SparseMlp::new(router, experts, shared, latent, parallel).beside(beside))
}

/// Loads the norm of what a router reads, whose weights are divided by the root of their number.
fn router_norm(name: &str, parts: &LayerParts<'_, '_>) -> Result<Norm, LoadError> {
    let (hidden, w) = (parts.model.hidden_size, parts.root.at(name));
    let factor = (hidden as f64).sqrt().recip() as f32;
    Norm::of_vector(
        &w,
        VectorNorm { width: hidden, factor },
        parts.vector_settings(),
        parts.parallel,
    )
}

fn dense_beside(
    spec: &spec::DenseBeside,
    parts: &LayerParts<'_, '_>,
) -> Result<DenseBeside, LoadError> {
    let norms = |modules: &[String; 2]| -> Result<[Norm; 2], LoadError> {
        let load = |name: &String| parts.norm(&parts.root.at(name), parts.model.hidden_size);
        Ok([load(&modules[0])?, load(&modules[1])?])
    };
    Ok(DenseBeside {
        mlp: dense(&spec.mlp, parts)?,
        inputs: norms(&spec.inputs)?,
        outputs: norms(&spec.outputs)?,
    })
}

/// Loads the projections between the stream and what routed experts read and write.
fn load_latent(spec: &ExpertLatent, parts: &LayerParts<'_, '_>) -> Result<Latent, LoadError> {
    let &ExpertLatent { width, ref down, ref norm, ref up } = spec;
    let (root, hidden) = (parts.root, parts.model.hidden_size);
    let whole = Cut::of_all_ranks(width);
    let input = RowInput { cut: &whole, terms: parts.parallel.terms(width) };
    Ok(Latent {
        down: Linear::column(&root.at(down), hidden, &whole, HasBias::No)?,
        norm: norm.as_ref().map(|name| parts.norm(&root.at(name), width)).transpose()?,
        up: Linear::row(&root.at(up), input, hidden, HasBias::No)?,
        width,
    })
}

fn settings(spec: &ExpertsSpec) -> RouterSettings {
    let RouterSpec { has_bias, scores, groups, logit_cap, normalization_eps, scale, .. } =
        spec.router;
    RouterSettings {
        num_experts: spec.num_experts,
        num_identity: spec.num_identity,
        num_chosen: spec.experts_per_token,
        has_bias,
        scores: match scores {
            RouterScores::Softmax => kernels::Scores::Softmax,
            RouterScores::SoftmaxOfChosen => kernels::Scores::SoftmaxOfChosen,
            RouterScores::Sigmoid => kernels::Scores::Sigmoid,
            RouterScores::SqrtSoftplus => kernels::Scores::SqrtSoftplus,
            RouterScores::SigmoidOfChosen => kernels::Scores::SigmoidOfChosen,
            RouterScores::SparseMixer { jitter } => kernels::Scores::SparseMixer { jitter },
        },
        groups: groups.map(|groups| kernels::ExpertGroups {
            count: groups.count,
            chosen: groups.chosen,
            best: groups.best,
            excluded: groups.excluded,
        }),
        logit_cap,
        normalization_eps,
        scale,
    }
}
