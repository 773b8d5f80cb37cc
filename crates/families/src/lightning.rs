//! The tensors of lightning attention.

use super::blocks::{Linear, MixerBlock, vector};
use super::decoder::norm;
use jackalope_config::rope::RopeSpec;
use jackalope_spec::{
    CacheKind, Dimension, GroupNormSpec, HeadRows, LightningSpec, Mixer, TensorCut, TensorRole,
};

/// What the lightning attention of a model's layers has in common.
#[derive(Clone, Debug)]
pub(super) struct LightningLayer {
    pub(super) heads: usize,
    pub(super) head_dim: usize,
    pub(super) has_qkv_bias: bool,
    pub(super) has_qk_norms: bool,
    pub(super) rope: RopeSpec,
    /// Number of groups of neighbouring results that are normalised by themselves.
    pub(super) norm_groups: usize,
    pub(super) norm_eps: f32,
}

impl LightningLayer {
    /// Returns the mixer at `module`, with the names of Ling's checkpoints. The states decay by the
    /// slopes of `ALiBi` (Press et al. 2022) times `factor`.
    pub(super) fn at(&self, module: &str, hidden: usize, factor: f64) -> MixerBlock {
        let &LightningLayer { heads, head_dim, has_qkv_bias, norm_eps: eps, .. } = self;
        let (role, width) = (TensorRole::Mixer, heads * head_dim);
        let at = |name: &str| format!("{module}.{name}");
        let joint = at("query_key_value");
        let rows = |start| HeadRows {
            num_rows: 3 * width,
            start,
            ..HeadRows::whole(joint.clone(), heads, head_dim)
        };
        let norms = ["query_layernorm", "key_layernorm"].map(at);
        let spec = LightningSpec {
            heads,
            head_dim,
            projections: [rows(0), rows(width), rows(2 * width)],
            has_qkv_bias,
            qk_norms: self.has_qk_norms.then_some(norms),
            rope: self.rope.clone(),
            log_decays: slopes(heads).map(|slope| -slope as f32 * factor as f32).collect(),
            norm: GroupNormSpec {
                module: at("g_norm"),
                groups: self.norm_groups,
                eps,
                precedes_gate: true,
            },
            gates: at("g_proj"),
            output: at("dense"),
        };
        let inward = Linear { role, output: 3 * width, input: hidden, has_bias: has_qkv_bias };
        let mut tensors = inward.segments(&joint, &[(Dimension::Heads, width); 3]);
        let gates = Linear { role, output: width, input: hidden, has_bias: false };
        tensors.extend(gates.column(&spec.gates, Dimension::Heads));
        tensors.extend(spec.qk_norms.iter().flatten().map(|module| norm(module, head_dim)));
        let name = format!("{}.weight", spec.norm.module);
        let own = TensorCut::whole_column(Dimension::Heads, width);
        tensors.push(vector(&name, TensorRole::Norm, width, own));
        let output = Linear { role, output: hidden, input: width, has_bias: false };
        tensors.extend(output.row(&spec.output, Dimension::Heads));
        let cache =
            CacheKind::State { elements_per_head: head_dim * head_dim, elements_per_kv_head: 0 };
        MixerBlock { mixer: Mixer::Lightning(Box::new(spec)), cache, tensors }
    }
}

/// Returns the slope of each head: those of a power of two of heads, then every other one of twice as
/// many.
fn slopes(heads: usize) -> impl Iterator<Item = f64> {
    let power = heads.ilog2();
    let first = 1_usize << power;
    let geometric = |power: u32| {
        let ratio = 2_f64.powf(-(2_f64.powf(3.0 - f64::from(power))));
        (1..).map(move |exponent| ratio.powi(exponent))
    };
    let rest = geometric(power + 1).step_by(2).take(heads - first);
    geometric(power).take(first).chain(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_of_heads_are_those_of_the_paper() {
        assert_eq!(slopes(2).collect::<Vec<_>>(), [0.0625, 0.003_906_25]);
        let eight: Vec<f64> = (1..=8).map(|exponent| 0.5_f64.powi(exponent)).collect();
        assert_eq!(slopes(8).collect::<Vec<_>>(), eight);
        // Four heads, then the first and the third of eight.
        assert_eq!(
            slopes(6).collect::<Vec<_>>(),
            [0.25, 0.0625, 0.015_625, 0.003_906_25, 0.5, 0.125]
        );
    }
}
