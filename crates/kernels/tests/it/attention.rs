//! Attention against double precision, and the same query in other company.

use jackalope_kernels::{AttentionConfig, Float, KvPage, SequenceKv, Threads, attention};
use proptest::prelude::*;

use crate::support::{Floats, Random, any_float, assert_close, pools};

/// A sequence with everything computed so far; `capacity - length` positions hold NaN.
#[derive(Clone, Debug)]
struct Sequence {
    q: Floats,
    keys: Floats,
    values: Floats,
    length: usize,
    capacity: usize,
    num_queries: usize,
}

impl Sequence {
    /// The pages of keys and values, as a kernel takes them. Their size depends on the capacity, so
    /// that the same sequence elsewhere has others.
    fn pages(&self, config: &AttentionConfig) -> Vec<[Floats; 2]> {
        let page_tokens = (1 + self.capacity % 97).min(self.capacity);
        let page = |from: &Floats, first: usize| {
            let len = config.kv_heads * page_tokens * config.head_dim;
            let mut page = from.part(0, 0).resized(len);
            for head in 0..config.kv_heads {
                let held = page_tokens.min(self.capacity - first) * config.head_dim;
                for idx in 0..held {
                    let start = (head * self.capacity + first) * config.head_dim;
                    page.copy(head * page_tokens * config.head_dim + idx, from, start + idx);
                }
            }
            page
        };
        let starts = (0..self.capacity).step_by(page_tokens.max(1));
        starts.map(|first| [page(&self.keys, first), page(&self.values, first)]).collect()
    }

    /// The same sequence when only its first `length` positions were known, the last `num_queries` of them new, in
    /// buffers of another capacity.
    fn earlier(&self, config: &AttentionConfig, length: usize, num_queries: usize) -> Sequence {
        let row = config.heads * config.head_dim;
        let first = length - num_queries - (self.length - self.num_queries);
        let capacity = length + 3;
        Sequence {
            q: self.q.part(first * row, (first + num_queries) * row),
            keys: self.moved(&self.keys, config, length, capacity),
            values: self.moved(&self.values, config, length, capacity),
            length,
            capacity,
            num_queries,
        }
    }

    fn moved(
        &self,
        from: &Floats,
        config: &AttentionConfig,
        length: usize,
        capacity: usize,
    ) -> Floats {
        let mut to = Floats::unwritten(Float::F32, config.kv_heads * capacity * config.head_dim);
        let values = from.to_f64();
        for head in 0..config.kv_heads {
            for idx in 0..length * config.head_dim {
                let value = values[head * self.capacity * config.head_dim + idx];
                to.set(head * capacity * config.head_dim + idx, value as f32);
            }
        }
        let to = to.to_f64().into_iter().map(|value| value as f32);
        match from {
            Floats::F32(_) => Floats::new(Float::F32, to),
            Floats::F16(_) => Floats::new(Float::F16, to),
            Floats::Bf16(_) => Floats::new(Float::Bf16, to),
        }
    }
}

/// Everything but the contents.
#[derive(Clone, Debug)]
struct Case {
    config: AttentionConfig,
    float: Float,
    /// Positions cached and new, spare capacity.
    sequences: Vec<(usize, usize, usize)>,
    /// Factor of the keys: large ones make soft-max choose a single key.
    sharpness: f32,
    seed: u64,
}

impl Case {
    fn contents(&self) -> Vec<Sequence> {
        let mut random = Random(self.seed);
        let AttentionConfig { heads, kv_heads, head_dim, .. } = self.config;
        let sequence = |&(cached, num_queries, spare): &(usize, usize, usize)| {
            let length = cached + num_queries;
            let capacity = length + spare;
            let mut buffer = |factor| {
                let mut rows = random.floats(self.float, kv_heads * capacity * head_dim, factor);
                for head in 0..kv_heads {
                    for idx in length * head_dim..capacity * head_dim {
                        rows.set(head * capacity * head_dim + idx, f32::NAN);
                    }
                }
                rows
            };
            let (keys, values) = (buffer(self.sharpness), buffer(1.0));
            let q = random.floats(self.float, num_queries * heads * head_dim, 1.0);
            Sequence { q, keys, values, length, capacity, num_queries }
        };
        self.sequences.iter().map(sequence).collect()
    }
}

