//! Products in which each row of activations chooses its matrices: the experts of a mixture.
//!
//! A matrix of `num_experts` experts has the rows of the first expert, then those of the second, and
//! so on. Rows of activations that choose the same expert meet its matrix together, so the weights
//! of an expert are read once for all of them; all experts are one job of the threads.

use std::collections::BTreeMap;
use std::ops::Range;

use jackalope_simd::{Elements, ElementsMut, Matrix, Threads};

use crate::divisible::{Summand, add_products};
use crate::matmul::{RowProducts, Rows, SharedRows, Task, TermColumns, multiply};
use crate::terms::{Fold, GridSum};

/// A row of activations and one of the experts that it chose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Choice {
    pub(crate) token: usize,
    pub(crate) expert: usize,
    /// Factor of the expert's result.
    pub(crate) weight: f32,
}

/// The experts that rows of activations chose: *choices*, ordered by expert and then by row.
#[derive(Clone, Debug, Default)]
pub struct ExpertRows {
    num_tokens: usize,
    num_experts: usize,
    groups: Vec<Group>,
    weights: Vec<f32>,
}

/// The rows that chose an expert.
#[derive(Clone, Debug)]
struct Group {
    expert: usize,
    tokens: Vec<usize>,
}

impl ExpertRows {
    /// Orders the choices of `num_tokens` rows among `num_experts` experts.
    pub(crate) fn new(
        num_tokens: usize,
        num_experts: usize,
        choices: impl IntoIterator<Item = Choice>,
    ) -> ExpertRows {
        let mut of_expert: Vec<Vec<(usize, f32)>> = vec![Vec::new(); num_experts];
        for Choice { token, expert, weight } in choices {
            of_expert[expert].push((token, weight));
        }
        let mut rows = ExpertRows { num_tokens, num_experts, ..ExpertRows::default() };
        for (expert, mut chosen) in of_expert.into_iter().enumerate() {
            if chosen.is_empty() {
                continue;
            }
            chosen.sort_by_key(|(token, _)| *token);
            rows.weights.extend(chosen.iter().map(|(_, weight)| weight));
            let tokens = chosen.into_iter().map(|(token, _)| token).collect();
            rows.groups.push(Group { expert, tokens });
        }
        rows
    }

    /// Removes the choices of the last `count` experts, which have no matrices, and returns the sum of
    /// their weights for each row.
    ///
    /// # Panics
    /// Panics if there are fewer experts.
    #[track_caller]
    pub fn split_off_last(&mut self, count: usize) -> Vec<f32> {
        assert!(count <= self.num_experts, "{count} of {} experts", self.num_experts);
        self.num_experts -= count;
        let first = self.groups.partition_point(|group| group.expert < self.num_experts);
        let removed = self.groups.split_off(first);
        let num_kept = self.groups.iter().map(|group| group.tokens.len()).sum();
        let weights = self.weights.split_off(num_kept);
        let mut sums = vec![0.0; self.num_tokens];
        let tokens = removed.iter().flat_map(|group| &group.tokens);
        tokens.zip(weights).for_each(|(token, weight)| sums[*token] += weight);
        sums
    }

    /// Returns the number of choices.
    pub fn len(&self) -> usize {
        self.weights.len()
    }

    /// Whether no row chose an expert.
    pub fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }

    /// Returns the factor of each choice.
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// Returns each choice as its expert, its row of activations and its weight.
    pub fn iter(&self) -> impl Iterator<Item = (usize, usize, f32)> + '_ {
        let pairs = self.groups.iter().flat_map(|group| {
            let Group { expert, tokens } = group;
            tokens.iter().map(|token| (*expert, *token))
        });
        pairs.zip(&self.weights).map(|((expert, token), weight)| (expert, token, *weight))
    }

    /// Returns the rows of a matrix of all experts that belong to the expert of `group`.
    fn matrix_rows(&self, group: &Group, matrix: &Matrix<'_>) -> Range<usize> {
        let features = self.features(matrix);
        group.expert * features..(group.expert + 1) * features
    }

    /// Returns the vector of the expert of `group` from `vectors` `[experts, features]`.
    fn vector(&self, group: &Group, vectors: Elements<'_>) -> Vec<f32> {
        let features = vectors.len() / self.num_experts;
        vectors.part(group.expert * features..(group.expert + 1) * features).to_f32()
    }

    #[track_caller]
    fn features(&self, matrix: &Matrix<'_>) -> usize {
        let (rows, experts) = (matrix.num_rows(), self.num_experts);
        assert!(0 < experts && rows.is_multiple_of(experts), "{rows} rows of {experts} experts");
        rows / experts
    }

    /// Returns the size of the chosen experts' part of a matrix.
    fn bytes(&self, matrix: &Matrix<'_>) -> usize {
        matrix.bytes() / self.num_experts * self.groups.len()
    }
}

