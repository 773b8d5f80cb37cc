//! The choice of experts.

use jackalope_kernels::{ExpertGroups, RouterConfig, Scores, route};

use crate::support::PLAIN_ROUTER;

fn chosen(logits: &[f32], config: RouterConfig<'_>) -> Vec<(usize, f32)> {
    let rows = route(logits, logits.len(), &config);
    rows.iter().map(|(expert, _, weight)| (expert, weight)).collect()
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
    assert_close(&chosen(&logits, PLAIN_ROUTER), &expected);
    let normalized = RouterConfig { normalization_eps: Some(0.0), ..PLAIN_ROUTER };
    assert_close(&chosen(&logits, normalized), &[(0, 0.268_941_4), (2, 0.731_058_6)]);
    let of_chosen = RouterConfig { scores: Scores::SoftmaxOfChosen, ..PLAIN_ROUTER };
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
    let config = RouterConfig { scores: Scores::SigmoidOfChosen, num_chosen: 1, ..PLAIN_ROUTER };
    assert_close(&chosen(&[30.0, 40.0, -1.0], config), &[(1, 1.0)]);
    assert_close(&chosen(&[-3.0, 0.0, -1.0], config), &[(1, 0.5)]);
}

#[test]
fn a_sparse_mixer_weighs_each_expert_among_those_near_it_that_are_left() {
    let config = RouterConfig { scores: Scores::SparseMixer { jitter: 0.1 }, ..PLAIN_ROUTER };
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
        ..PLAIN_ROUTER
    };
    // Logistic function of 0: 0.5; of 3: 0.95257413.
    assert_close(&chosen(&[2.0, 0.0, 3.0, 1.0], config), &[(1, 1.25), (2, 2.381_435_3)]);
}

#[test]
fn experts_of_other_groups_are_not_chosen() {
    let groups = Some(ExpertGroups { count: 2, chosen: 1, best: 2, excluded: 0.0 });
    let config = RouterConfig { groups, scores: Scores::Sigmoid, ..PLAIN_ROUTER };
    // The single best expert is in the second group, the better pair in the first.
    let found = chosen(&[2.0, 2.5, -9.0, 3.0, -9.0, -9.0], config);
    assert_eq!(found.iter().map(|it| it.0).collect::<Vec<_>>(), [0, 1]);
    let groups = Some(ExpertGroups { count: 2, chosen: 1, best: 1, excluded: 0.0 });
    let config = RouterConfig { groups, scores: Scores::Sigmoid, ..PLAIN_ROUTER };
    let found = chosen(&[2.0, 2.5, -9.0, 3.0, -9.0, -9.0], config);
    assert_eq!(found.iter().map(|it| it.0).collect::<Vec<_>>(), [3, 4]);
}

#[test]
fn a_group_whose_scores_are_negative_is_kept_if_others_are_excluded_wholly() {
    let bias = [-2.0, -2.0, -5.0, -5.0];
    let choose = |excluded| {
        let groups = Some(ExpertGroups { count: 2, chosen: 1, best: 2, excluded });
        let scores = Scores::Sigmoid;
        let config = RouterConfig { groups, scores, selection_bias: Some(&bias), ..PLAIN_ROUTER };
        let found = chosen(&[1.0, 2.0, 3.0, 4.0], config);
        found.iter().map(|it| it.0).collect::<Vec<_>>()
    };
    assert_eq!((choose(0.0), choose(f32::NEG_INFINITY)), (vec![2, 3], vec![0, 1]));
}

#[test]
fn roots_of_softplus_weigh_the_best() {
    let config = RouterConfig { scores: Scores::SqrtSoftplus, ..PLAIN_ROUTER };
    let root = |x: f64| (1.0 + x.exp()).ln().sqrt() as f32;
    assert_close(&chosen(&[2.0, -1.0, 30.0, -40.0], config), &[(0, root(2.0)), (2, root(30.0))]);
}

#[test]
fn given_experts_have_the_weights_of_their_scores() {
    let config = RouterConfig {
        scores: Scores::Sigmoid,
        normalization_eps: Some(0.0),
        given: Some(&[3, 1, 0, 2]),
        ..PLAIN_ROUTER
    };
    let rows = route(&[2.0, 0.0, 3.0, 0.0, 0.0, 9.0, 0.0, 8.0], 4, &config);
    assert_eq!(rows.weights(), [0.5; 4]);
    let one = RouterConfig { given: Some(&[3, 0]), ..config };
    assert_close(&chosen(&[0.0, 9.0, 9.0, 0.0], one), &[(0, 0.5), (3, 0.5)]);
}

#[test]
fn of_equal_scores_the_lower_index_is_chosen() {
    let found = chosen(&[1.0; 7], RouterConfig { num_chosen: 3, ..PLAIN_ROUTER });
    assert_eq!(found.iter().map(|it| it.0).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn a_row_that_is_not_finite_still_chooses_so_many_experts() {
    for logits in [[f32::NAN; 4], [f32::INFINITY; 4], [f32::NEG_INFINITY; 4]] {
        assert_eq!(chosen(&logits, PLAIN_ROUTER).len(), 2);
    }
}