/// Lengths around the kernel's blocks of 64 keys and pieces of 64 query rows.
fn cases() -> impl Strategy<Value = Case> {
    let sequence = (
        prop_oneof![0_usize..10, 50_usize..150],
        prop_oneof![0_usize..4, 20_usize..90],
        0_usize..5,
    );
    let config = (1_usize..4, 1_usize..4, 1_usize..50, prop::option::of(1_usize..100));
    (config, any_float(), prop::collection::vec(sequence, 0..4), 0.1_f32..60.0, any::<u64>())
        .prop_map(|((kv_heads, group, head_dim, window), float, sequences, sharpness, seed)| {
            let scale = 1.0 / (head_dim as f32).sqrt();
            let config =
                AttentionConfig { heads: kv_heads * group, kv_heads, head_dim, scale, window };
            Case { config, float, sequences, sharpness, seed }
        })
}

/// All sequences in one call; the result of each.
fn attend(
    sequences: &[Sequence],
    config: &AttentionConfig,
    float: Float,
    threads: &Threads,
) -> Vec<Floats> {
    let q = sequences.iter().flat_map(|sequence| sequence.q.to_f64()).map(|value| value as f32);
    let q = Floats::new(float, q);
    let mut out = Floats::unwritten(float, q.view().len());
    let pages: Vec<_> = sequences.iter().map(|sequence| sequence.pages(config)).collect();
    let pages: Vec<Vec<KvPage<'_>>> = pages
        .iter()
        .map(|pages| {
            let views = pages.iter();
            views
                .map(|[keys, values]| KvPage { keys: keys.view(), values: values.view() })
                .collect()
        })
        .collect();
    let kvs: Vec<SequenceKv<'_>> = sequences
        .iter()
        .zip(&pages)
        .map(|(Sequence { length, num_queries, .. }, pages)| SequenceKv {
            pages,
            length: *length,
            num_queries: *num_queries,
        })
        .collect();
    attention(q.view(), &kvs, config, out.view_mut(), threads);
    let mut start = 0;
    let part = |sequence: &Sequence| {
        let end = start + sequence.q.view().len();
        let part = out.part(start, end);
        start = end;
        part
    };
    sequences.iter().map(part).collect()
}

