//! The experts of Nemotron-H.

use super::config::Config;
use crate::blocks::{ExpertCounts, ExpertSizes, router_groups};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, dimension, or_absent};
use jackalope_spec::{Activation, RouterScores, RouterSpec};

impl Config {
    /// Returns the experts.
    ///
    /// # Errors
    /// Fails if a value is absent or out of bounds.
    pub(super) fn experts(&self) -> Result<ExpertSizes, SpecError> {
        let required = |field: &'static str, number: Option<u32>| {
            number.ok_or_else(|| bad_value(field, or_absent(number), "a number"))
        };
        let field = "moe_intermediate_size";
        let inner = dimension(field, required(field, self.moe_intermediate_size)?)?;
        let field = "n_routed_experts";
        let number = required(field, self.n_routed_experts)?;
        let per_token = required("num_experts_per_tok", self.num_experts_per_tok)?;
        let counts = ExpertCounts::new(field, number, per_token)?;
        let shared = self.moe_shared_expert_intermediate_size.filter(|inner| *inner != 0);
        let shared = dimension(
            "moe_shared_expert_intermediate_size",
            shared.unwrap_or(self.intermediate_size),
        )?;
        let latent = self.moe_latent_size.map(|width| dimension("moe_latent_size", width));
        if latent.is_some() && self.mlp_bias {
            return Err(bad_value("mlp_bias", true, "false, with moe_latent_size"));
        }
        Ok(ExpertSizes {
            shared_inner: self.n_shared_experts.map(|_| shared),
            has_shared_bias: self.mlp_bias,
            activation: Activation::ReluSquared,
            latent: latent.transpose()?,
            ..ExpertSizes::plain(counts, inner, self.router(counts.num_experts)?)
        })
    }

    /// Returns the router: the logistic function, of groups of experts if there are several.
    fn router(&self, num_experts: usize) -> Result<RouterSpec, SpecError> {
        let Some(scale) = self.routed_scaling_factor else {
            return Err(bad_value("routed_scaling_factor", "absent", "a number"));
        };
        let per_token = self.num_experts_per_tok.unwrap_or(1);
        let is_normalized = self.norm_topk_prob.unwrap_or(false) && 1 < per_token;
        Ok(RouterSpec {
            scores: RouterScores::Sigmoid,
            groups: router_groups("n_group", self.n_group, self.topk_group, num_experts)?,
            normalization_eps: is_normalized.then_some(1e-20),
            scale,
            ..RouterSpec::SOFTMAX
        })
    }
}
