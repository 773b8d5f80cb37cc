//! The fields of Ling's configurations that concern the mixers of hybrids.

use serde::Deserialize;

use crate::bailing_moe::Config;
use crate::decoder::Sizes;
use crate::lightning::LightningLayer;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, count, dimension};
use jackalope_spec::LatentSpec;

#[derive(Debug, Deserialize)]
pub(super) struct Hybrid {
    pub(super) layer_group_size: u32,
    group_norm_size: u32,
    #[serde(default)]
    pub(super) num_nextn_predict_layers: usize,
}

#[derive(Debug, Deserialize)]
pub(super) struct Latent {
    kv_lora_rank: u32,
    q_lora_rank: Option<u32>,
    qk_nope_head_dim: u32,
    qk_rope_head_dim: u32,
    v_head_dim: u32,
    rope_interleave: Option<bool>,
}

impl Hybrid {
    /// Returns lightning attention with heads of `head_dim` elements.
    ///
    /// # Errors
    /// Fails if a value is out of bounds.
    pub(super) fn lightning(
        &self,
        config: &Config,
        sizes: Sizes,
        head_dim: usize,
    ) -> Result<LightningLayer, SpecError> {
        let groups = count("group_norm_size", self.group_norm_size)?;
        if !(sizes.heads * head_dim).is_multiple_of(groups) {
            let expected = format!("a divisor of {} elements", sizes.heads * head_dim);
            return Err(bad_value("group_norm_size", groups, expected));
        }
        let rope = &config.decoder.rope;
        Ok(LightningLayer {
            heads: sizes.heads,
            head_dim,
            has_qkv_bias: config.use_qkv_bias,
            has_qk_norms: config.use_qk_norm,
            rope: rope.spec(rope.rotated_dims(head_dim, Some(1.0))?, None)?,
            norm_groups: groups,
            norm_eps: config.decoder.rms_norm_eps,
        })
    }
}

impl Latent {
    /// Returns latent attention without modules.
    ///
    /// # Errors
    /// Fails if a value is out of bounds.
    pub(super) fn latent(&self, config: &Config, sizes: Sizes) -> Result<LatentSpec, SpecError> {
        let nope_dim = dimension("qk_nope_head_dim", self.qk_nope_head_dim)?;
        let rope_dim = dimension("qk_rope_head_dim", self.qk_rope_head_dim)?;
        let rope = &config.decoder.rope;
        let is_traditional = self.rope_interleave.unwrap_or(true);
        Ok(LatentSpec {
            heads: sizes.heads,
            nope_dim,
            rope_dim,
            value_dim: dimension("v_head_dim", self.v_head_dim)?,
            kv_rank: dimension("kv_lora_rank", self.kv_lora_rank)?,
            q_rank: self.q_lora_rank.map(|rank| dimension("q_lora_rank", rank)).transpose()?,
            has_bias: config.use_qkv_bias,
            norm_eps: config.decoder.rms_norm_eps,
            scale: rope.score_factor_of_extension() / ((nope_dim + rope_dim) as f64).sqrt(),
            latent_factor: 1.0,
            rope: Some(rope.spec(rope_dim, None)?.with_pairs(is_traditional)),
            query_growth: None,
            may_join_down: false,
            choice: None,
            gate_width: None,
            module: String::new(),
            output: "dense".to_owned(),
        })
    }
}
