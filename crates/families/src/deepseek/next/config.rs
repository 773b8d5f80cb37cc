//! The fields of GLM-5 Next's configurations that others built like DeepSeek's do not have.

use serde::Deserialize;

use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, dimension, factor};
use jackalope_spec::{GatedDeltaSizes, LatentSpec};

#[derive(Debug, Deserialize)]
pub(super) struct Own {
    qk_rope_head_dim: u32,
    qk_nope_head_dim: u32,
    v_head_dim: u32,
    kv_lora_rank: u32,
    q_lora_rank: u32,
    num_key_value_heads: Option<u32>,
    attention_bias: bool,
    mla_use_nope: bool,
    n_group: u32,
    pub(super) swiglu_limit: f32,
    pub(super) layer_types: Option<Vec<String>>,
    pub(super) mlp_layer_types: Option<Vec<String>>,
    linear_attn_config: Option<Linear>,
    linear_head_dim: u32,
    linear_num_heads: u32,
    linear_conv_kernel_dim: u32,
    linear_lower_bound: f32,
    pub(super) hc_mult: u32,
    pub(super) hc_eps: f32,
    pub(super) hc_sinkhorn_iters: u32,
}

/// Fields that take the place of those that begin with `linear_`.
#[derive(Debug, Deserialize)]
struct Linear {
    head_dim: Option<u32>,
    num_heads: Option<u32>,
    short_conv_kernel_size: Option<u32>,
    gate_lower_bound: Option<f32>,
    safe_gate: Option<bool>,
}

impl Own {
    pub(super) fn latent(&self, heads: usize, norm_eps: f32) -> Result<LatentSpec, SpecError> {
        if self.qk_rope_head_dim != 0 {
            return Err(bad_value("qk_rope_head_dim", self.qk_rope_head_dim, "0"));
        }
        if !self.mla_use_nope {
            return Err(bad_value("mla_use_nope", false, "true"));
        }
        if let Some(found) = self.num_key_value_heads.filter(|found| *found as usize != heads) {
            let expected = format!("num_attention_heads, {heads}");
            return Err(bad_value("num_key_value_heads", found, expected));
        }
        if self.n_group != 1 {
            return Err(bad_value("n_group", self.n_group, "1"));
        }
        let nope_dim = dimension("qk_nope_head_dim", self.qk_nope_head_dim)?;
        Ok(LatentSpec {
            heads,
            nope_dim,
            rope_dim: 0,
            value_dim: dimension("v_head_dim", self.v_head_dim)?,
            kv_rank: dimension("kv_lora_rank", self.kv_lora_rank)?,
            q_rank: Some(dimension("q_lora_rank", self.q_lora_rank)?),
            has_bias: self.attention_bias,
            norm_eps,
            scale: 1.0 / (nope_dim as f64).sqrt(),
            latent_factor: 1.0,
            rope: None,
            query_growth: None,
            gate_width: None,
            may_join_down: true,
            choice: None,
            module: String::new(),
            output: "o_proj".to_owned(),
        })
    }

    /// Returns the sizes of the delta attention, and the minimum of the logarithms of its decays.
    pub(super) fn delta(&self) -> Result<(GatedDeltaSizes, f32), SpecError> {
        let own = self.linear_attn_config.as_ref();
        let or = |field: fn(&Linear) -> Option<u32>, other| own.and_then(field).unwrap_or(other);
        let heads = dimension("linear_num_heads", or(|it| it.num_heads, self.linear_num_heads))?;
        let head_dim = dimension("linear_head_dim", or(|it| it.head_dim, self.linear_head_dim))?;
        let width = or(|it| it.short_conv_kernel_size, self.linear_conv_kernel_dim);
        let sizes = GatedDeltaSizes {
            key_heads: heads,
            value_heads: heads,
            key_dim: head_dim,
            value_dim: head_dim,
            conv_width: dimension("linear_conv_kernel_dim", width)?,
        };
        if own.and_then(|it| it.safe_gate) == Some(false) {
            return Err(bad_value("linear_attn_config.safe_gate", false, "true"));
        }
        let min = own.and_then(|it| it.gate_lower_bound).unwrap_or(self.linear_lower_bound);
        Ok((sizes, -factor("-linear_lower_bound", -min)?))
    }
}
