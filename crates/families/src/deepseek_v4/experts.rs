//! The experts of DeepSeek V4.

use super::config::Config;
use crate::blocks::{Block, ExpertCounts, ExpertSizes, matrix, shared_inner};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{dimension, factor, setting};
use jackalope_spec::{
    Activation, FeedForward, RouterScores, RouterSpec, TensorCut, TensorRole, TensorSpec,
};

impl Config {
    /// Returns the experts.
    pub(super) fn experts(&self) -> Result<ExpertSizes, SpecError> {
        setting("scores of experts", Some(&self.scoring_func), &["sqrtsoftplus"])?;
        setting("expert choice", Some(&self.topk_method), &["noaux_tc"])?;
        let counts = ("n_routed_experts", self.n_routed_experts, self.num_experts_per_tok);
        let counts = ExpertCounts::new(counts.0, counts.1, counts.2)?;
        let inner = dimension("moe_intermediate_size", self.moe_intermediate_size)?;
        let router = RouterSpec {
            scores: RouterScores::SqrtSoftplus,
            normalization_eps: self.norm_topk_prob.then_some(1e-20),
            scale: factor("routed_scaling_factor", self.routed_scaling_factor)?,
            ..RouterSpec::SOFTMAX
        };
        let activation = match self.swiglu_limit {
            limit if 0.0 < limit => Activation::limited_silu(limit),
            _ => Activation::Silu,
        };
        Ok(ExpertSizes {
            shared_inner: shared_inner(inner, self.n_shared_experts)?,
            activation,
            shared_activation: Some(activation),
            ..ExpertSizes::plain(counts, inner, router)
        })
    }
}

/// Returns a block of experts whose router is never quantised.
pub(super) fn with_plain_router(mut block: Block) -> Block {
    let routers = block.tensors.iter_mut().filter(|it| it.role == TensorRole::Router);
    routers.for_each(|it| it.is_quantizable = false);
    block
}

/// Adds to a block of experts the table `name` of the experts of each token.
pub(super) fn with_token_experts(mut block: Block, vocab: usize, name: String) -> Block {
    let FeedForward::Experts(experts) = &mut block.feed_forward else {
        panic!("a block of experts")
    };
    let shape = vec![vocab, experts.experts_per_token];
    let table = matrix("", TensorRole::RouterTable, shape, TensorCut::Replicated);
    block.tensors.push(TensorSpec { name: name.clone(), is_quantizable: false, ..table });
    experts.modules.token_experts = Some(name);
    block
}
