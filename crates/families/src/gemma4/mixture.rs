//! The experts of Gemma 4.

use super::config::Config;
use crate::blocks::{Block, ExpertCounts, ExpertNames, ExpertSizes, FusedNames, experts, vector};
use crate::decoder::{Sizes, norm};
use jackalope_config::error::SpecError;
use jackalope_config::fields::dimension;
use jackalope_spec::{
    Activation, DenseBeside, FeedForward, RouterScores, RouterSpec, TensorCut, TensorRole,
};

pub(super) const NAMES: ExpertNames = ExpertNames {
    router: "router.proj",
    stacked: "experts.switch_glu",
    fused: &[FusedNames::ROWS],
    ..ExpertNames::QWEN
};

/// Returns routed experts beside the dense block, each with norms of its own.
pub(super) fn mixture(
    config: &Config,
    sizes: Sizes,
    prefix: &str,
    dense: Block,
) -> Result<Block, SpecError> {
    let at = |name: &str| format!("{prefix}.{name}");
    let [num_experts, per_token, inner] =
        [config.num_experts, config.top_k_experts, config.moe_intermediate_size]
            .map(Option::unwrap_or_default);
    let counts = ExpertCounts::new("num_experts", num_experts, per_token)?;
    let inner = dimension("moe_intermediate_size", inner)?;
    let router = RouterSpec { scores: RouterScores::SoftmaxOfChosen, ..RouterSpec::SOFTMAX };
    let routed = ExpertSizes {
        activation: Activation::GeluTanh,
        ..ExpertSizes::plain(counts, inner, router)
    };
    let Block { feed_forward, mut tensors } = experts(prefix, sizes.hidden, &NAMES, routed);
    let (FeedForward::Experts(mut spec), FeedForward::Mlp(mlp)) =
        (feed_forward, dense.feed_forward)
    else {
        unreachable!("experts beside a dense block")
    };
    let numbers = |name: &str, len| vector(name, TensorRole::Router, len, TensorCut::Replicated);
    let (scale, per_expert) = (at("router.scale"), at("router.per_expert_scale"));
    tensors.push(numbers(&scale, sizes.hidden));
    tensors.push(numbers(&per_expert, counts.num_experts));
    tensors.extend(dense.tensors);
    let inputs = ["pre_feedforward_layernorm", "pre_feedforward_layernorm_2"].map(at);
    let outputs = ["post_feedforward_layernorm_1", "post_feedforward_layernorm_2"].map(at);
    tensors.extend(inputs.iter().chain(&outputs).map(|module| norm(module, sizes.hidden)));
    spec.modules.router_norm = Some(scale);
    spec.modules.expert_scales = Some(per_expert);
    spec.beside = Some(DenseBeside { mlp, inputs, outputs });
    Ok(Block { feed_forward: FeedForward::Experts(spec), tensors })
}
