//! Comparison with mlx-lm: the files of `tests/data/golden`, written by `cargo xtask golden`.
//!
//! Logits of f32 checkpoints agree to 1e-4 of the largest one, and tokens agree wherever the
//! reference's margin is above 1e-3. The reference of f16 and bf16 checkpoints is computed in f32
//! from their stored values, so their difference is our rounding.

use std::panic::{AssertUnwindSafe, catch_unwind};

use jackalope_models::{Model, Split};

use crate::ranks::{Job, Way, run_ranks};
use crate::recipe::{Case, Golden};
use crate::run::{Logits, argmax, difference, generate};

/// Smallest margin at which another token is an error.
const MARGIN: f32 = 1e-3;

/// Returns the maximum difference of the last logits; greedy tokens are compared in f32 only.
pub(crate) fn tolerance(case: &Case, way: Way) -> f32 {
    match (case.dtype.as_str(), way) {
        ("F32", _) => 1e-4,
        // Keys are rounded to few bits: those near the middle between two values to another one.
        ("BF16", _) if case.name.starts_with("deepseek_v41") => 2e-1,
        ("F16", Way::Kernels | Way::RoundedKernels) => 4e-3,
        ("BF16", Way::Kernels | Way::RoundedKernels) => 3e-2,
        // On the CPU, MLX adds the products of half-precision numbers up in half precision.
        ("F16", Way::Stock) => 2e-2,
        _ => 2e-1,
    }
}

fn check(
    case: &Case,
    prompt: &[u32],
    way: Way,
    (tokens, logits): &(Vec<u32>, Logits),
    ranks: &str,
) {
    let name = format!("{} ({way:?}, {ranks})", case.name);
    let found = difference(&logits[prompt.len() - 1], &case.logits);
    let allowed = tolerance(case, way);
    assert!(found <= allowed, "{name}: logits differ by {found:.1e} of the largest, {allowed:.0e}");
    if case.dtype != "F32" {
        return;
    }
    let best: Vec<u32> = logits[..prompt.len()].iter().map(|row| argmax(row)).collect();
    assert_eq!(best, case.best, "{name}: best tokens of the prompt's positions");
    for (idx, token) in tokens.iter().enumerate() {
        let margin = case.margins[idx];
        if *token != case.greedy[idx] {
            assert!(margin < MARGIN, "{name}: token {idx} with a margin of {margin}");
            break;
        }
    }
}

#[test]
fn one_rank_computes_what_mlx_lm_does() {
    let golden = Golden::read();
    assert!(
        golden.is_restricted() || 50 <= golden.cases.len(),
        "every architecture and quantisation"
    );
    // All cases are computed, so that a message names every one that differs.
    let computes = |case: &Case| {
        // Made anew: this test is also the one that the recipe has made what the reference has seen.
        let checkpoint = case.write();
        for way in Way::BOTH {
            let model = Model::load(checkpoint.dir(), &way.single(), &mut |_| {}).unwrap();
            // Of checkpoints in 16 bits, tokens are not compared.
            let num_tokens = match (case.dtype.as_str(), way) {
                ("F32", _) | (_, Way::Kernels | Way::RoundedKernels) => case.greedy.len(),
                (_, Way::Stock) => 4,
            };
            let generated = generate(&model, &golden.prompt, num_tokens);
            check(case, &golden.prompt, way, &generated, "one rank");
        }
    };
    let differs = |case: &&Case| catch_unwind(AssertUnwindSafe(|| computes(case))).is_err();
    let differing: Vec<&str> =
        golden.cases.iter().filter(differs).map(|case| case.name.as_str()).collect();
    assert!(differing.is_empty(), "other results than mlx-lm's: {differing:?}");
}

#[test]
fn two_ranks_compute_what_mlx_lm_does() {
    let golden = Golden::read();
    let job = Job {
        cases: golden.cases.iter().map(|case| case.name.clone()).collect(),
        ways: vec![Way::Kernels],
        num_epochs: 1,
        num_tokens: golden.cases[0].greedy.len(),
        follows: false,
        num_layers: None,
    };
    for (rank, generated) in run_ranks(&Split::Tensor(vec![1, 1]), &job).iter().enumerate() {
        assert_eq!(generated.len(), golden.cases.len());
        for (case, generated) in golden.cases.iter().zip(generated) {
            let generated = (generated.tokens.clone(), generated.logits());
            check(case, &golden.prompt, Way::Kernels, &generated, &format!("rank {rank} of 2"));
        }
    }
}
