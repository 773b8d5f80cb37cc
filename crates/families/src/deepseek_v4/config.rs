//! The fields of DeepSeek V4's configurations, and what they say of attention and streams.

use serde::Deserialize;

use crate::decoder::DecoderConfig;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, dimension};
use jackalope_config::rope::{RopeScaling, RopeSpec};
use jackalope_protocol::KV_BLOCK_TOKENS;
use jackalope_spec::{PoolSpec, PooledSpec};

#[derive(Debug, Deserialize)]
pub(crate) struct Config {
    pub(crate) head_dim: u32,
    pub(super) qk_rope_head_dim: u32,
    q_lora_rank: u32,
    o_groups: u32,
    o_lora_rank: u32,
    attention_bias: bool,
    sliding_window: u32,
    pub(super) compress_ratios: Vec<u32>,
    compress_rope_theta: f64,
    pub(super) index_n_heads: u32,
    pub(crate) index_head_dim: u32,
    pub(super) index_topk: u32,
    pub(super) moe_intermediate_size: u32,
    pub(super) n_routed_experts: u32,
    pub(crate) n_shared_experts: u32,
    pub(crate) num_experts_per_tok: u32,
    pub(crate) norm_topk_prob: bool,
    pub(super) routed_scaling_factor: f32,
    pub(super) scoring_func: String,
    pub(super) topk_method: String,
    pub(super) swiglu_limit: f32,
    pub(crate) num_hash_layers: usize,
    pub(crate) hc_mult: u32,
    pub(super) hc_eps: f32,
    pub(super) hc_sinkhorn_iters: u32,
    pub(crate) num_nextn_predict_layers: usize,
    #[serde(flatten)]
    pub(crate) decoder: DecoderConfig,
}

impl Config {
    /// Returns the attention of each layer. `pools` returns the pools of the layer of a number with a ratio
    /// above 0, which is the length of its pools.
    pub(crate) fn attention(
        &self,
        pools: impl Fn(usize, u32) -> Result<PoolSpec, SpecError>,
    ) -> Result<Vec<PooledSpec>, SpecError> {
        let sizes = self.decoder.sizes()?;
        let groups = dimension("o_groups", self.o_groups)?;
        if !sizes.heads.is_multiple_of(groups) {
            let expected = format!("a divisor of num_attention_heads, {}", sizes.heads);
            return Err(bad_value("o_groups", groups, expected));
        }
        if self.attention_bias {
            return Err(bad_value("attention_bias", true, "false"));
        }
        let Some(ratios) = self.compress_ratios.get(..sizes.num_layers) else {
            let expected = format!("{} entries", sizes.num_layers);
            return Err(bad_value("compress_ratios", self.compress_ratios.len(), expected));
        };
        let rope_dim = dimension("qk_rope_head_dim", self.qk_rope_head_dim)?;
        let rope = &self.decoder.rope;
        rope.require(&["default", "yarn", "deepseek_yarn"])?;
        let mut stretched = rope.with_base(self.compress_rope_theta, None).spec(rope_dim, None)?;
        if let RopeScaling::Yarn { mscale, mscale_all_dim, .. } = &mut stretched.scaling {
            (*mscale, *mscale_all_dim) = (0.0, 0.0);
        }
        let plain = rope.unscaled_or(rope_dim, Some(10_000.0))?;
        let head_dim = self.rotated("head_dim", self.head_dim)?;
        self.rotated("index_head_dim", self.index_head_dim)?;
        let of_layer = |(layer_idx, &ratio): (usize, &u32)| -> Result<PooledSpec, SpecError> {
            let rope = if ratio == 0 { &plain } else { &stretched };
            let own = || {
                let divides = KV_BLOCK_TOKENS.is_multiple_of(ratio);
                let expected = || format!("0, or divisors of {KV_BLOCK_TOKENS}");
                if divides {
                    pools(layer_idx, ratio)
                } else {
                    Err(bad_value("compress_ratios", ratio, expected()))
                }
            };
            Ok(PooledSpec {
                heads: sizes.heads,
                groups,
                head_dim,
                q_rank: dimension("q_lora_rank", self.q_lora_rank)?,
                group_dim: dimension("o_lora_rank", self.o_lora_rank)?,
                window: dimension("sliding_window", self.sliding_window)?,
                pools: (ratio != 0).then(own).transpose()?,
                has_query_norm: true,
                is_rounded: false,
                rope: RopeSpec { is_traditional: true, ..rope.clone() },
                norm_eps: self.decoder.rms_norm_eps,
                module: String::new(),
            })
        };
        ratios.iter().enumerate().map(of_layer).collect()
    }
}
