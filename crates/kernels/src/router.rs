//! The choice of experts for each row.
//!
//! Every rank computes it and must come to the same result, so it uses no fused operations and no
//! system library: the bits are the same on every machine.

use jackalope_simd::{Portable, exp};

use crate::experts::{Choice, ExpertRows};

/// How logits become the scores by which experts are chosen, and which weigh their results.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scores {
    /// Soft-max over all experts.
    Softmax,
    /// The logits; weights are their soft-max over the chosen experts.
    SoftmaxOfChosen,
    /// The logistic function of each logit.
    Sigmoid,
    /// The square root of `ln(1 + e^logit)`.
    SqrtSoftplus,
    /// The logits; weights are the logistic function of those of the chosen experts.
    SigmoidOfChosen,
    /// The logits (Liu et al. 2023, "Sparse Backpropagation for MoE Training"). Experts are chosen one
    /// after the other; the weight of each is its soft-max over those that were not chosen before it
    /// and whose logits are near its own: a distance of at most twice `jitter`, relative to the larger
    /// of the two.
    SparseMixer {
        /// Half of the maximum distance of near logits, relative to the larger of the two.
        jitter: f32,
    },
}

/// Groups of experts. Experts are chosen from the best groups only.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertGroups {
    /// Number of groups of neighbouring experts; a divisor of the number of experts.
    pub count: usize,
    /// Number of groups from which experts are chosen: those with the largest sums of their `best`
    /// best scores.
    pub chosen: usize,
    /// Number of scores of a group that are added up to compare it with others: its 2 best
    /// (DeepSeek V3), or its best (V2).
    pub best: usize,
    /// What the scores in other groups become: zero, or minus infinity.
    pub excluded: f32,
}

/// Settings of a router.
#[derive(Clone, Copy, Debug)]
pub struct RouterConfig<'a> {
    /// How logits become scores.
    pub scores: Scores,
    /// Bias, added to the scores for the choice only, `[experts]`.
    pub selection_bias: Option<&'a [f32]>,
    /// Groups of experts, of which the best are chosen first; `None` if experts are chosen among
    /// all.
    pub groups: Option<ExpertGroups>,
    /// Number of experts that each row chooses.
    pub num_chosen: usize,
    /// The experts of each row, `[tokens, num_chosen]`, if they are not chosen by their scores.
    pub given: Option<&'a [u32]>,
    /// With `Some(eps)`, the weights of a row are divided by `eps` plus their sum.
    pub normalization_eps: Option<f32>,
    /// Factor of the weights.
    pub scale: f32,
    /// Factor of each expert's weights, `[experts]`, if there are any.
    pub expert_scales: Option<&'a [f32]>,
}

/// Chooses the experts of each row of `logits` `[tokens, experts]`. Of equal scores, the expert with
/// the lower index is chosen.
///
/// # Panics
/// Panics if a length does not fit, or if fewer experts exist than are to be chosen.
#[track_caller]
pub fn route(logits: &[f32], num_experts: usize, config: &RouterConfig<'_>) -> ExpertRows {
    assert!(0 < num_experts && logits.len().is_multiple_of(num_experts), "whole rows of logits");
    assert!(config.num_chosen <= num_experts, "{num_experts} experts");
    let fits = |it: Option<&[f32]>| it.is_none_or(|it| it.len() == num_experts);
    assert!(fits(config.selection_bias) && fits(config.expert_scales), "a number per expert");
    let RouterConfig { num_chosen, given, .. } = *config;
    let num_given = logits.len() / num_experts * num_chosen;
    assert!(given.is_none_or(|it| it.len() == num_given), "experts of each row");
    let rows = logits.chunks_exact(num_experts).enumerate();
    let choices = rows.flat_map(|(token, logits)| {
        let given = given.map(|given| &given[token * num_chosen..(token + 1) * num_chosen]);
        let chosen = choose(logits, given, config).into_iter();
        chosen.map(move |(expert, weight)| Choice { token, expert, weight })
    });
    ExpertRows::new(logits.len() / num_experts, num_experts, choices)
}

