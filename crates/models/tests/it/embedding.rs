//! Embeddings, compared with mlx-lm's hidden states and with each other.

use jackalope_models::{Batch, Model, Pool, Span};
use jackalope_protocol::Pooling;

use crate::decoding::one_of_each_family;
use crate::golden::tolerance;
use crate::ranks::{Way, load};
use crate::recipe::Golden;
use crate::run::difference;

const POOLINGS: [Pooling; 2] = [Pooling::Mean, Pooling::Last];

/// Computes the embeddings of a prompt in chunks, one for each of [`POOLINGS`].
fn embed<'a>(model: &Model, chunks: impl Iterator<Item = &'a [u32]>) -> [Vec<f32>; 2] {
    let (mut cache, mut pools) = (model.new_cache(), POOLINGS.map(Pool::new));
    let width = model.facts().hidden_size as usize;
    for tokens in chunks {
        let rows = vec![Span { start_idx: 0, len: tokens.len() }];
        let batch = Batch { tokens, rows, logits_at: (0..tokens.len()).collect() };
        let states = model.states(&model.hidden(&batch, &mut [&mut cache]));
        let states = states.to_vec::<f32>().unwrap();
        for pool in &mut pools {
            states.chunks(width).for_each(|state| pool.add(state));
        }
    }
    pools.map(|pool| pool.vector().unwrap())
}

#[test]
fn embeddings_are_pooled_from_the_hidden_states_of_mlx_lm() {
    let golden = Golden::read();
    // MLX's operations compute the same hidden states for logits, which are compared for all cases.
    let families = one_of_each_family(&golden);
    for case in &golden.cases {
        let is_first = families.iter().any(|first| first.name == case.name);
        let num_ways = if is_first { 2 } else { 1 };
        for way in Way::BOTH.into_iter().take(num_ways) {
            let model = load(case, &way.single());
            let found = embed(&model, std::iter::once(&golden.prompt[..]));
            let expected = [&case.mean, &case.last];
            for ((pooling, found), expected) in POOLINGS.iter().zip(found).zip(expected) {
                assert_eq!(found.len(), model.facts().hidden_size as usize);
                let differs = difference(&found[..expected.len()], expected);
                let allowed = tolerance(case, way);
                let what = format!("{} ({way:?}), {pooling:?}", case.name);
                assert!(differs <= allowed, "{what}: {differs:.1e} of the largest, {allowed:.0e}");
            }
        }
    }
}

#[test]
fn an_embedding_in_chunks_has_the_bits_of_the_whole() {
    let golden = Golden::read();
    for name in ["llama-q4-bf16", "mistral-f32", "qwen2-f16", "qwen3-mxfp4-bf16"] {
        let model = load(golden.case(name), &Way::Kernels.single());
        let whole = embed(&model, std::iter::once(&golden.prompt[..]));
        for chunk_tokens in [1, 7, 16, 39] {
            let found = embed(&model, golden.prompt.chunks(chunk_tokens));
            assert!(found == whole, "{name}: chunks of {chunk_tokens}");
        }
    }
}