/// Computes `x · matrixᵀ` in f32 for each choice, with the rows of each matrix that belong to its
/// expert. `x` is `[tokens, input]`, a result `[choices, features]`.
///
/// A result has the bits that [`crate::matmul_each`] computes for its row and its expert alone.
///
/// # Panics
/// Panics if a length does not fit, or the matrices differ in their columns.
#[track_caller]
pub fn expert_matmul<const N: usize>(
    x: Elements<'_>,
    rows: &ExpertRows,
    matrices: [&Matrix<'_>; N],
    threads: &Threads,
) -> [Vec<f32>; N] {
    let _span = threads.span("experts", matrices.iter().map(|it| rows.bytes(it)).sum());
    let input = matrices[0].input();
    assert!(matrices.iter().all(|it| it.input() == input), "matrices for the same rows");
    assert_eq!(
        x.len(),
        rows.num_tokens * input,
        "activations: {} rows of {input}",
        rows.num_tokens
    );
    matrices.iter().for_each(|matrix| matrix.assert_valid());
    let mut results = matrices.map(|matrix| vec![0.0; rows.len() * rows.features(matrix)]);
    if input == 0 || rows.is_empty() {
        return results;
    }
    let mut left: Vec<_> = matrices.into_iter().zip(&mut results).collect();
    while let Some((first, _)) = left.first() {
        // The matrices of one format are computed in one job.
        let (first, format) = (*first, first.format());
        let (same, others) = left.into_iter().partition(|(it, _)| it.format() == format);
        left = others;
        let x = SharedRows::new(x, first, threads);
        multiply(tasks(&x, rows, same), threads);
    }
    results
}

/// A matrix of all experts, and the results of all choices.
type Experts<'a> = (&'a Matrix<'a>, &'a mut Vec<f32>);

/// Creates one task for all experts that were chosen by the same rows, which share the preparation of these
/// rows.
fn tasks<'a>(
    x: &'a SharedRows<'a>,
    rows: &'a ExpertRows,
    matrices: Vec<Experts<'a>>,
) -> Vec<Task<'a>> {
    let mut products: BTreeMap<&[usize], Vec<RowProducts<'a>>> = BTreeMap::new();
    for (matrix, results) in matrices {
        let features = rows.features(matrix);
        let mut views = ElementsMut::F32(results).chunks(features).into_iter();
        for group in &rows.groups {
            let out = views.by_ref().take(group.tokens.len()).collect();
            let matrix = matrix.rows(rows.matrix_rows(group, matrix));
            products.entry(&group.tokens).or_default().push(RowProducts { matrix, out });
        }
    }
    let tasks = products.into_iter();
    tasks.map(|(tokens, products)| Task { x: Rows::Chosen(x, tokens), products }).collect()
}

/// As [`expert_matmul`], for a part of the columns of a product that is divided among machines; see
/// [`crate::divisible_matmul`]. `x` is `[choices, input]`; the result `[tokens, features]` has the
/// sum over the choices of each row of activations.
///
/// # Panics
/// Panics if a length does not fit, or the format is not one of MLX's.
#[track_caller]
pub fn divisible_expert_matmul(
    x: Elements<'_>,
    rows: &ExpertRows,
    matrix: &Matrix<'_>,
    terms: TermColumns,
    threads: &Threads,
) -> Vec<f64> {
    let _span = threads.span("experts", rows.bytes(matrix));
    matrix.assert_valid();
    let (features, input) = (rows.features(matrix), matrix.input());
    assert_eq!(x.len(), rows.len() * input, "activations: {} rows of {input}", rows.len());
    let mut sums = vec![0.0; rows.num_tokens * features];
    if input == 0 || features == 0 {
        return sums;
    }
    let mut start = 0;
    let summands = rows.groups.iter().map(|group| {
        let end = start + group.tokens.len();
        let x = x.part(start * input..end * input);
        start = end;
        let matrix = matrix.rows(rows.matrix_rows(group, matrix));
        Summand { x, matrix, tokens: &group.tokens }
    });
    let summands: Vec<Summand<'_>> = summands.collect();
    add_products(&summands, terms, &mut sums, threads);
    sums
}

