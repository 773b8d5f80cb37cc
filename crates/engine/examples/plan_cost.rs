//! What choosing a step costs: 256 sequences running beside a prefix index of a million tokens.
//!
//! `cargo run --release -p jackalope-engine --example plan_cost`

#![expect(clippy::print_stdout, reason = "a measurement is printed")]

use std::time::{Duration, Instant};

use jackalope_engine::{
    CacheCapacity, Request, RequestId, RequestLimits, RequestOptions, SamplingOptions, Scheduler,
    SchedulerLimits,
};
use jackalope_protocol::{Sampled, StepOutput, StepPlan, TokenId};

const VOCAB_SIZE: u32 = 100_000;
const NUM_RUNNING: usize = 256;
const NUM_KEPT: u64 = 256;
const KEPT_TOKENS: u64 = 4096;

fn main() {
    let mut bench = Bench::new();
    bench.fill_index();
    println!(
        "prefix index: {} tokens in {} kept sequences",
        bench.scheduler.num_indexed_tokens(),
        bench.scheduler.num_kept()
    );
    for idx in 0..NUM_RUNNING as u64 {
        bench.submit(prompt(1 << 40 | idx, 300), 3000);
    }
    while bench.scheduler.num_waiting_and_running().1 < NUM_RUNNING {
        bench.step();
    }
    for _ in 0..100 {
        bench.step();
    }
    let costs: Vec<Cost> = (0..2000).map(|_| bench.step()).collect();
    report("decode only", &costs);

    let round = |round| {
        // The next turn of a kept conversation takes the place of the one that ends.
        let mut tokens = prompt(round % NUM_KEPT, KEPT_TOKENS);
        tokens.extend(prompt(2 << 40 | round, 40));
        bench.replace_oldest(tokens);
        bench.step()
    };
    let costs: Vec<Cost> = (0..500).map(round).collect();
    report("decode, one request comes and goes", &costs);
    let (waiting, running) = bench.scheduler.num_waiting_and_running();
    println!(
        "in the end: {running} running, {waiting} waiting, {} tokens indexed, {:?}",
        bench.scheduler.num_indexed_tokens(),
        bench.scheduler.prefix_stats()
    );
}

struct Bench {
    scheduler: Scheduler,
    next_id: u64,
    oldest: u64,
}

struct Cost {
    plan: Duration,
    commit: Duration,
}

impl Bench {
    fn new() -> Bench {
        let limits = SchedulerLimits {
            step_tokens: 4096,
            running_max: NUM_RUNNING,
            lookahead: false,
            ..SchedulerLimits::new(VOCAB_SIZE, CacheCapacity::of_blocks(1 << 20))
        };
        Bench { scheduler: Scheduler::new(limits), next_id: 0, oldest: NUM_KEPT }
    }

    fn fill_index(&mut self) {
        for idx in 0..NUM_KEPT {
            self.submit(prompt(idx, KEPT_TOKENS), 1);
        }
        while !self.scheduler.is_idle() {
            self.step();
        }
    }

    fn submit(&mut self, prompt: Vec<TokenId>, max_tokens: u32) {
        let limits = RequestLimits {
            context_tokens: 1 << 16,
            max_prompt_tokens: 1 << 16,
            vocab_size: VOCAB_SIZE,
            eos_tokens: vec![0],
        };
        let options = RequestOptions {
            prompt,
            max_tokens: Some(max_tokens),
            sampling: SamplingOptions::greedy(),
            ..RequestOptions::default()
        };
        let request = Request::new(options, &limits).expect("a legal request");
        self.scheduler.submit(RequestId(self.next_id), request);
        self.next_id += 1;
    }

    fn replace_oldest(&mut self, prompt: Vec<TokenId>) {
        self.scheduler.cancel(RequestId(self.oldest));
        self.oldest += 1;
        self.submit(prompt, 3000);
    }

    fn step(&mut self) -> Cost {
        let begin = Instant::now();
        let Some(plan) = self.scheduler.plan() else {
            return Cost { plan: begin.elapsed(), commit: Duration::ZERO };
        };
        let planned = Instant::now();
        let output = answer(&plan);
        let answered = Instant::now();
        self.scheduler.commit(output).expect("the answer to the plan");
        drop(self.scheduler.take_events());
        Cost { plan: planned - begin, commit: answered.elapsed() }
    }
}

fn answer(plan: &StepPlan) -> StepOutput {
    let samples = plan.rows.iter().filter(|row| row.sample.is_some());
    let sampled = samples.map(|row| Sampled { cache: row.cache, token: Some(1), logprob: None });
    StepOutput { step: plan.step, sampled: sampled.collect(), ..StepOutput::default() }
}

/// Tokens that look random and differ between seeds from the start.
fn prompt(seed: u64, num_tokens: u64) -> Vec<TokenId> {
    let token = |idx: u64| {
        let hash = (seed << 20 | idx).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        1 + ((hash >> 32) % u64::from(VOCAB_SIZE - 1)) as TokenId
    };
    (0..num_tokens).map(token).collect()
}

fn report(name: &str, costs: &[Cost]) {
    let quantiles = |mut times: Vec<Duration>| {
        times.sort();
        let at = |quantile: f64| times[((times.len() - 1) as f64 * quantile) as usize];
        format!("median {:>8.1?}  p99 {:>8.1?}  max {:>8.1?}", at(0.5), at(0.99), at(1.0))
    };
    println!("{name}, {} steps", costs.len());
    println!("  plan    {}", quantiles(costs.iter().map(|cost| cost.plan).collect()));
    println!("  commit  {}", quantiles(costs.iter().map(|cost| cost.commit).collect()));
}
