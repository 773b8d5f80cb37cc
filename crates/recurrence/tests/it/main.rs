//! The recurrences: chunks against one token after the other, and the kernel's source against the
//! definition.
#![expect(clippy::unwrap_used, reason = "tests")]

mod metal;

use jackalope_mlx::Array;
use jackalope_recurrence::{Rule, Scanned, Tokens, scan, scan_by_token};

/// Numbers of a test's tokens.
#[derive(Clone, Copy, Debug)]
struct Shape {
    rule: Rule,
    sequences: i32,
    seq: i32,
    key_heads: i32,
    value_heads: i32,
    key_dim: i32,
    value_dim: i32,
    decays_by_element: bool,
    /// Factor of the rates, which are in `0..1` without it.
    rate_max: f32,
    /// Whether all keys of a head are the same, so that corrections depend on all tokens before.
    same_keys: bool,
}

const SHAPE: Shape = Shape {
    rule: Rule::Delta,
    sequences: 1,
    seq: 70,
    key_heads: 2,
    value_heads: 4,
    key_dim: 32,
    value_dim: 16,
    decays_by_element: false,
    rate_max: 1.0,
    same_keys: false,
};

/// Numbers in `0..1` that differ from one call to the next.
struct Random(u64);

impl Random {
    fn array(&mut self, shape: &[i32]) -> Array {
        let len = shape.iter().product::<i32>() as usize;
        let values: Vec<f32> = (0..len)
            .map(|_| {
                self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (self.0 >> 40) as f32 / (1 << 24) as f32
            })
            .collect();
        Array::from_slice(&values, shape)
    }
}

/// Inputs of a scan.
struct Inputs {
    shape: Shape,
    arrays: [Array; 5],
    state: Array,
}

impl Inputs {
    fn new(shape: Shape) -> Inputs {
        let Shape { sequences, seq, key_heads, value_heads, key_dim, value_dim, .. } = shape;
        let mut random = Random(7);
        let mut centred = |shape: &[i32]| &(&random.array(shape) * 2.0) - 1.0;
        let unit = |x: Array| {
            let length = x.square().sum(-1, true).sqrt();
            x.div(&length)
        };
        let queries = unit(centred(&[sequences, seq, key_heads, key_dim]));
        let keys = if shape.same_keys {
            unit(centred(&[sequences, 1, key_heads, key_dim]))
                .broadcast_to(&[sequences, seq, key_heads, key_dim])
        } else {
            unit(centred(&[sequences, seq, key_heads, key_dim]))
        };
        let values = centred(&[sequences, seq, value_heads, value_dim]);
        let state = centred(&[sequences, value_heads, value_dim, key_dim]);
        let mut of_decays = vec![sequences, seq, value_heads];
        of_decays.extend(shape.decays_by_element.then_some(key_dim));
        // From no decay to one that leaves nothing.
        let log_decays =
            random.array(&of_decays).log().mul(&Array::scalar(3.0)).maximum(&Array::scalar(-90.0));
        let rates = &random.array(&[sequences, seq, value_heads]) * shape.rate_max;
        Inputs { shape, arrays: [queries, keys, values, log_decays, rates], state }
    }

    fn tokens(&self) -> Tokens<'_> {
        let [queries, keys, values, log_decays, rates] = &self.arrays;
        Tokens { rule: self.shape.rule, queries, keys, values, log_decays, rates }
    }
}

fn assert_close(found: &Array, expected: &Array, what: &str) {
    assert_eq!(found.shape(), expected.shape(), "{what}");
    let [found, expected] = [found, expected].map(|x| x.to_vec::<f32>().unwrap());
    let largest = expected.iter().fold(1.0_f32, |most, it| most.max(it.abs()));
    for (found, expected) in found.iter().zip(&expected) {
        assert!((found - expected).abs() < 2e-5 * largest, "{what}: {found} for {expected}");
    }
}

fn check(shape: Shape) {
    let inputs = Inputs::new(shape);
    let found = scan(&inputs.tokens(), &inputs.state);
    let Scanned { results, state } = scan_by_token(&inputs.tokens(), &inputs.state);
    assert_close(&found.results, &results, &format!("results of {shape:?}"));
    assert_close(&found.state, &state, &format!("state after {shape:?}"));
}

#[test]
fn chunks_compute_what_one_token_after_the_other_does() {
    for rule in [Rule::Delta, Rule::Add] {
        for seq in [1, 2, 5, 16, 63, 64, 65, 200] {
            check(Shape { rule, seq, ..SHAPE });
        }
        check(Shape { rule, sequences: 3, key_heads: 4, seq: 37, ..SHAPE });
        check(Shape { rule, decays_by_element: true, sequences: 2, ..SHAPE });
    }
}

#[test]
fn chunks_stay_exact_where_every_token_corrects_those_before() {
    for rate_max in [1.0, 2.0] {
        check(Shape { same_keys: true, rate_max, seq: 130, ..SHAPE });
        check(Shape { same_keys: true, rate_max, decays_by_element: true, ..SHAPE });
    }
}

#[test]
fn the_number_of_operations_grows_with_chunks_and_not_with_sequences() {
    let nodes = |shape: Shape| {
        let inputs = Inputs::new(shape);
        let all: Vec<&Array> = inputs.arrays.iter().chain([&inputs.state]).collect();
        jackalope_mlx::eval(&all).unwrap();
        jackalope_mlx::count_nodes(|| {
            let Scanned { results, state } = scan(&inputs.tokens(), &inputs.state);
            vec![results, state]
        })
    };
    let [one, many] = [1, 64].map(|sequences| nodes(Shape { sequences, seq: 1, ..SHAPE }));
    assert!(one <= 30 && many == one, "{one} nodes for a token of one sequence, {many} for 64");
    let [short, long] = [64, 640].map(|seq| nodes(Shape { seq, ..SHAPE }));
    assert!(long - short <= 9 * 26, "{short} nodes for one chunk, {long} for ten");
}
