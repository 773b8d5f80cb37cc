//! Steps on the device: the host stays ahead of it, and what it samples is what the host would.

use std::path::Path;

use jackalope_mlx::{Group, host_counters};
use jackalope_models::{Compute, Model, Parallel};
use jackalope_protocol::split::Split;
use jackalope_protocol::{CacheId, Input, Row, RowMask, Sampling, StepOutput, StepPlan, TokenId};

use crate::step::Stepper;

/// Number of decoding steps.
const STEPS: u64 = 24;

fn model(compute: Compute) -> Model {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/jackalope-mini");
    Model::load(&dir, &Parallel::single(compute), &mut |_| {}).unwrap()
}

fn stepper() -> Stepper {
    Stepper::new(0, Group::single(), &Split::Tensor(vec![1]))
}

fn prompt(cache: u64) -> Vec<TokenId> {
    (0..5 + cache as u32 % 4).map(|idx| 300 + idx * 7 + cache as u32).collect()
}

fn row(cache: u64, start: usize, input: Input, sampling: &Sampling) -> Row {
    let num_prompt_tokens = prompt(cache).len() as u32;
    Row {
        cache: CacheId(cache),
        start: start as u32,
        input,
        keeps: false,
        sample: Some(Sampling { num_prompt_tokens, ..sampling.clone() }),
        score: None,
        embed: None,
    }
}

/// Returns the plans of a prompt step and of the steps that decode, in which the third sequence joins
/// late and the first leaves early.
fn plans(samplings: &[Sampling]) -> Vec<StepPlan> {
    let joins = |cache: u64| if cache == 2 { 3 } else { 0 };
    let is_open = |cache: u64, step: u64| joins(cache) <= step && (cache != 0 || step < 15);
    let plan = |step: u64| {
        let caches = (0..samplings.len() as u64).filter(|cache| is_open(*cache, step));
        let rows = caches.map(|cache| {
            let (sampling, prompt) = (&samplings[cache as usize], prompt(cache));
            match step - joins(cache) {
                0 => row(cache, 0, Input::Tokens(prompt), sampling),
                num_sampled => {
                    let start = prompt.len() + num_sampled as usize - 1;
                    row(cache, start, Input::Previous, sampling)
                }
            }
        });
        let rows = rows.collect();
        let drops = if step == 15 { vec![CacheId(0)] } else { Vec::new() };
        StepPlan { step, rows, drops, ..StepPlan::default() }
    };
    (0..STEPS).map(plan).collect()
}

/// Computes the plans one after the other.
fn in_turn(model: &Model, plans: &[StepPlan]) -> Vec<StepOutput> {
    let mut stepper = stepper();
    let outputs = plans.iter().map(|plan| match stepper.execute(model, plan).unwrap() {
        Some(output) => output,
        None => stepper.finish().unwrap(),
    });
    outputs.collect()
}

/// Computes the plans as the worker does: each is submitted before the one before it is finished.
fn ahead(model: &Model, plans: &[StepPlan]) -> Vec<StepOutput> {
    let (mut stepper, mut outputs) = (stepper(), Vec::new());
    for plan in plans {
        while !stepper.can_begin(model, plan) {
            outputs.push(stepper.finish().unwrap());
        }
        assert!(stepper.execute(model, plan).unwrap().is_none(), "the device samples");
        if 1 < stepper.num_pending() {
            outputs.push(stepper.finish().unwrap());
        }
    }
    outputs.push(stepper.finish().unwrap());
    outputs
}

fn tokens(outputs: &[StepOutput]) -> Vec<Vec<(CacheId, Option<TokenId>)>> {
    let of_step = |it: &StepOutput| it.sampled.iter().map(|it| (it.cache, it.token)).collect();
    outputs.iter().map(of_step).collect()
}

fn samplings() -> Vec<Sampling> {
    let warm = Sampling { temperature: 0.8, seed: 5, ..Sampling::greedy(0) };
    vec![
        Sampling::greedy(0),
        Sampling { top_p: 0.9, logprobs: Some(2), ..warm.clone() },
        Sampling { top_k: 20, seed: 6, ..warm.clone() },
        Sampling { mask: RowMask::Except((500..900).collect()), ..warm.clone() },
        Sampling { repetition_penalty: 1.3, repetition_context: 4, ..Sampling::greedy(0) },
        Sampling {
            presence_penalty: 1.5,
            frequency_penalty: 0.5,
            logit_bias: vec![(300, 4.0)],
            ..warm
        },
    ]
}

#[test]
fn steps_that_run_ahead_sample_the_tokens_of_steps_in_turn() {
    let model = model(Compute::Stock);
    let plans = plans(&samplings());
    assert_eq!(tokens(&ahead(&model, &plans)), tokens(&in_turn(&model, &plans)));
}

#[test]
fn a_sequence_samples_the_same_tokens_whatever_else_is_in_the_batch() {
    let model = model(Compute::Stock);
    let together = tokens(&ahead(&model, &plans(&samplings())));
    for (idx, sampling) in samplings().into_iter().enumerate() {
        let cache = CacheId(idx as u64);
        let plans: Vec<StepPlan> = plans(&samplings())
            .into_iter()
            .map(|mut plan| {
                plan.rows.retain(|row| row.cache == cache);
                plan.drops.retain(|it| *it == cache);
                plan
            })
            .filter(|plan| !plan.rows.is_empty())
            .collect();
        let alone: Vec<_> = tokens(&ahead(&model, &plans)).concat();
        let own = together.concat().into_iter().filter(|it| it.0 == cache);
        assert_eq!(alone, own.collect::<Vec<_>>(), "{sampling:?}");
    }
}

#[test]
fn the_host_submits_each_step_once_waits_once_and_copies_tokens_only() {
    let model = model(Compute::Stock);
    let vocab_size = u64::from(model.facts().vocab_size);
    let warm = Sampling { temperature: 0.8, top_p: 0.9, seed: 5, ..Sampling::greedy(0) };
    let penalised = Sampling { frequency_penalty: 0.5, ..warm.clone() };
    let plans = plans(&[Sampling::greedy(0), warm, penalised]);
    let mut stepper = stepper();
    let (decoding, others) = plans.split_at(plans.len() - 6);
    for plan in decoding {
        stepper.execute(&model, plan).unwrap();
        stepper.finish().unwrap();
    }
    assert!(stepper.execute(&model, &others[0]).unwrap().is_none());
    for plan in &others[1..] {
        let before = host_counters();
        assert!(stepper.can_begin(&model, plan), "nothing needs the tokens on the host");
        assert!(stepper.execute(&model, plan).unwrap().is_none());
        let begun = host_counters() - before;
        assert_eq!((begun.submissions, begun.waits, begun.bytes_read), (1, 0, 0));
        let output = stepper.finish().unwrap();
        let counted = host_counters() - before;
        assert_eq!(counted.submissions, 1);
        assert!(counted.waits <= 1, "{counted:?}");
        let copied = counted.bytes_written + counted.bytes_read;
        assert!(copied < vocab_size, "{copied} bytes for {} tokens", output.sampled.len());
        let timings = &output.timings;
        assert!(0 < timings.nodes && timings.device_waits <= 1, "{timings:?}");
        assert!(0 < timings.copied_bytes && timings.copied_bytes < vocab_size, "{timings:?}");
    }
    stepper.finish().unwrap();
}