/// Returns the experts of a row, in ascending order, with their weights.
fn choose(logits: &[f32], given: Option<&[u32]>, config: &RouterConfig<'_>) -> Vec<(usize, f32)> {
    let scores = match config.scores {
        Scores::Softmax => softmax(logits),
        Scores::SoftmaxOfChosen | Scores::SigmoidOfChosen | Scores::SparseMixer { .. } => {
            logits.to_vec()
        }
        Scores::Sigmoid => logits.iter().map(|logit| logistic(*logit)).collect(),
        Scores::SqrtSoftplus => logits.iter().map(|logit| softplus(*logit).sqrt()).collect(),
    };
    let mut ranked = scores.clone();
    if let Some(bias) = config.selection_bias {
        ranked.iter_mut().zip(bias).for_each(|(score, bias)| *score += bias);
    }
    if let Some(groups) = config.groups {
        let size = ranked.len() / groups.count;
        let best: Vec<f32> = ranked.chunks(size).map(|it| sum_of_best(it, groups.best)).collect();
        let kept = largest(&best, groups.chosen);
        for (group, scores) in ranked.chunks_mut(size).enumerate() {
            if !kept.contains(&group) {
                scores.fill(groups.excluded);
            }
        }
    }
    let given = given.map(|given| given.iter().map(|expert| *expert as usize).collect());
    let mut experts = given.unwrap_or_else(|| largest(&ranked, config.num_chosen));
    experts.sort_unstable();
    let chosen: Vec<f32> = experts.iter().map(|expert| scores[*expert]).collect();
    let mut weights = match config.scores {
        Scores::SoftmaxOfChosen => softmax(&chosen),
        Scores::SigmoidOfChosen => chosen.iter().map(|logit| logistic(*logit)).collect(),
        Scores::SparseMixer { jitter } => mixed(logits, &experts, jitter),
        Scores::Softmax | Scores::Sigmoid | Scores::SqrtSoftplus => chosen,
    };
    if let Some(eps) = config.normalization_eps {
        let sum = weights.iter().sum::<f32>() + eps;
        weights.iter_mut().for_each(|weight| *weight /= sum);
    }
    weights.iter_mut().for_each(|weight| *weight *= config.scale);
    if let Some(scales) = config.expert_scales {
        weights.iter_mut().zip(&experts).for_each(|(weight, expert)| *weight *= scales[*expert]);
    }
    experts.into_iter().zip(weights).collect()
}

/// Returns the weights of [`Scores::SparseMixer`] of the chosen `experts`.
fn mixed(logits: &[f32], experts: &[usize], jitter: f32) -> Vec<f32> {
    let is_before = |a: usize, b: usize| {
        logits[b].total_cmp(&logits[a]).then(a.cmp(&b)).is_lt() // of a and b, a is chosen first
    };
    let weight = |&expert: &usize| {
        let top = logits[expert];
        let is_left = |other: usize| !experts.contains(&other) || !is_before(other, expert);
        let is_far = |logit: f32| (top - logit) / logit.abs().max(top) > 2.0 * jitter;
        let near = logits
            .iter()
            .enumerate()
            .filter(|(idx, logit)| *idx == expert || (is_left(*idx) && !is_far(**logit)));
        let sum: f32 = near.map(|(_, logit)| exp::<Portable>(logit - top)).sum();
        1.0 / sum
    };
    experts.iter().map(weight).collect()
}

/// Returns the indices of the `count` largest values, in descending order of the values. Of equal
/// values, the one with the lower index is first.
pub(crate) fn largest(values: &[f32], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    let by_value = |a: &usize, b: &usize| values[*b].total_cmp(&values[*a]).then(a.cmp(b));
    if count < order.len() {
        order.select_nth_unstable_by(count, by_value);
        order.truncate(count);
    }
    order.sort_unstable_by(by_value);
    order
}

fn sum_of_best(scores: &[f32], count: usize) -> f32 {
    largest(scores, count).into_iter().map(|idx| scores[idx]).sum()
}

fn softmax(logits: &[f32]) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f32> = logits.iter().map(|logit| exp::<Portable>(logit - max)).collect();
    let sum: f32 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

/// Replaces each value by its logistic function, `1 / (1 + e^-x)`.
pub fn sigmoid(values: &mut [f32]) {
    values.iter_mut().for_each(|value| *value = logistic(*value));
}

fn logistic(x: f32) -> f32 {
    // The exponential of a negative number cannot overflow.
    let power = exp::<Portable>(-x.abs());
    let numerator = if x < 0.0 { power } else { 1.0 };
    numerator / (1.0 + power)
}

/// Returns `ln(1 + e^x)`, computed in f64.
pub fn softplus(x: f32) -> f32 {
    let x = f64::from(x);
    (x.max(0.0) + (-x.abs()).exp().ln_1p()) as f32
}
