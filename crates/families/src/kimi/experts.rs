//! The experts of Kimi Linear.

use super::config::Config;
use crate::blocks::{ExpertCounts, ExpertSizes, router_groups, shared_inner};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, dimension};
use jackalope_spec::{RouterScores, RouterSpec};

impl Config {
    /// Returns the experts; `None` if all layers are dense.
    pub(super) fn experts(&self) -> Result<Option<ExpertSizes>, SpecError> {
        if self.num_experts == 0 {
            return Ok(None);
        }
        let chosen = self.num_experts_per_token.unwrap_or(1);
        let counts = ExpertCounts::new("num_experts", self.num_experts, chosen)?;
        let inner = dimension("moe_intermediate_size", self.moe_intermediate_size)?;
        let shared_inner = shared_inner(inner, self.num_shared_experts.unwrap_or(0))?;
        let router = self.router(counts)?;
        Ok(Some(ExpertSizes { shared_inner, ..ExpertSizes::plain(counts, inner, router) }))
    }

    fn router(&self, counts: ExpertCounts) -> Result<RouterSpec, SpecError> {
        let scores = match self.moe_router_activation_func.as_deref() {
            None | Some("sigmoid") => RouterScores::Sigmoid,
            Some("softmax") => RouterScores::Softmax,
            Some(found) => {
                return Err(bad_value("moe_router_activation_func", found, "sigmoid or softmax"));
            }
        };
        let is_normalized = self.moe_renormalize.unwrap_or(true) && 1 < counts.experts_per_token;
        let (field, groups) = ("num_expert_group", self.num_expert_group);
        Ok(RouterSpec {
            scores,
            groups: router_groups(field, groups, self.topk_group, counts.num_experts)?,
            normalization_eps: is_normalized.then_some(1e-20),
            scale: self.routed_scaling_factor.unwrap_or(1.0),
            ..RouterSpec::SOFTMAX
        })
    }
}
