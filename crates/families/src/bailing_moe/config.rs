//! The fields of Ling's configurations, and what they say of a layer.

use serde::Deserialize;

use crate::blocks::router_groups;
use crate::decoder::{DecoderConfig, Sizes};
use jackalope_config::error::SpecError;
use jackalope_config::fields::dimension;
use jackalope_spec::{AttentionSpec, QkNorm, RouterGroups, RouterScores, RouterSpec};

#[derive(Debug, Deserialize)]
pub(crate) struct Config {
    pub(super) intermediate_size: u32,
    pub(super) moe_intermediate_size: u32,
    pub(crate) num_key_value_heads: u32,
    pub(super) num_experts: u32,
    pub(super) num_experts_per_tok: u32,
    pub(crate) num_shared_experts: u32,
    norm_topk_prob: bool,
    pub(super) first_k_dense_replace: usize,
    #[serde(default)]
    use_bias: bool,
    #[serde(default)]
    pub(crate) use_qkv_bias: bool,
    #[serde(default)]
    norm_head: bool,
    #[serde(default)]
    pub(crate) use_qk_norm: bool,
    rotary_dim: Option<u32>,
    pub(crate) head_dim: Option<u32>,
    #[serde(default)]
    pub(super) moe_router_enable_expert_bias: bool,
    pub(super) moe_router_enable_shared_expert: Option<bool>,
    pub(crate) moe_shared_expert_intermediate_size: Option<u32>,
    routed_scaling_factor: Option<f32>,
    score_function: Option<String>,
    n_group: Option<u32>,
    /// See [`RouterGroups::excluded`].
    #[serde(skip)]
    pub(crate) excluded_score: f32,
    /// Whether the weight of a single expert becomes one too.
    #[serde(skip)]
    pub(crate) normalizes_one: bool,
    topk_group: Option<u32>,
    #[serde(flatten)]
    pub(crate) decoder: DecoderConfig,
}

impl Config {
    /// Checks the sizes, and that nothing is set that is not computed.
    ///
    /// # Errors
    /// Fails if a size is out of bounds or a setting is not supported.
    pub(crate) fn sizes(&self) -> Result<Sizes, SpecError> {
        for (what, is_set) in [("use_bias", self.use_bias), ("norm_head", self.norm_head)] {
            if is_set {
                let found = "true".to_owned();
                return Err(SpecError::Setting { what, found, supported: &["false"] });
            }
        }
        self.decoder.sizes()
    }

    /// Returns the inner dimension of one expert that every token passes.
    pub(crate) fn shared_inner(&self) -> usize {
        let stated = self.moe_shared_expert_intermediate_size.filter(|inner| *inner != 0);
        stated.unwrap_or(self.moe_intermediate_size) as usize
    }

    /// Returns attention without modules; `head_dim` is the width of a head.
    ///
    /// # Errors
    /// Fails if a size is out of bounds.
    pub(crate) fn attention(
        &self,
        sizes: Sizes,
        head_dim: usize,
    ) -> Result<AttentionSpec, SpecError> {
        let kv_heads = sizes.kv_heads(self.num_key_value_heads)?;
        let rotated = match self.rotary_dim {
            Some(dims) => dimension("rotary_dim", dims)?,
            None => self.decoder.rope.rotated_dims(head_dim, Some(1.0))?,
        };
        let rope = self.decoder.rope.spec(rotated, None)?;
        Ok(AttentionSpec {
            has_qkv_bias: self.use_qkv_bias,
            qk_norm: self.use_qk_norm.then_some(QkNorm::PerHead),
            ..AttentionSpec::plain(sizes.heads, kv_heads, head_dim, rope)
        })
    }

    /// Returns how experts are chosen.
    ///
    /// # Errors
    /// Fails if a value is out of bounds or not supported.
    pub(crate) fn router(&self, num_experts: usize) -> Result<RouterSpec, SpecError> {
        let scores = match self.score_function.as_deref() {
            Some("sigmoid") => RouterScores::Sigmoid,
            None | Some("softmax") => RouterScores::Softmax,
            Some(other) => {
                let (what, found) = ("score_function", other.to_owned());
                return Err(SpecError::Setting { what, found, supported: &["softmax", "sigmoid"] });
            }
        };
        let chosen = self.topk_group.unwrap_or(4);
        let groups = router_groups("n_group", self.n_group, Some(chosen), num_experts)?;
        let is_normalized =
            self.norm_topk_prob && (1 < self.num_experts_per_tok || self.normalizes_one);
        Ok(RouterSpec {
            scores,
            groups: groups.map(|groups| RouterGroups { excluded: self.excluded_score, ..groups }),
            normalization_eps: is_normalized.then_some(1e-20),
            scale: self.routed_scaling_factor.unwrap_or(1.0),
            ..RouterSpec::SOFTMAX
        })
    }
}
