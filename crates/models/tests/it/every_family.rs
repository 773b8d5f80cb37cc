//! Splits of every family: a case of each family of which none is among [`CASES`], whose splits the
//! metamorphic tests compare.

use std::collections::HashSet;

use jackalope_models::Split;

use crate::decoding::{self, one_of_each_family};
use crate::metamorphic::{
    CASES, PIPELINE_LAYERS, assert_close, assert_same, is_continuous, keeps_caches_together,
    tensor, tolerance,
};
use crate::ranks::{Job, Way, load, run_ranks};
use crate::recipe::{Case, Golden};
use crate::run::follow;

/// Tokens at the end of the prompt that are computed one by one.
const NUM_SINGLE: usize = 3;

/// Returns the families that have one of [`CASES`] with a property.
fn families_of_cases(golden: &Golden, has: impl Fn(&Case) -> bool) -> HashSet<&str> {
    golden.chosen(CASES).into_iter().filter(|case| has(case)).map(Case::family).collect()
}

/// Returns a job that reads the prompt.
fn reading(cases: &[&Case], way: Way, num_layers: Option<usize>) -> Job {
    Job {
        cases: cases.iter().map(|case| case.name.clone()).collect(),
        ways: vec![way],
        num_epochs: 1,
        num_tokens: NUM_SINGLE,
        follows: true,
        num_layers,
    }
}

/// Checks that the stages of a pipeline compute the same bits as one rank, with the first case of each family
/// that fits one of these splits. In a split, the last number is that of the first layers. The metamorphic test
/// has compared `compared` with its own cases; `further` are for families of which no case fits those.
fn check_stages(compared: &[&[u32]], further: &[&[u32]]) {
    let golden = Golden::read();
    let fits = |case: &Case, layers: &[u32]| {
        keeps_caches_together(&case.deepened(PIPELINE_LAYERS), layers)
    };
    let fits_any = |case: &Case| compared.iter().any(|layers| fits(case, layers));
    let mut families = families_of_cases(&golden, fits_any);
    for layers in compared.iter().chain(further) {
        let mut cases: Vec<&Case> = Vec::new();
        for case in golden.cases.iter().filter(|case| case.dtype == "F32") {
            if !families.contains(case.family()) && fits(case, layers) {
                families.insert(case.family());
                cases.push(case);
            }
        }
        if !cases.is_empty() {
            compare_stages(&golden, &cases, layers);
        }
    }
    let mut all = golden.cases.iter().map(Case::family);
    let missing = all.find(|family| !families.contains(family));
    assert!(golden.is_restricted() || missing.is_none(), "no case in stages: {missing:?}");
}

/// Checks the stages of one split.
fn compare_stages(golden: &Golden, cases: &[&Case], layers: &[u32]) {
    let job = reading(cases, Way::Kernels, Some(PIPELINE_LAYERS));
    let ranks = run_ranks(&Split::Pipeline(layers.to_vec()), &job);
    for (idx, case) in cases.iter().enumerate() {
        let what = format!("stages of {layers:?} layers");
        let model = load(&case.deepened(PIPELINE_LAYERS), &Way::Kernels.single());
        let alone = follow(&model, &golden.prompt, NUM_SINGLE);
        assert_same(Way::Kernels, case, &ranks[0][idx].logits(), &alone, &what);
        assert!(ranks[1..].iter().all(|rank| rank[idx].logits().is_empty()), "{what}");
    }
}

#[test]
fn two_stages_of_every_family_compute_the_same_bits_as_one_rank() {
    check_stages(&[&[2, 3], &[4, 1]], &[]);
}

#[test]
fn three_stages_of_every_family_compute_the_same_bits_as_one_rank() {
    // Last layers of Gemma 3n and DeepSeek V4.1 read the cache of the one before them.
    check_stages(&[&[1, 1, 3], &[1, 3, 1]], &[&[2, 2, 1]]);
}

/// Checks that ranks with these shares compute about the same as one with MLX's operations.
fn check_with_mlx(golden: &Golden, cases: &[&Case], shares: &[u32]) {
    let ranks = run_ranks(&tensor(shares), &reading(cases, Way::Stock, None));
    for (idx, case) in cases.iter().enumerate() {
        let what = format!("{} on shares {shares:?}", case.name);
        let model = load(case, &Way::Stock.single());
        let alone = follow(&model, Way::Stock.prompt(golden, case), NUM_SINGLE);
        assert_close(&ranks[0][idx].logits(), &alone, tolerance(case), &what);
        let are_same = ranks.iter().all(|rank| rank[idx] == ranks[0][idx]);
        assert!(are_same, "{what}: a rank has other bits than rank 0");
    }
}

#[test]
fn two_ranks_of_every_family_compute_about_the_same_with_mlx() {
    let golden = Golden::read();
    let families = families_of_cases(&golden, is_continuous);
    let mut cases = one_of_each_family(&golden);
    cases.retain(|case| !families.contains(case.family()));
    check_with_mlx(&golden, &cases, &[3, 1]);
}

#[test]
fn five_ranks_compute_about_the_same_with_mlx() {
    let golden = Golden::read();
    let cases = golden.chosen(decoding::CASES);
    let cases: Vec<&Case> = cases.into_iter().filter(|case| is_continuous(case)).collect();
    check_with_mlx(&golden, &cases, &[2, 1, 1, 3, 1]);
}
