//! Latent attention.

use super::blocks::{Linear, MixerBlock, matrix, vector};
use super::decoder::norm;
use jackalope_spec::{
    Dimension, IndexerSpec, LatentSpec, Mixer, Presence, TensorCut, TensorRole, TensorSpec,
};

/// How checkpoints store the matrices by which heads derive keys and values from latents.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ExpansionForm {
    /// One projection, `kv_b_proj`, with the rows of a head's keys and then of its values.
    Joint,
    /// Either that, or a tensor for keys (transposed) and one for values, `embed_q` and `unembed_out`,
    /// with a matrix for each head.
    Either,
}

/// Returns latent attention at `module`.
pub(super) fn latent_attention(
    module: &str,
    hidden: usize,
    mut spec: LatentSpec,
    form: ExpansionForm,
) -> MixerBlock {
    spec.module = module.to_owned();
    spec.output = format!("{module}.{}", spec.output);
    let LatentSpec { heads, nope_dim, rope_dim, value_dim, kv_rank, q_rank, has_bias, .. } = spec;
    let role = TensorRole::Mixer;
    let at = |name: &str| format!("{module}.{name}");
    let queries = heads * (nope_dim + rope_dim);
    let linear = |output, input, has_bias| Linear { role, output, input, has_bias };
    let (may_join, both) = (spec.may_join_down, at("qkv_a_proj"));
    let joint = format!("{both}.weight");
    let apart = |it: Vec<TensorSpec>| {
        let presence = || Presence::Without(joint.clone());
        it.into_iter()
            .map(|it| if may_join { TensorSpec { presence: presence(), ..it } } else { it })
            .collect::<Vec<_>>()
    };
    let mut tensors = match q_rank {
        None => linear(queries, hidden, false).column(&at("q_proj"), Dimension::Heads),
        Some(rank) => {
            let mut tensors = apart(linear(rank, hidden, has_bias).whole(&at("q_a_proj")));
            tensors.push(norm(&at("q_a_layernorm"), rank));
            tensors.extend(linear(queries, rank, false).column(&at("q_b_proj"), Dimension::Heads));
            tensors
        }
    };
    let kv_down = linear(kv_rank + rope_dim, hidden, has_bias).whole(&at("kv_a_proj_with_mqa"));
    tensors.extend(apart(kv_down));
    if let (true, Some(rank)) = (may_join, q_rank) {
        let both = linear(rank + kv_rank + rope_dim, hidden, has_bias).whole(&both).into_iter();
        let presence = || Presence::With(joint.clone());
        tensors.extend(both.map(|it| TensorSpec { presence: presence(), ..it }));
    }
    tensors.push(norm(&at("kv_a_layernorm"), kv_rank));
    let rows = heads * (nope_dim + value_dim);
    let cut = TensorCut::whole_column(Dimension::Heads, rows);
    let joint = matrix(&at("kv_b_proj"), role, vec![rows, kv_rank], cut);
    let name = joint.name.clone();
    match form {
        ExpansionForm::Joint => tensors.push(joint),
        ExpansionForm::Either => {
            tensors.push(TensorSpec { presence: Presence::With(name.clone()), ..joint });
            let shapes = [
                ("embed_q", vec![heads, kv_rank, nope_dim]),
                ("unembed_out", vec![heads, value_dim, kv_rank]),
            ];
            tensors.extend(shapes.map(|(module, shape)| {
                let presence = Presence::Without(name.clone());
                let cut = TensorCut::Stack(Dimension::Heads);
                TensorSpec { presence, ..matrix(&at(module), role, shape, cut) }
            }));
        }
    }
    if let (Some(indexer), Some(rank)) = (spec.indexer(), q_rank) {
        tensors.extend(indexer_tensors(&at("indexer"), hidden, rank, indexer));
    }
    if let Some(width) = spec.gate_width {
        let gate = linear(heads * width, hidden, false);
        tensors.extend(gate.column(&at("g_proj"), Dimension::Heads));
    }
    let output = linear(hidden, heads * value_dim, has_bias);
    tensors.extend(output.row(&spec.output, Dimension::Heads));
    MixerBlock { cache: spec.cache(), mixer: Mixer::Latent(Box::new(spec)), tensors }
}

/// Returns the tensors of an indexer, which reads the residual stream and the vectors of `rank` elements
/// from which queries are computed.
fn indexer_tensors(
    module: &str,
    hidden: usize,
    rank: usize,
    spec: &IndexerSpec,
) -> Vec<TensorSpec> {
    let &IndexerSpec { heads, head_dim, pool, .. } = spec;
    let at = |name: &str| format!("{module}.{name}");
    let linear = |output, input| Linear { role: TensorRole::Mixer, output, input, has_bias: false };
    let mut tensors = linear(heads * head_dim, rank).whole(&at("wq_b"));
    tensors.extend(linear(head_dim, hidden).whole(&at("wk")));
    tensors.push(norm(&at("k_norm"), head_dim));
    let bias = at("k_norm.bias");
    tensors.push(vector(&bias, TensorRole::Norm, head_dim, TensorCut::Replicated));
    tensors.extend(linear(heads, hidden).whole(&at("weights_proj")));
    if let Some(pool) = pool {
        tensors.push(plain(&at("index_kpool_compress_gate"), [head_dim, hidden]));
        tensors.push(plain(&at("index_kpool_compress_ape"), [pool, head_dim]));
    }
    tensors
}

/// Returns a matrix of this name that every rank holds and that is never quantised.
pub(super) fn plain(name: &str, shape: [usize; 2]) -> TensorSpec {
    let tensor = vector(name, TensorRole::Mixer, shape[0], TensorCut::Replicated);
    TensorSpec { shape: shape.to_vec(), ..tensor }
}