/// Adds to the row of each choice its expert's row of `biases` `[experts, features]`.
///
/// # Panics
/// Panics if a length does not fit.
#[track_caller]
pub fn add_expert_bias(results: &mut [f32], rows: &ExpertRows, biases: Elements<'_>) {
    let features = biases.len() / rows.num_experts.max(1);
    assert_eq!(results.len(), rows.len() * features, "a bias for each result");
    let mut results = results.chunks_exact_mut(features.max(1));
    for group in &rows.groups {
        let bias = rows.vector(group, biases);
        for row in results.by_ref().take(group.tokens.len()) {
            row.iter_mut().zip(&bias).for_each(|(result, bias)| *result += bias);
        }
    }
}

/// Adds to the sum of each row of activations, in `sums` `[tokens, features]`, the biases of the
/// experts that it chose, times their weights. The biases are rounded to the grid of exact sums.
///
/// # Panics
/// Panics if a length does not fit.
#[track_caller]
pub fn add_weighted_biases(sums: &mut [f64], rows: &ExpertRows, biases: Elements<'_>) {
    let features = biases.len() / rows.num_experts.max(1);
    assert_eq!(sums.len(), rows.num_tokens * features, "a bias for each sum");
    let mut weights = rows.weights.iter();
    for group in &rows.groups {
        let bias = rows.vector(group, biases);
        for (token, weight) in group.tokens.iter().zip(&mut weights) {
            for (sum, bias) in sums[token * features..].iter_mut().zip(&bias) {
                let mut term = GridSum::EMPTY;
                term.add(bias * weight);
                *sum += term.value();
            }
        }
    }
}

/// Adds each row of `x`, times its factor, to its row of `sums`; both are `[tokens, features]`. The
/// products are rounded to the grid of exact sums.
///
/// # Panics
/// Panics if a length does not fit.
#[track_caller]
pub fn add_scaled_rows(sums: &mut [f64], x: Elements<'_>, factors: &[f32]) {
    assert_eq!(sums.len(), x.len(), "a value for each sum");
    assert!(sums.len().is_multiple_of(factors.len().max(1)), "rows of the same length");
    let width = (sums.len() / factors.len().max(1)).max(1);
    let values = x.to_f32();
    let rows = sums.chunks_exact_mut(width).zip(values.chunks_exact(width));
    for ((sums, values), factor) in rows.zip(factors) {
        for (sum, value) in sums.iter_mut().zip(values) {
            let mut term = GridSum::EMPTY;
            term.add(value * factor);
            *sum += term.value();
        }
    }
}

/// Bounds gates and other projections so that [`crate::swiglu`] of them is
/// `gate * sigmoid(alpha * gate) * (up + 1)`, where gates are at most `limit` and `up` is within it on
/// both sides.
///
/// # Panics
/// Panics if there are not as many gates as other values.
#[track_caller]
pub fn clamp_gates(gate: &mut [f32], up: &mut [f32], alpha: f32, limit: f32) {
    assert_eq!(gate.len(), up.len(), "as many gates as values");
    for (gate, up) in gate.iter_mut().zip(up) {
        // NaN stays NaN.
        *gate = alpha * if limit < *gate { limit } else { *gate };
        *up = (up.clamp(-limit, limit) + 1.0) / alpha;
    }
}

/// Multiplies each row of `rows`, which are equally long, by its factor.
///
/// # Panics
/// Panics if the rows are not equally long.
#[track_caller]
pub fn scale_rows(rows: &mut [f32], factors: &[f32]) {
    if factors.is_empty() {
        return assert!(rows.is_empty(), "a factor for each row");
    }
    assert!(rows.len().is_multiple_of(factors.len()), "rows of the same length");
    let width = rows.len() / factors.len();
    for (row, factor) in rows.chunks_exact_mut(width.max(1)).zip(factors) {
        row.iter_mut().for_each(|value| *value *= factor);
    }
}
