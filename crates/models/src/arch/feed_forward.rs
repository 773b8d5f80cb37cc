//! The feed-forward block of a layer: dense, or a mixture of experts.

use jackalope_kernels as kernels;
use jackalope_spec::{
    self as spec, Activation, Dimension, ExpertsSpec, FeedForward, MlpSpec, RouterScores,
    RouterSpec,
};

use super::parts::{LayerParts, mlp_weights};
use crate::error::LoadError;
use crate::layers::{
    BlockFrame, DenseBeside, ExpertSizes, ExpertWeights, Experts, HasBias, Linear, Mlp, MlpBlock,
    MlpWeights, Norm, Residual, Router, RouterSettings, RouterVectors, SharedExpert, SparseMlp,
    VectorNorm,
};
use crate::split::Cut;
use crate::weights::Weights;

/// The feed-forward block of a layer.
#[derive(Debug)]
pub(super) enum FeedForwardBlock {
    Dense(Box<Mlp>),
    Sparse(Box<SparseMlp>),
}

impl FeedForwardBlock {
    /// Loads the block of a layer.
    ///
    /// # Errors
    /// Fails if a tensor cannot be read.
    pub(super) fn load(parts: &LayerParts<'_, '_>) -> Result<FeedForwardBlock, LoadError> {
        match &parts.spec.feed_forward {
            FeedForward::Mlp(mlp) => Ok(FeedForwardBlock::Dense(Box::new(dense(mlp, parts)?))),
            FeedForward::Experts(spec) => {
                Ok(FeedForwardBlock::Sparse(Box::new(mixture(spec, parts)?)))
            }
        }
    }

    /// Adds the block to the stream.
    pub(super) fn add_to(&self, residual: Residual, frame: &BlockFrame) -> Residual {
        match self {
            FeedForwardBlock::Dense(mlp) => mlp.add_to(residual, frame),
            FeedForwardBlock::Sparse(mixture) => mixture.add_to(residual, frame),
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

fn dense(spec: &MlpSpec, parts: &LayerParts<'_, '_>) -> Result<Mlp, LoadError> {
    let block = MlpBlock {
        inner: spec.inner,
        unit: parts.layout.inner_units[&Dimension::Inner],
        has_bias: spec.has_bias,
        activation: activation(spec, parts.root)?,
        cutoff: spec.cutoff,
    };
    let weights = mlp_weights(parts.root, &spec.modules, spec.inner);
    Mlp::load(&weights, parts.model.hidden_size, block, parts.parallel)
}

fn activation(
    spec: &MlpSpec,
    root: &Weights<'_>,
) -> Result<kernels::ActivationFunction, LoadError> {
    Ok(match spec.activation {
        Activation::Silu => kernels::ActivationFunction::Silu,
        Activation::Gelu => kernels::ActivationFunction::Gelu,
        Activation::GeluTanh => kernels::ActivationFunction::GeluTanh,
        Activation::ReluSquared => kernels::ActivationFunction::ReluSquared,
        Activation::Xielu => {
            let w = root.at(&spec.modules.activation);
            let softplus = |x: f32| f64::from(x).exp().ln_1p() as f32;
            let beta = w.number("beta")?;
            kernels::ActivationFunction::Xielu {
                positive: softplus(w.number("alpha_p")?),
                negative: beta + softplus(w.number("alpha_n")?),
                beta,
                eps: w.number("eps")?,
            }
        }
    })
}

fn mixture(spec: &ExpertsSpec, parts: &LayerParts<'_, '_>) -> Result<SparseMlp, LoadError> {
    let LayerParts { root, parallel, .. } = *parts;
    let (hidden, modules) = (parts.model.hidden_size, &spec.modules);
    let unit = |dimension| parts.layout.inner_units[&dimension];
    let vectors = RouterVectors {
        selection_bias: modules.selection_bias.as_ref().map(|name| root.at(name)),
        expert_scales: modules.expert_scales.as_ref().map(|name| root.at(name)),
        norm: modules.router_norm.as_ref().map(|name| router_norm(name, parts)).transpose()?,
    };
    let gate = root.at(&modules.router);
    let router = Router::load(&gate, vectors, hidden, settings(spec), parallel)?;
    let [gate_proj, up_proj, down_proj] =
        modules.experts.each_ref().map(|module| root.experts(module, spec.num_experts));
    let weights = ExpertWeights { gate_proj, up_proj, down_proj };
    let sizes = ExpertSizes {
        num_experts: spec.num_experts,
        hidden,
        inner: spec.inner,
        unit: unit(Dimension::ExpertInner),
        activation: spec.activation,
        weighs_input: spec.router.weighs_input,
        has_bias: spec.has_bias,
    };
    let experts = Experts::load(&weights, sizes, parallel)?;
    let shared = match (&modules.shared, spec.shared_inner) {
        (Some(module), Some(inner)) => {
            let block = MlpBlock {
                inner,
                unit: unit(Dimension::SharedInner),
                has_bias: false,
                activation: kernels::ActivationFunction::Silu,
                cutoff: None,
            };
            let at = |name: &str| root.at(module).at(name);
            let (gate_proj, up_proj) = (Some(at("gate_proj")), at("up_proj"));
            let weights = MlpWeights { gate_proj, up_proj, down_proj: at("down_proj") };
            let mlp = Mlp::load(&weights, hidden, block, parallel)?;
            let one = Cut::of_all_ranks(1);
            let gate = modules
                .shared_gate
                .as_ref()
                .map(|module| Linear::column(&root.at(module), hidden, &one, HasBias::No));
            Some(SharedExpert { mlp, gate: gate.transpose()? })
        }
        _ => None,
    };
    let beside = spec.beside.as_ref().map(|beside| dense_beside(beside, parts)).transpose()?;
    Ok(SparseMlp::new(router, experts, shared, parallel).beside(beside))
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

fn settings(spec: &ExpertsSpec) -> RouterSettings {
    let RouterSpec { has_bias, scores, groups, normalization_eps, scale, .. } = spec.router;
    RouterSettings {
        num_experts: spec.num_experts,
        num_chosen: spec.experts_per_token,
        has_bias,
        scores: match scores {
            RouterScores::Softmax => kernels::Scores::Softmax,
            RouterScores::SoftmaxOfChosen => kernels::Scores::SoftmaxOfChosen,
            RouterScores::Sigmoid => kernels::Scores::Sigmoid,
            RouterScores::SigmoidOfChosen => kernels::Scores::SigmoidOfChosen,
            RouterScores::SparseMixer { jitter } => kernels::Scores::SparseMixer { jitter },
        },
        groups: groups.map(|groups| kernels::ExpertGroups {
            count: groups.count,
            chosen: groups.chosen,
            best: groups.best,
        }),
        normalization_eps,
        scale,
    }
}
