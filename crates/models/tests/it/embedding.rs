//! Embeddings, compared with mlx-lm's hidden states and with each other.

use jackalope_models::{Batch, Model, Pool, Span};
use jackalope_protocol::Pooling;

use crate::golden::tolerance;
use crate::ranks::{Way, load};
use crate::recipe::Golden;
use crate::run::difference;

/// Computes the embedding of a prompt in chunks.
fn embed<'a>(model: &Model, pooling: Pooling, chunks: impl Iterator<Item = &'a [u32]>) -> Vec<f32> {
    let (mut cache, mut pool) = (model.new_cache(), Pool::new(pooling));
    let width = model.facts().hidden_size as usize;
    for tokens in chunks {
        let rows = vec![Span { start_idx: 0, len: tokens.len() }];
        let batch = Batch { tokens, rows, logits_at: (0..tokens.len()).collect() };
        let states = model.states(&model.hidden(&batch, &mut [&mut cache]));
        states.to_vec::<f32>().unwrap().chunks(width).for_each(|state| pool.add(state));
    }
    pool.vector().unwrap()
}

#[test]
fn embeddings_are_pooled_from_the_hidden_states_of_mlx_lm() {
    let golden = Golden::read();
    for case in &golden.cases {
        for way in Way::BOTH {
            let model = load(case, &way.single());
            for (pooling, expected) in [(Pooling::Mean, &case.mean), (Pooling::Last, &case.last)] {
                let found = embed(&model, pooling, std::iter::once(&golden.prompt[..]));
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
        for pooling in [Pooling::Mean, Pooling::Last] {
            let whole = embed(&model, pooling, std::iter::once(&golden.prompt[..]));
            for chunk_tokens in [1, 7, 16, 39] {
                let found = embed(&model, pooling, golden.prompt.chunks(chunk_tokens));
                assert!(found == whole, "{name}, {pooling:?}: chunks of {chunk_tokens}");
            }
        }
    }
}
