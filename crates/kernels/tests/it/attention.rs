//! Attention against double precision, and the same query in other company.

use jackalope_kernels::{
    AttentionConfig, Float, KvPage, SequenceKv, Threads, attention, key_place,
};
use proptest::prelude::*;

use crate::support::{Floats, Random, any_float, assert_close, pools};

/// A sequence with everything computed so far; `capacity - length` positions hold NaN.
#[derive(Clone, Debug)]
struct Sequence {
    q: Floats,
    keys: Floats,
    values: Floats,
    /// Whether pages store only keys, of which values are the last elements.
    shares_values: bool,
    length: usize,
    capacity: usize,
    num_queries: usize,
}

impl Sequence {
    /// The pages of keys and values, as a kernel takes them. Their size depends on the capacity, so
    /// that the same sequence elsewhere has others.
    fn pages(&self, config: &AttentionConfig<'_>) -> Vec<[Floats; 2]> {
        let AttentionConfig { kv_heads, head_dim, value_dim, .. } = *config;
        let page_tokens = [1 + self.capacity % 97, 64, 256, 96][self.capacity % 4];
        let page = |first: usize| {
            let empty =
                |from: &Floats, width| from.part(0, 0).resized(kv_heads * page_tokens * width);
            let mut page = [empty(&self.keys, head_dim), empty(&self.values, value_dim)];
            for head in 0..kv_heads {
                for position in 0..page_tokens.min(self.capacity - first) {
                    let key = key_place(page_tokens, head_dim, head, position);
                    let row = head * self.capacity + first + position;
                    for idx in 0..head_dim {
                        let from = row * head_dim + idx;
                        page[0].copy(key.start + idx * key.step, &self.keys, from);
                    }
                    let value = (head * page_tokens + position) * value_dim;
                    for idx in 0..value_dim {
                        page[1].copy(value + idx, &self.values, row * value_dim + idx);
                    }
                }
            }
            page
        };
        (0..self.capacity).step_by(page_tokens).map(page).collect()
    }

    /// The same sequence when only its first `length` positions were known, the last `num_queries` of them new, in
    /// buffers of another capacity.
    fn earlier(&self, config: &AttentionConfig<'_>, length: usize, num_queries: usize) -> Sequence {
        let row = config.heads * config.head_dim;
        let first = length - num_queries - (self.length - self.num_queries);
        let capacity = length + 3;
        Sequence {
            q: self.q.part(first * row, (first + num_queries) * row),
            keys: self.moved(&self.keys, [config.kv_heads, config.head_dim], length, capacity),
            values: self.moved(&self.values, [config.kv_heads, config.value_dim], length, capacity),
            shares_values: self.shares_values,
            length,
            capacity,
            num_queries,
        }
    }

