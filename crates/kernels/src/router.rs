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

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: RouterConfig<'_> = RouterConfig {
        scores: Scores::Softmax,
        selection_bias: None,
        groups: None,
        num_chosen: 2,
        given: None,
        normalization_eps: None,
        scale: 1.0,
        expert_scales: None,
    };

    fn chosen(logits: &[f32], config: RouterConfig<'_>) -> Vec<(usize, f32)> {
        choose(logits, config.given, &config)
    }

    fn assert_close(found: &[(usize, f32)], expected: &[(usize, f32)]) {
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.0 == expected.0 && (found.1 - expected.1).abs() < 1e-6, "{found:?}");
        }
    }

    #[test]
    fn soft_max_weighs_the_chosen_experts() {
        // e^0, e^1, e^2, e^3 sum to 31.192875.
        let logits = [2.0, 0.0, 3.0, 1.0];
        let expected = [(0, 0.236_882_8), (2, 0.643_914_3)];
        assert_close(&chosen(&logits, PLAIN), &expected);
        let normalized = RouterConfig { normalization_eps: Some(0.0), ..PLAIN };
        assert_close(&chosen(&logits, normalized), &[(0, 0.268_941_4), (2, 0.731_058_6)]);
        let of_chosen = RouterConfig { scores: Scores::SoftmaxOfChosen, ..PLAIN };
        let scales = [1.0, 2.0, 4.0, 8.0];
        let scaled = RouterConfig { expert_scales: Some(&scales), ..of_chosen };
        for ((expert, weight), (same, factored)) in chosen(&[0.0, 2.0, 1.0, 3.0], of_chosen)
            .into_iter()
            .zip(chosen(&[0.0, 2.0, 1.0, 3.0], scaled))
        {
            assert_eq!((same, factored), (expert, weight * scales[expert]));
        }
        assert_close(&chosen(&logits, of_chosen), &[(0, 0.268_941_4), (2, 0.731_058_6)]);
    }

    #[test]
    fn the_choice_by_logits_does_not_saturate() {
        let config = RouterConfig { scores: Scores::SigmoidOfChosen, num_chosen: 1, ..PLAIN };
        assert_close(&chosen(&[30.0, 40.0, -1.0], config), &[(1, 1.0)]);
        assert_close(&chosen(&[-3.0, 0.0, -1.0], config), &[(1, 0.5)]);
    }

    #[test]
    fn a_sparse_mixer_weighs_each_expert_among_those_near_it_that_are_left() {
        let config = RouterConfig { scores: Scores::SparseMixer { jitter: 0.1 }, ..PLAIN };
        // 2.5 is near 3 (a sixth of it), 2 is not (a third) but is near 2.5 (exactly a fifth).
        let logits = [2.0, 0.0, 3.0, 2.5];
        let near = |distance: f32| 1.0 / (1.0 + (-distance).exp());
        assert_close(&chosen(&logits, config), &[(2, near(0.5)), (3, near(0.5))]);
        // Of logits below zero, the distance is relative to the other's magnitude.
        let logits = [-5.0, -1.0, -1.1, -1.5];
        assert_close(&chosen(&logits, config), &[(1, near(0.1)), (2, 1.0)]);
    }

    #[test]
    fn a_selection_bias_changes_the_choice_but_not_the_weights() {
        let bias = [0.0, 2.0, 0.0, 0.0];
        let config = RouterConfig {
            scores: Scores::Sigmoid,
            selection_bias: Some(&bias),
            scale: 2.5,
            ..PLAIN
        };
        // Logistic function of 0: 0.5; of 3: 0.95257413.
        assert_close(&chosen(&[2.0, 0.0, 3.0, 1.0], config), &[(1, 1.25), (2, 2.381_435_3)]);
    }

    #[test]
    fn experts_of_other_groups_are_not_chosen() {
        let groups = Some(ExpertGroups { count: 2, chosen: 1, best: 2, excluded: 0.0 });
        let config = RouterConfig { groups, scores: Scores::Sigmoid, ..PLAIN };
        // The single best expert is in the second group, the better pair in the first.
        let found = chosen(&[2.0, 2.5, -9.0, 3.0, -9.0, -9.0], config);
        assert_eq!(found.iter().map(|it| it.0).collect::<Vec<_>>(), [0, 1]);
        let groups = Some(ExpertGroups { count: 2, chosen: 1, best: 1, excluded: 0.0 });
        let config = RouterConfig { groups, scores: Scores::Sigmoid, ..PLAIN };
        let found = chosen(&[2.0, 2.5, -9.0, 3.0, -9.0, -9.0], config);
        assert_eq!(found.iter().map(|it| it.0).collect::<Vec<_>>(), [3, 4]);
    }

    #[test]
    fn a_group_whose_scores_are_negative_is_kept_if_others_are_excluded_wholly() {
        let bias = [-2.0, -2.0, -5.0, -5.0];
        let choose = |excluded| {
            let groups = Some(ExpertGroups { count: 2, chosen: 1, best: 2, excluded });
            let scores = Scores::Sigmoid;
            let config = RouterConfig { groups, scores, selection_bias: Some(&bias), ..PLAIN };
            let found = chosen(&[1.0, 2.0, 3.0, 4.0], config);
            found.iter().map(|it| it.0).collect::<Vec<_>>()
        };
        assert_eq!((choose(0.0), choose(f32::NEG_INFINITY)), (vec![2, 3], vec![0, 1]));
    }

    #[test]
    fn roots_of_softplus_weigh_the_best() {
        let config = RouterConfig { scores: Scores::SqrtSoftplus, ..PLAIN };
        let root = |x: f64| (1.0 + x.exp()).ln().sqrt() as f32;
        assert_close(
            &chosen(&[2.0, -1.0, 30.0, -40.0], config),
            &[(0, root(2.0)), (2, root(30.0))],
        );
    }

    #[test]
    fn given_experts_have_the_weights_of_their_scores() {
        let config = RouterConfig {
            scores: Scores::Sigmoid,
            normalization_eps: Some(0.0),
            given: Some(&[3, 1, 0, 2]),
            ..PLAIN
        };
        let rows = route(&[2.0, 0.0, 3.0, 0.0, 0.0, 9.0, 0.0, 8.0], 4, &config);
        assert_eq!(rows.weights(), [0.5; 4]);
        let one = RouterConfig { given: Some(&[3, 0]), ..config };
        assert_close(&chosen(&[0.0, 9.0, 9.0, 0.0], one), &[(0, 0.5), (3, 0.5)]);
    }

    #[test]
    fn of_equal_scores_the_lower_index_is_chosen() {
        let found = chosen(&[1.0; 7], RouterConfig { num_chosen: 3, ..PLAIN });
        assert_eq!(found.iter().map(|it| it.0).collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn a_row_that_is_not_finite_still_chooses_so_many_experts() {
        for logits in [[f32::NAN; 4], [f32::INFINITY; 4], [f32::NEG_INFINITY; 4]] {
            assert_eq!(chosen(&logits, PLAIN).len(), 2);
        }
    }
}