/// One element: the soft-max mean of the visible values, and of their magnitudes.
fn reference(
    sequence: &Sequence,
    config: &AttentionConfig,
    (query, head, column): (usize, usize, usize),
) -> (f64, f64) {
    let AttentionConfig { heads, kv_heads, head_dim, scale, window } = *config;
    let position = sequence.length - sequence.num_queries + query;
    let kv_head = head / (heads / kv_heads);
    let q = sequence.q.to_f64();
    let q = &q[(query * heads + head) * head_dim..][..head_dim];
    let (keys, values) = (sequence.keys.to_f64(), sequence.values.to_f64());
    let row = |j: usize| (kv_head * sequence.capacity + j) * head_dim;
    let visible: Vec<usize> = (0..sequence.length)
        .filter(|j| *j <= position && window.is_none_or(|w| position < j + w))
        .collect();
    let scores: Vec<f64> = visible
        .iter()
        .map(|j| q.iter().zip(&keys[row(*j)..]).map(|(q, k)| q * k).sum::<f64>() * f64::from(scale))
        .collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let sum: f64 = weights.iter().sum();
    visible.iter().zip(weights).fold((0.0, 0.0), |(mean, magnitude), (j, weight)| {
        let term = weight / sum * values[row(*j) + column];
        (mean + term, magnitude + term.abs())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn attention_agrees_with_double_precision(case in cases(), num_threads in 1_usize..4) {
        let sequences = case.contents();
        let AttentionConfig { heads, head_dim, .. } = case.config;
        let mut random = Random(case.seed);
        for threads in pools(num_threads) {
            let outs = attend(&sequences, &case.config, case.float, &threads);
            for (sequence, out) in sequences.iter().zip(outs) {
                let out = out.to_f64();
                prop_assert!(out.iter().all(|value| value.is_finite()));
                for _ in 0..40.min(out.len()) {
                    let idx = random.below(out.len());
                    let place = (idx / (heads * head_dim), idx / head_dim % heads, idx % head_dim);
                    let (expected, magnitude) = reference(sequence, &case.config, place);
                    // An error of a score is an error of its weight, relative; scores are up to `sharpness` large.
                    let magnitude = magnitude * f64::from(1.0 + case.sharpness);
                    assert_close(out[idx], expected, magnitude, case.float);
                }
            }
        }
    }

    #[test]
    fn a_query_s_bits_depend_neither_on_chunks_nor_on_company_nor_on_the_threads(
        case in cases(),
        num_threads in 1_usize..5,
        cuts in prop::collection::vec(0_usize..90, 0..3),
    ) {
        let sequences = case.contents();
        let row = case.config.heads * case.config.head_dim;
        for (alone, together) in pools(1).iter().zip(&pools(num_threads)) {
            let outs = attend(&sequences, &case.config, case.float, together);
            for (sequence, out) in sequences.iter().zip(outs) {
                let cached = sequence.length - sequence.num_queries;
                let mut ends: Vec<usize> =
                    cuts.iter().map(|cut| cached + cut % (sequence.num_queries + 1)).collect();
                ends.push(sequence.length);
                ends.sort_unstable();
                let mut start = cached;
                for end in ends {
                    let chunk = sequence.earlier(&case.config, end, end - start);
                    let part = attend(&[chunk], &case.config, case.float, alone);
                    let expected = out.part((start - cached) * row, (end - cached) * row);
                    prop_assert_eq!(part[0].bits(), expected.bits(), "{}..{}", start, end);
                    start = end;
                }
            }
        }
    }

    #[test]
    fn a_strange_value_shows_only_in_queries_that_see_it(
        case in cases(),
        strange in prop::sample::select(vec![f32::NAN, f32::INFINITY]),
        place in any::<prop::sample::Index>(),
    ) {
        let mut sequences = case.contents();
        sequences.truncate(1);
        let [sequence] = &mut sequences[..] else { return Ok(()) };
        if sequence.num_queries == 0 {
            return Ok(());
        }
        let AttentionConfig { heads, kv_heads, head_dim, window, .. } = case.config;
        let threads = Threads::new(1);
        let before = attend(std::slice::from_ref(sequence), &case.config, case.float, &threads);
        let position = place.index(sequence.length);
        for head in 0..kv_heads {
            sequence.values.set((head * sequence.capacity + position) * head_dim, strange);
        }
        let after = attend(std::slice::from_ref(sequence), &case.config, case.float, &threads);
        let row = heads * head_dim;
        for query in 0..sequence.num_queries {
            let own = sequence.length - sequence.num_queries + query;
            let sees = position <= own && window.is_none_or(|window| own < position + window);
            let [before, after] = [&before, &after].map(|out| out[0].part(query * row, (query + 1) * row));
            if sees {
                prop_assert!(!after.to_f64()[0].is_finite());
            } else {
                prop_assert_eq!(before.bits(), after.bits());
            }
        }
    }
}

/// One head, one query, keys that give `scores`, values 1, 2, 3, …
fn single(scores: &[f32]) -> f64 {
    let values = (1..=scores.len()).map(|value| value as f32);
    let sequence = Sequence {
        q: Floats::new(Float::F32, [1.0]),
        keys: Floats::new(Float::F32, scores.iter().copied()),
        values: Floats::new(Float::F32, values),
        length: scores.len(),
        capacity: scores.len(),
        num_queries: 1,
    };
    let config = AttentionConfig { heads: 1, kv_heads: 1, head_dim: 1, scale: 1.0, window: None };
    attend(&[sequence], &config, Float::F32, &Threads::new(1))[0].to_f64()[0]
}

#[test]
fn scores_beyond_the_exponential_s_range_are_safe() {
    assert_eq!(single(&[1e30, -1e30, -1e30]), 1.0);
    assert_eq!(single(&[f32::NEG_INFINITY, -1e30, f32::NEG_INFINITY]), 2.0);
    assert_eq!(single(&[-3e38, -3e38]), 1.5);
}

#[test]
fn a_query_that_may_look_at_nothing_gives_zeros() {
    assert_eq!(single(&[f32::NEG_INFINITY; 70]), 0.0);
}

#[test]
fn scores_that_are_not_numbers_show_in_the_result() {
    assert!(single(&[f32::NAN; 3]).is_nan());
    assert!(single(&[0.0, f32::NAN, 1.0]).is_nan());
    assert!(single(&[0.0, f32::INFINITY]).is_nan());
    let mut late = vec![0.0; 200];
    late[3] = f32::NAN;
    assert!(single(&late).is_nan());
}
