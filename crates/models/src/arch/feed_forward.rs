//! The feed-forward block of a layer: dense, or a mixture of experts.

use jackalope_kernels as kernels;
use jackalope_spec::{
    Activation, Dimension, ExpertsSpec, FeedForward, MlpSpec, RouterScores, RouterSpec,
};

use super::parts::{LayerParts, mlp_weights};
use crate::error::LoadError;
use crate::layers::{
    BlockFrame, ExpertSizes, ExpertWeights, Experts, HasBias, Linear, Mlp, MlpBlock, MlpWeights,
    Residual, Router, RouterSettings, SharedExpert, SparseMlp,
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
    let bias = modules.selection_bias.as_ref().map(|name| root.at(name));
    let gate = root.at(&modules.router);
    let router = Router::load(&gate, bias.as_ref(), hidden, settings(spec), parallel)?;
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
    Ok(SparseMlp::new(router, experts, shared, parallel))
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