    fn moved(
        &self,
        from: &Floats,
        [kv_heads, width]: [usize; 2],
        length: usize,
        capacity: usize,
    ) -> Floats {
        let mut to = Floats::unwritten(Float::F32, kv_heads * capacity * width);
        let values = from.to_f64();
        for head in 0..kv_heads {
            for idx in 0..length * width {
                let value = values[head * self.capacity * width + idx];
                to.set(head * capacity * width + idx, value as f32);
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
    config: AttentionConfig<'static>,
    /// For each head, unless there are none.
    sinks: Vec<f32>,
    /// Whether values are the last elements of their keys.
    shares_values: bool,
    float: Float,
    /// Positions cached and new, spare capacity.
    sequences: Vec<(usize, usize, usize)>,
    /// Factor of the keys: large ones make soft-max choose a single key.
    sharpness: f32,
    seed: u64,
}

impl Case {
    fn config(&self) -> AttentionConfig<'_> {
        let sinks = Some(self.sinks.as_slice()).filter(|sinks| !sinks.is_empty());
        AttentionConfig { sinks, ..self.config }
    }

    fn contents(&self) -> Vec<Sequence> {
        let mut random = Random(self.seed);
        let AttentionConfig { heads, kv_heads, head_dim, value_dim, .. } = self.config;
        let shares_values = self.shares_values;
        let sequence = |&(cached, num_queries, spare): &(usize, usize, usize)| {
            let length = cached + num_queries;
            let capacity = length + spare;
            let mut buffer = |width, factor| {
                let mut rows = random.floats(self.float, kv_heads * capacity * width, factor);
                for head in 0..kv_heads {
                    for idx in length * width..capacity * width {
                        rows.set(head * capacity * width + idx, f32::NAN);
                    }
                }
                rows
            };
            let keys = buffer(head_dim, self.sharpness);
            let mut values = buffer(value_dim, 1.0);
            if shares_values {
                for idx in 0..kv_heads * capacity * value_dim {
                    let (row, column) = (idx / value_dim, idx % value_dim);
                    values.copy(idx, &keys, (row + 1) * head_dim - value_dim + column);
                }
            }
            let q = random.floats(self.float, num_queries * heads * head_dim, 1.0);
            Sequence { q, keys, values, shares_values, length, capacity, num_queries }
        };
        self.sequences.iter().map(sequence).collect()
    }
}

/// What all queries share: the configuration, a sink for each head, and whether values are parts of
/// keys.
type Kind = (AttentionConfig<'static>, Vec<f32>, bool);

/// Heads of every kind of size, with and without window, chunks, cap and sinks.
fn configs() -> impl Strategy<Value = Kind> {
    let dim = || {
        prop_oneof![
            2 => 1_usize..50,
            1 => prop::sample::select(vec![24_usize, 40, 64, 80, 96, 128, 192, 256]),
        ]
    };
    // As wide as the keys, or not, or the last elements of keys.
    let values = prop_oneof![2 => Just((None, false)), 1 => dim().prop_map(|dim| (Some(dim), false)),
        1 => dim().prop_map(|dim| (Some(dim), true))];
    let heads = (1_usize..4, prop_oneof![3 => 1_usize..4, 1 => 5_usize..10, 1 => 30_usize..70]);
    let sinks = (any::<bool>(), prop::collection::vec(-6.0_f32..6.0, 210));
    let reach = || prop::option::of(1_usize..100);
    let options = (reach(), reach(), prop::option::of(1.0_f32..50.0), sinks);
    (heads, dim(), values, options).prop_map(
        |(
            (kv_heads, group),
            head_dim,
            values,
            (window, chunk, soft_cap, (has_sinks, mut sinks)),
        )| {
            let (value_dim, shares_values) = (values.0.unwrap_or(head_dim), values.1);
            let value_dim = if shares_values { value_dim.min(head_dim) } else { value_dim };
            let heads = kv_heads * group;
            let scale = 1.0 / (head_dim as f32).sqrt();
            sinks.truncate(if has_sinks { heads } else { 0 });
            let config = AttentionConfig {
                heads,
                kv_heads,
                head_dim,
                value_dim,
                scale,
                window,
                chunk,
                soft_cap,
                sinks: None,
            };
            (config, sinks, shares_values)
        },
    )
}

/// Lengths around the kernel's blocks of 64 keys and pieces of 96 query rows.
fn cases() -> impl Strategy<Value = Case> {
    let sequence = (
        prop_oneof![0_usize..10, 50_usize..150, 180_usize..350],
        prop_oneof![0_usize..4, 20_usize..90],
        0_usize..5,
    );
    let sequences = prop::collection::vec(sequence, 0..4);
    (configs(), any_float(), sequences, 0.1_f32..60.0, any::<u64>()).prop_map(
        |((config, sinks, shares_values), float, sequences, sharpness, seed)| Case {
            config,
            sinks,
            shares_values,
            float,
            sequences,
            sharpness,
            seed,
        },
    )
}

/// Few queries with thousands of keys, around the kernel's spans of 1024.
fn long_cases() -> impl Strategy<Value = Case> {
    let sequences = (5000_usize..6200, prop_oneof![Just(1_usize), 2_usize..5, 20_usize..70]);
    let window = prop::option::of(1000_usize..3000);
    (configs(), window, any_float(), sequences, any::<u64>()).prop_map(
        |((config, sinks, shares_values), window, float, (cached, num_queries), seed)| {
            let (head_dim, value_dim) = (config.head_dim.min(32), config.value_dim.min(32));
            let chunk = config.chunk.map(|chunk| chunk * 40);
            let config = AttentionConfig { head_dim, value_dim, window, chunk, ..config };
            let sequences = vec![(cached, num_queries, 1), (70, 1, 0)];
            Case { config, sinks, shares_values, float, sequences, sharpness: 3.0, seed }
        },
    )
}

/// All sequences in one call; the result of each.
fn attend(
    sequences: &[Sequence],
    config: &AttentionConfig<'_>,
    float: Float,
    threads: &Threads,
) -> Vec<Floats> {
    let q = sequences.iter().flat_map(|sequence| sequence.q.to_f64()).map(|value| value as f32);
    let q = Floats::new(float, q);
    let num_rows = q.view().len() / config.head_dim;
    let mut out = Floats::unwritten(float, num_rows * config.value_dim);
    let pages: Vec<_> = sequences.iter().map(|sequence| sequence.pages(config)).collect();
    let views = sequences.iter().zip(&pages).map(|(sequence, pages)| {
        let pages = pages.iter();
        let views = pages.map(|[keys, values]| KvPage {
            keys: keys.view(),
            values: (!sequence.shares_values).then_some(values.view()),
        });
        views.collect()
    });
    let pages: Vec<Vec<KvPage<'_>>> = views.collect();
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
        let end = start + sequence.q.view().len() / config.head_dim * config.value_dim;
        let part = out.part(start, end);
        start = end;
        part
    };
    sequences.iter().map(part).collect()
}

/// One element: the soft-max mean of the visible values, and of their magnitudes.
fn reference(
    sequence: &Sequence,
    config: &AttentionConfig<'_>,
    (query, head, column): (usize, usize, usize),
) -> (f64, f64) {
    let &AttentionConfig {
        heads,
        kv_heads,
        head_dim,
        value_dim,
        scale,
        window,
        chunk,
        soft_cap,
        sinks,
    } = config;
    let position = sequence.length - sequence.num_queries + query;
    let kv_head = head / (heads / kv_heads);
    let q = sequence.q.to_f64();
    let q = &q[(query * heads + head) * head_dim..][..head_dim];
    let (keys, values) = (sequence.keys.to_f64(), sequence.values.to_f64());
    let row = |j: usize| (kv_head * sequence.capacity + j) * head_dim;
    let visible: Vec<usize> = (0..sequence.length)
        .filter(|j| *j <= position && window.is_none_or(|w| position < j + w))
        .filter(|j| chunk.is_none_or(|chunk| j / chunk == position / chunk))
        .collect();
    let scores: Vec<f64> = visible
        .iter()
        .map(|j| q.iter().zip(&keys[row(*j)..]).map(|(q, k)| q * k).sum::<f64>() * f64::from(scale))
        .map(|score| soft_cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh()))
        .collect();
    let sink = sinks.map(|sinks| f64::from(sinks[head]));
    let max = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let sum = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - max).exp());
    visible.iter().zip(weights).fold((0.0, 0.0), |(mean, magnitude), (j, weight)| {
        let value = (kv_head * sequence.capacity + j) * value_dim + column;
        let term = weight / sum * values[value];
        (mean + term, magnitude + term.abs())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn attention_agrees_with_double_precision(case in cases(), num_threads in 1_usize..4) {
        check_values(&case, num_threads, 40);
    }

    #[test]
    fn a_query_s_bits_depend_neither_on_chunks_nor_on_company_nor_on_the_threads(
        case in cases(),
        num_threads in 1_usize..5,
        cuts in prop::collection::vec(0_usize..90, 0..3),
        factor in prop::sample::select(vec![1.0_f32, 1.0, 1.0, 1e30, -1e20, 0.0]),
    ) {
        let mut case = case;
        case.config.scale *= factor;
        check_bits(&case, num_threads, &cuts);
    }

    #[test]
    fn a_strange_key_or_value_shows_only_in_queries_that_see_it(
        case in cases(),
        strange in prop::sample::select(vec![f32::NAN, f32::INFINITY]),
        place in any::<prop::sample::Index>(),
        is_key in any::<bool>(),
    ) {
        let mut sequences = case.contents();
        sequences.truncate(1);
        let [sequence] = &mut sequences[..] else { return Ok(()) };
        if sequence.num_queries == 0 {
            return Ok(());
        }
        let config = case.config();
        let AttentionConfig { heads, kv_heads, head_dim, value_dim, window, chunk, .. } = config;
        let is_key = is_key || case.shares_values;
        let threads = Threads::new(1);
        let before = attend(std::slice::from_ref(sequence), &config, case.float, &threads);
        let position = place.index(sequence.length);
        for head in 0..kv_heads {
            let row = head * sequence.capacity + position;
            if is_key {
                sequence.keys.set(row * head_dim, strange);
            } else {
                sequence.values.set(row * value_dim, strange);
            }
        }
        let after = attend(std::slice::from_ref(sequence), &config, case.float, &threads);
        let row = heads * value_dim;
        for query in 0..sequence.num_queries {
            let own = sequence.length - sequence.num_queries + query;
            let sees = position <= own
                && window.is_none_or(|window| own < position + window)
                && chunk.is_none_or(|chunk| own / chunk == position / chunk);
            let [before, after] = [&before, &after].map(|out| out[0].part(query * row, (query + 1) * row));
            if sees && (!is_key || strange.is_nan()) {
                prop_assert!(!after.to_f64()[0].is_finite());
            } else if !sees {
                prop_assert_eq!(before.bits(), after.bits());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn long_contexts_agree_with_double_precision(case in long_cases(), num_threads in 1_usize..4) {
        check_values(&case, num_threads, 4);
    }

    #[test]
    fn bits_of_long_contexts_depend_neither_on_chunks_nor_on_the_threads(
        case in long_cases(),
        num_threads in 2_usize..5,
        cut in 0_usize..70,
    ) {
        check_bits(&case, num_threads, &[cut]);
    }
}

/// Compares some elements of each sequence with double precision.
fn check_values(case: &Case, num_threads: usize, num_elements: usize) {
    let sequences = case.contents();
    let config = case.config();
    let AttentionConfig { heads, value_dim, .. } = config;
    let mut random = Random(case.seed);
    for threads in pools(num_threads) {
        let outs = attend(&sequences, &config, case.float, &threads);
        for (sequence, out) in sequences.iter().zip(outs) {
            let out = out.to_f64();
            assert!(out.iter().all(|value| value.is_finite()));
            for _ in 0..num_elements.min(out.len()) {
                let idx = random.below(out.len());
                let place = (idx / (heads * value_dim), idx / value_dim % heads, idx % value_dim);
                let (expected, magnitude) = reference(sequence, &config, place);
                // An error of a score is an error of its weight, relative; scores are up to `sharpness` large.
                let magnitude = magnitude * f64::from(1.0 + case.sharpness);
                assert_close(out[idx], expected, magnitude, case.float);
            }
        }
    }
}

/// Compares all sequences in one call with each alone on one thread, its prompt cut into chunks.
fn check_bits(case: &Case, num_threads: usize, cuts: &[usize]) {
    let sequences = case.contents();
    let config = case.config();
    let row = config.heads * config.value_dim;
    for (alone, together) in pools(1).iter().zip(&pools(num_threads)) {
        let outs = attend(&sequences, &config, case.float, together);
        for (sequence, out) in sequences.iter().zip(outs) {
            let cached = sequence.length - sequence.num_queries;
            let mut ends: Vec<usize> =
                cuts.iter().map(|cut| cached + cut % (sequence.num_queries + 1)).collect();
            ends.push(sequence.length);
            ends.sort_unstable();
            let mut start = cached;
            for end in ends {
                let chunk = sequence.earlier(&config, end, end - start);
                let part = attend(&[chunk], &config, case.float, alone);
                let expected = out.part((start - cached) * row, (end - cached) * row);
                assert_eq!(part[0].bits(), expected.bits(), "{start}..{end}");
                start = end;
            }
        }
    }
}

/// One head, one query, keys that give `scores`, values 1, 2, 3, …
fn single(scores: &[f32]) -> f64 {
    single_with(scores, None, None)
}

fn single_with(scores: &[f32], soft_cap: Option<f32>, sinks: Option<&[f32]>) -> f64 {
    let values = (1..=scores.len()).map(|value| value as f32);
    let sequence = Sequence {
        q: Floats::new(Float::F32, [1.0]),
        keys: Floats::new(Float::F32, scores.iter().copied()),
        values: Floats::new(Float::F32, values),
        shares_values: false,
        length: scores.len(),
        capacity: scores.len(),
        num_queries: 1,
    };
    let config = AttentionConfig {
        heads: 1,
        kv_heads: 1,
        head_dim: 1,
        value_dim: 1,
        scale: 1.0,
        window: None,
        chunk: None,
        soft_cap,
        sinks,
    };
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
    for num_keys in [1, 70, 3000] {
        let scores = vec![f32::NEG_INFINITY; num_keys];
        assert_eq!(single(&scores), 0.0);
        for sink in [0.0, 1e30, -1e30, f32::NEG_INFINITY] {
            assert_eq!(single_with(&scores, None, Some(&[sink])), 0.0);
        }
    }
}

#[test]
fn a_sink_takes_its_share() {
    assert_eq!(single_with(&[0.0], None, Some(&[0.0])), 0.5);
    assert_eq!(single_with(&[2.0, 2.0], None, Some(&[2.0])), 1.0);
    assert_eq!(single_with(&[-1e30], None, Some(&[1e30])), 0.0);
    assert_eq!(single_with(&[1e30], None, Some(&[-1e30])), 1.0);
}

#[test]
fn a_cap_bounds_the_scores() {
    // Both scores come out as the cap.
    assert_eq!(single_with(&[1e30, 1e20], Some(5.0), None), 1.5);
    let weight = f64::exp(2.0 * 5.0);
    let expected = (weight + 2.0) / (weight + 1.0);
    assert!(
        (single_with(&[f32::INFINITY, f32::NEG_INFINITY], Some(5.0), None) - expected).abs() < 1e-6
    );
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
