//! Attention to a window and to pools.

use super::blocks::{Linear, MixerBlock, matrix, vector};
use super::decoder::norm;
use super::latent::plain;
use jackalope_spec::{
    Dimension, Mixer, PoolForm, PoolIndexerSpec, PoolSpec, PooledSpec, TensorCut, TensorRole,
    TensorSpec,
};

/// Returns attention to a window and to pools at `module`.
pub(super) fn pooled_attention(module: &str, hidden: usize, mut spec: PooledSpec) -> MixerBlock {
    spec.module = module.to_owned();
    let &PooledSpec { heads, groups, head_dim, q_rank, group_dim, .. } = &spec;
    let role = TensorRole::Mixer;
    let at = |name: &str| format!("{module}.{name}");
    let linear = |output, input| Linear { role, output, input, has_bias: false };
    let mut tensors = linear(q_rank, hidden).whole(&at("wq_a"));
    tensors.push(norm(&at("q_norm"), q_rank));
    tensors.extend(linear(heads * head_dim, q_rank).column(&at("wq_b"), Dimension::Heads));
    tensors.extend(linear(head_dim, hidden).whole(&at("wkv")));
    tensors.push(norm(&at("kv_norm"), head_dim));
    let sinks = TensorCut::whole_column(Dimension::Heads, heads);
    tensors.push(vector(&at("attn_sink"), role, heads, sinks));
    if let Some((pools, form)) = spec.own_pools() {
        tensors.extend(compressor(&at("compressor"), hidden, [pools.len, head_dim], form));
    }
    let indexer = spec.pools.as_ref().and_then(PoolSpec::indexer).into_iter();
    tensors.extend(indexer.flat_map(|it| indexer_tensors(&at("indexer"), hidden, &spec, it)));
    let shape = vec![groups, group_dim, heads / groups * head_dim];
    tensors.push(matrix(&at("wo_a"), role, shape, TensorCut::Stack(Dimension::Heads)));
    tensors.extend(linear(hidden, groups * group_dim).row(&at("wo_b"), Dimension::Heads));
    MixerBlock { cache: spec.cache(), mixer: Mixer::Pooled(Box::new(spec)), tensors }
}

/// Returns the tensors of what computes the vectors of pools of `len` positions, of `dim` elements.
fn compressor(
    module: &str,
    hidden: usize,
    [len, dim]: [usize; 2],
    form: PoolForm,
) -> Vec<TensorSpec> {
    let at = |name: &str| format!("{module}.{name}");
    let output = form.lanes() * dim;
    let linear = || Linear { role: TensorRole::Mixer, output, input: hidden, has_bias: false };
    let mut tensors = linear().whole(&at("wkv"));
    if form.has_gates(len) {
        tensors.extend(linear().whole(&at("wgate")));
    }
    if form != PoolForm::Plain {
        tensors.push(plain(&at("ape"), [len, output]));
    }
    tensors.push(norm(&at("norm"), dim));
    tensors
}

fn indexer_tensors(
    module: &str,
    hidden: usize,
    spec: &PooledSpec,
    indexer: &PoolIndexerSpec,
) -> Vec<TensorSpec> {
    let &PoolIndexerSpec { heads, head_dim, .. } = indexer;
    let at = |name: &str| format!("{module}.{name}");
    let linear = |output, input| Linear { role: TensorRole::Mixer, output, input, has_bias: false };
    let mut tensors = linear(heads * head_dim, spec.q_rank).whole(&at("wq_b"));
    tensors.extend(linear(heads, hidden).whole(&at("weights_proj")));
    match spec.own_pools() {
        Some((_, PoolForm::Plain)) => {
            tensors.extend(linear(head_dim, spec.head_dim).whole(&at("wk")));
            tensors.push(norm(&at("k_norm"), head_dim));
        }
        Some((pools, form)) => {
            tensors.extend(compressor(&at("compressor"), hidden, [pools.len, head_dim], form));
        }
        None => {}
    }
    tensors
}
