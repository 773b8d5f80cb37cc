//! Runs the scheduler against fake ranks under a random workload, from a seed. Every failure found
//! here replays from its seed alone.
//!
//! The property that everything else follows from: the events of a request do not depend on what
//! else runs, nor on how it was batched, chunked, preempted, planned ahead, started from another's
//! cache, or interrupted by a crash of the ranks. If one request makes the ranks fail whenever they
//! reach a certain position of it, that request ends soon, and no other does. In addition: the fake
//! ranks, which know only the plans, never get one that they cannot execute; by their own count,
//! the memory never exceeds the budget and always equals the coordinator's count; nothing leaks;
//! nothing waits forever. One model in three has layers with states, which the fake ranks cut and
//! copy only where they keep them, and three in five have layers with windows, of which the fake ranks
//! read no block that is freed.
//!
//! `cargo xtask mutants` applies the mutations of `tests/mutations` one at a time, and the tests
//! here and in `fairness` have to find each.

mod models;
mod random_constraint;

use std::collections::{HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};

use jackalope_protocol::{CacheId, Pooling, PressureTier, StepOutput, StepPlan, TokenId};

use crate::constraint::{AllowedTokens, ConstraintFault, TokenConstraint, TokenMask};
use crate::testing::{
    FakeCaches, NOT_A_NUMBER, NextToken, overflowing_model, pseudo_embedding, pseudo_logprob,
};
use crate::{
    CacheDemand, CacheScope, Event, FinishReason, PrefixStats, Request, RequestId, RequestLimits,
    RequestOptions, SamplingOptions, ScheduleStats, Scheduler, SchedulerLimits, TenantId, Usage,
};
use models::{STATE_SIZES, capacity, model_of, window_of};
use random_constraint::RandomConstraint;

const VOCAB_SIZE: u32 = 50;
const CONTEXT_TOKENS: u32 = 48;

/// Numbers of pipeline stages.
const NUM_STAGES: [usize; 4] = [1, 1, 2, 4];

/// Number of requests per run.
const NUM_REQUESTS: usize = 24;

/// Maximum number of failures before a poisonous request has ended; it may make a little progress
/// in some.
const POISON_FAILURES_MAX: usize = 30;

/// Number of seeds; `JACKALOPE_SIMULATION_SEEDS` sets another one.
const NUM_SEEDS: u64 = 20_000;

/// The first of these seeds, which search for the mutations of `tests/mutations`.
const SEARCH_SEEDS: u64 = 3000;

/// The first of these, which also search for requests that wait forever.
const SEARCH_STARVE_SEEDS: u64 = 60;

#[test]
fn batching_is_invisible() {
    #[expect(
        clippy::disallowed_methods,
        reason = "a longer run at night is asked for from outside"
    )]
    let num_seeds = std::env::var("JACKALOPE_SIMULATION_SEEDS")
        .map_or(NUM_SEEDS, |num| num.parse().expect("a number of seeds"));
    let next_seed = AtomicU64::new(SEARCH_SEEDS + 1);
    let num_threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..num_threads {
            scope.spawn(|| {
                loop {
                    let seed = next_seed.fetch_add(1, Ordering::Relaxed);
                    if num_seeds < seed {
                        return;
                    }
                    check_seed(seed, run);
                    check_seed(seed, run_with_failures);
                }
            });
        }
    });
}

#[test]
fn nothing_waits_for_ever_under_endless_load() {
    (1..=1000).for_each(|seed| check_seed(seed, starve));
}

/// `cargo xtask mutants` expects this test to fail under every mutation. It takes the seeds in
/// order, so that it ends with the first one that shows the mistake.
#[test]
fn the_seeds_of_the_mutation_search_find_nothing() {
    for seed in 1..=SEARCH_SEEDS {
        check_seed(seed, run);
        check_seed(seed, run_with_failures);
        if seed <= SEARCH_STARVE_SEEDS {
            check_seed(seed, starve);
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_events() {
    let events = || {
        let clients = Simulation::new(7).run_to_end();
        clients.into_iter().map(|client| client.events).collect::<Vec<_>>()
    };
    assert_eq!(events(), events());
}

/// Counts the rare events that the other tests are about, for models that can start from any length of
/// a cache, and for models with states or windows; without them these would prove nothing.
#[test]
fn every_kind_of_trouble_occurs() {
    for keeps_lengths in [false, true] {
        let mut prefix = PrefixStats::default();
        let mut stats = ScheduleStats::default();
        let keeps = |seed: &u64| !STATE_SIZES[model_of(*seed)].is_empty() || 0 < window_of(*seed);
        let seeds = (1..=1200).filter(|seed| keeps(seed) == keeps_lengths);
        for seed in seeds {
            let mut simulation = Simulation::new(seed);
            simulation.crash_odds = 0;
            let (of_caches, of_steps) = simulation.count_to_end();
            prefix.forked += of_caches.forked;
            prefix.taken_over += of_caches.taken_over;
            prefix.evicted += of_caches.evicted;
            prefix.kept_lengths += of_caches.kept_lengths;
            prefix.forgotten_lengths += of_caches.forgotten_lengths;
            stats.preemptions += of_steps.preemptions;
            stats.dropped_tokens += of_steps.dropped_tokens;
        }
        let counts = [prefix.forked, prefix.taken_over, prefix.evicted, stats.preemptions];
        assert!(counts.iter().all(|count| 100 < *count), "{prefix:?} {stats:?}");
        assert!(100 < stats.dropped_tokens, "{stats:?}");
        let of_lengths = [prefix.kept_lengths, prefix.forgotten_lengths];
        assert!(of_lengths.iter().all(|count| keeps_lengths == (100 < *count)), "{prefix:?}");
    }
}

/// Runs `check` with a seed. If it fails, names the seed, which the failed assertion need not do.
pub(crate) fn check_seed(seed: u64, check: impl Fn(u64)) {
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| check(seed)));
    if let Err(panic) = outcome {
        eprintln!("failing seed: {seed}");
        std::panic::resume_unwind(panic);
    }
}

/// Runs one workload to its end and compares every request with the same request alone.
fn run(seed: u64) {
    let clients = Simulation::new(seed).run_to_end();
    check(seed, &clients);
}

/// Like [`run`], with external crashes, also in bursts, and in most runs with a request that makes
/// the ranks fail.
fn run_with_failures(seed: u64) {
    let mut simulation = Simulation::new(seed);
    simulation.crash_odds = [6, 15, 60][simulation.rng.below(3)];
    simulation.poison = (simulation.rng.below(4) != 0).then(|| {
        let client = simulation.rng.below(NUM_REQUESTS);
        Poison { client, position: simulation.rng.below(20), num_failures: 0 }
    });
    check(seed, &simulation.run_to_end());
}

fn check(seed: u64, clients: &[Client]) {
    for (idx, client) in clients.iter().enumerate() {
        let context = format!("seed {seed}, request {idx}: {:?}", client.request);
        let alone = generate_alone(&client.request, client.constraint.clone());
        let events = normalised(&client.request, &client.events, &context);
        if client.is_cancelled {
            assert!(alone.starts_with(&events), "{context}\nreceived {events:?}\nalone {alone:?}");
        } else {
            assert_eq!(events, alone, "{context}");
        }
    }
}

/// A request and the events it received.
#[derive(Debug)]
struct Client {
    request: Request,
    constraint: Option<RandomConstraint>,
    events: Vec<Event>,
    is_cancelled: bool,
    /// Number of times it has made the ranks fail.
    num_failures: usize,
}

impl Client {
    fn is_over(&self) -> bool {
        self.is_cancelled || self.events.last().is_some_and(Event::is_last)
    }
}

/// The ranks fail when they compute this position of this client's request.
#[derive(Clone, Copy, Debug)]
struct Poison {
    client: usize,
    position: usize,
    num_failures: usize,
}

struct Simulation {
    rng: Rng,
    seed: u64,
    scheduler: Scheduler,
    block_tokens: usize,
    /// Sizes of the states of a sequence, in blocks, on each rank; none without states.
    state_sizes: Vec<u64>,
    /// Number of positions that a query sees in layers with windows; 0 without such layers.
    window_tokens: usize,
    lookahead: bool,
    /// Number of groups of decoding sequences that alternate in a pipeline.
    num_groups: usize,
    /// Number of steps in a row in which a sequence could have decoded but had no row.
    passed_over: HashMap<CacheId, usize>,
    ranks: FakeCaches,
    model: NextToken,
    /// Outputs that have not reached the scheduler; `None` is a failure of the ranks.
    outputs: VecDeque<Option<StepOutput>>,
    /// The request that makes ranks fail, if there is one.
    poison: Option<Poison>,
    /// Number of external crashes since a request's last token that happened with only this request
    /// in flight.
    met_alone: HashMap<RequestId, usize>,
    clients: Vec<Client>,
    /// Common beginnings of prompts.
    openings: Vec<Vec<TokenId>>,
    /// Inverse probability of a crash per step; 0 is never.
    crash_odds: usize,
    /// Number of crashes left. A crash undoes the progress of a prompt, so endless crashes could
    /// make a run endless.
    num_crashes_left: usize,
    cancel_odds: usize,
    /// Inverse probability per step that the memory pressure changes; 0 is never.
    pressure_odds: usize,
    pressure: PressureTier,
    /// Inverse probability per step that steps which only read prompts may have another number of tokens; 0 is never.
    prompt_step_odds: usize,
    /// Maximum number of tokens of all other steps.
    step_tokens: usize,
    num_steps: usize,
}

impl Simulation {
    fn new(seed: u64) -> Simulation {
        let mut rng = Rng::new(seed);
        let block_tokens = 1 + rng.below(5);
        // Even the longest sequence fits alone; often little more does.
        let room = CONTEXT_TOKENS as usize + [0, 10, 60, 400][rng.below(4)];
        let state_sizes = STATE_SIZES[model_of(seed)].to_vec();
        let window_tokens = window_of(seed);
        let capacity = capacity(room.div_ceil(block_tokens), &state_sizes, window_tokens, seed);
        let limits = SchedulerLimits {
            step_tokens: 1 + rng.below(24),
            running_max: 1 + rng.below(7),
            vocab_size: VOCAB_SIZE,
            capacity: capacity.clone(),
            block_tokens,
            least_prefix_tokens: 1 + rng.below(6),
            keep_prefixes: rng.below(8) != 0,
            lattice_tokens: [0, 4, 9][(seed % 3) as usize],
            lookahead: rng.below(8) != 0,
            num_stages: NUM_STAGES[(seed / 5 % 4) as usize],
        };
        let (lookahead, num_stages) = (limits.lookahead, limits.num_stages);
        let step_tokens = limits.step_tokens;
        let openings = (0..3).map(|_| random_tokens(&mut rng, 14)).collect();
        Simulation {
            seed,
            scheduler: Scheduler::new(limits),
            block_tokens,
            state_sizes,
            window_tokens,
            num_groups: if lookahead { num_stages } else { 1 },
            passed_over: HashMap::new(),
            lookahead,
            ranks: FakeCaches::with_capacity(block_tokens, capacity),
            model: overflowing_model(VOCAB_SIZE),
            outputs: VecDeque::new(),
            poison: None,
            met_alone: HashMap::new(),
            clients: Vec::new(),
            openings,
            crash_odds: [0, 0, 15, 60][rng.below(4)],
            num_crashes_left: 60,
            cancel_odds: [0, 12, 40][rng.below(3)],
            pressure_odds: [0, 0, 30, 8][(seed / 3 % 4) as usize],
            pressure: PressureTier::Normal,
            prompt_step_odds: [0, 0, 6][(seed / 7 % 3) as usize],
            step_tokens,
            num_steps: 0,
            rng,
        }
    }

    fn run_to_end(mut self) -> Vec<Client> {
        self.run();
        self.clients
    }

    fn count_to_end(mut self) -> (PrefixStats, ScheduleStats) {
        self.run();
        (self.scheduler.prefix_stats(), self.scheduler.stats())
    }

    fn run(&mut self) {
        while self.clients.len() < NUM_REQUESTS || self.clients.iter().any(|it| !it.is_over()) {
            while self.clients.len() < NUM_REQUESTS && self.rng.below(3) == 0 {
                self.submit_some(NUM_REQUESTS);
            }
            if 0 < self.cancel_odds && self.rng.below(self.cancel_odds) == 0 {
                self.cancel_one();
            }
            if self.rng.below(40) == 0 {
                self.scheduler.clear_prefixes();
                assert_eq!(self.scheduler.num_kept(), 0, "seed {}", self.seed);
            }
            if 0 < self.crash_odds && self.rng.below(self.crash_odds) == 0 {
                let num_crashes = [1, 1, 2, 6][self.rng.below(4)];
                for _ in 0..num_crashes {
                    self.crash();
                    (0..self.rng.below(4)).for_each(|_| self.turn());
                }
            }
            if 0 < self.pressure_odds && self.rng.below(self.pressure_odds) == 0 {
                self.press();
            }
            if 0 < self.prompt_step_odds && self.rng.below(self.prompt_step_odds) == 0 {
                self.scheduler.set_prompt_step_tokens(self.rng.below(4 * self.step_tokens));
            }
            self.turn();
        }
        // The steps in flight are still committed, and the last drops still reach the ranks.
        while !self.scheduler.is_idle() {
            self.turn();
        }
        assert_eq!(self.ranks.num_caches(), self.scheduler.num_kept(), "seed {}", self.seed);
        let used = self.scheduler.used_and_kept().0;
        assert_eq!(used, CacheDemand::default(), "seed {}", self.seed);
    }

    /// Plans a step or commits an output, at random.
    fn turn(&mut self) {
        self.num_steps += 1;
        assert!(self.num_steps < 20_000, "seed {}: requests never end", self.seed);
        let plans_first = self.rng.below(3) != 0;
        if plans_first && self.scheduler.may_plan() && self.plan() {
            return;
        }
        if let Some(output) = self.outputs.pop_front() {
            match output {
                Some(output) => {
                    let applied = self.scheduler.commit(output);
                    applied.expect("the ranks answer what they were asked");
                    self.scheduler.ask_constraints();
                    self.listen();
                }
                None => self.fail(),
            }
        } else if self.scheduler.may_plan() && !self.plan() {
            let (waiting, running) = self.scheduler.num_waiting_and_running();
            assert_eq!((waiting, running), (0, 0), "seed {}: stuck", self.seed);
        }
    }

    /// Changes the memory pressure, and checks that it preempts only the least important sequences.
    fn press(&mut self) {
        use PressureTier::{Critical, Normal, Warn};
        let before = self.scheduler.running_caches();
        self.pressure = [Normal, Normal, Warn, Critical][self.rng.below(4)];
        self.scheduler.set_pressure(self.pressure);
        let after = self.scheduler.running_caches();
        let num_left =
            if self.pressure == Critical { before.len().div_ceil(2) } else { before.len() };
        assert_eq!(after, before[..num_left], "seed {}: {:?}", self.seed, self.pressure);
    }

    /// Checks that under pressure no cache is kept, and no sequence is admitted beside another.
    fn check_pressure(&self, num_running_before: usize) {
        if self.pressure == PressureTier::Normal {
            return;
        }
        let num_running = self.scheduler.num_waiting_and_running().1;
        assert!(num_running <= num_running_before.max(1), "seed {}: admitted", self.seed);
        assert_eq!(self.scheduler.num_kept(), 0, "seed {}: kept", self.seed);
    }

    fn plan(&mut self) -> bool {
        let before = self.scheduler.running_caches();
        let Some(plan) = self.scheduler.plan() else { return false };
        if self.scheduler.is_isolating() {
            self.passed_over.clear();
        } else {
            self.check_fairness(&before, &plan);
        }
        self.check_pressure(before.len());
        let is_fatal = matches!(self.outputs.back(), Some(None)) || self.is_poisoned(&plan);
        let output = self.ranks.execute(&plan, &mut self.model);
        self.outputs.push_back((!is_fatal).then_some(output));
        let (used, kept) = self.scheduler.used_and_kept();
        assert_eq!(self.ranks.demand(), used + kept, "seed {}: memory differs", self.seed);
        self.listen();
        true
    }

    /// Checks that the most important and oldest sequence is never preempted, and that no prompt
    /// holds up a decoding sequence. In a pipeline, this one has a turn before all others have had
    /// two.
    fn check_fairness(&mut self, before: &[(CacheId, bool)], plan: &StepPlan) {
        let after = self.scheduler.running_caches();
        let runs = |wanted: CacheId| after.iter().any(|(cache, _)| *cache == wanted);
        let seed = self.seed;
        assert!(before.first().is_none_or(|(first, _)| runs(*first)), "seed {seed}: {before:?}");
        let mut passed_over = HashMap::new();
        for (cache, is_decoding) in before {
            let has_row = plan.rows.iter().any(|row| row.cache == *cache);
            if *is_decoding && !has_row && runs(*cache) {
                let times = self.passed_over.get(cache).copied().unwrap_or(0) + 1;
                assert!(times < 2 * self.num_groups - 1, "seed {seed}: {cache:?} is held up");
                passed_over.insert(*cache, times);
            }
        }
        self.passed_over = passed_over;
    }

    fn listen(&mut self) {
        for (id, event) in self.scheduler.take_events() {
            let client = &mut self.clients[id.0 as usize];
            assert!(!client.is_cancelled, "seed {}: {event:?} after a cancel", self.seed);
            if let Event::Token { .. } = event {
                self.met_alone.remove(&id);
            }
            client.events.push(event);
        }
    }

    /// Returns true if executing this plan makes the ranks fail.
    fn is_poisoned(&self, plan: &StepPlan) -> bool {
        let Some(Poison { client, position, .. }) = self.poison else { return false };
        let cache = self.scheduler.cache_of(RequestId(client as u64));
        plan.rows.iter().any(|row| {
            let start = row.start as usize;
            Some(row.cache) == cache && (start..start + row.input.len()).contains(&position)
        })
    }

    /// Makes the ranks fail because of the poisonous request.
    fn fail(&mut self) {
        let poison = self.poison.as_mut().expect("nothing else ends the ranks so");
        poison.num_failures += 1;
        let Poison { client, num_failures, .. } = *poison;
        assert!(num_failures < POISON_FAILURES_MAX, "seed {}: it is not ended", self.seed);
        self.clients[client].num_failures += 1;
        self.lose_ranks();
    }

    /// Makes the ranks fail; checks that the scheduler gives up no request but the poisonous one.
    fn lose_ranks(&mut self) {
        self.ranks.clear();
        self.outputs.clear();
        self.passed_over.clear();
        for id in self.scheduler.ranks_failed() {
            let client = &mut self.clients[id.0 as usize];
            assert_eq!(Some(id.0 as usize), self.poison.map(|it| it.client), "seed {}", self.seed);
            assert!(0 < client.num_failures, "seed {}: ended too early", self.seed);
            client.is_cancelled = true;
        }
    }

    /// Loses the ranks, through a failure or because machines leave and join.
    fn crash(&mut self) {
        if self.num_crashes_left == 0 {
            return;
        }
        self.num_crashes_left -= 1;
        let in_flight = self.scheduler.ids_in_flight();
        // A request that crashes hit repeatedly while it is alone cannot be distinguished from a
        // poisonous one.
        let mut is_met_again = false;
        if let [id] = in_flight[..] {
            let num_met = self.met_alone.entry(id).or_default();
            *num_met += 1;
            is_met_again = 2 < *num_met;
        }
        if is_met_again {
            self.ranks.clear();
            self.outputs.clear();
            self.passed_over.clear();
            self.scheduler.ranks_restarted();
        } else {
            self.lose_ranks();
        }
        if self.rng.below(3) == 0 {
            self.plan_anew();
        }
        self.listen();
    }

    /// Restarts the ranks with other memory, because machines left or came back. Requests that no
    /// longer fit are given up; all others are unaffected.
    fn plan_anew(&mut self) {
        let room =
            [CONTEXT_TOKENS as usize / 2, CONTEXT_TOKENS as usize, 60, 400][self.rng.below(4)];
        let num_blocks = room.div_ceil(self.block_tokens);
        let choice = self.num_steps as u64;
        let capacity = capacity(num_blocks, &self.state_sizes, self.window_tokens, choice);
        self.ranks = FakeCaches::with_capacity(self.block_tokens, capacity.clone());
        let num_stages = NUM_STAGES[self.rng.below(4)];
        self.num_groups = if self.lookahead { num_stages } else { 1 };
        for id in self.scheduler.set_ranks(capacity, num_stages) {
            self.clients[id.0 as usize].is_cancelled = true;
        }
    }

    fn cancel_one(&mut self) {
        if self.clients.is_empty() {
            return;
        }
        let idx = self.rng.below(self.clients.len());
        let was_open = !self.clients[idx].is_over();
        assert_eq!(self.scheduler.cancel(RequestId(idx as u64)), was_open, "seed {}", self.seed);
        self.clients[idx].is_cancelled |= was_open;
    }

    /// Submits one request, or several that differ only in their seeds, as `n` choices do.
    fn submit_some(&mut self, most: usize) {
        let options = self.random_options();
        let num_choices = if self.rng.below(6) == 0 { 1 + self.rng.below(4) } else { 1 };
        let constraint = (self.rng.below(3) == 0).then(|| RandomConstraint::new(&mut self.rng));
        for _ in 0..num_choices.min(most - self.clients.len()) {
            let mut options = options.clone();
            options.sampling.seed = Some(self.rng.below(1000) as u64);
            self.submit(options, constraint.clone());
        }
    }

    fn submit(&mut self, options: RequestOptions, constraint: Option<RandomConstraint>) {
        let limits = RequestLimits {
            context_tokens: CONTEXT_TOKENS,
            max_prompt_tokens: CONTEXT_TOKENS,
            vocab_size: VOCAB_SIZE,
            eos_tokens: vec![49],
        };
        let mut request = Request::new(options, &limits).expect("a legal request");
        if let Some(constraint) = &constraint {
            request = request.with_constraint(constraint.clone_boxed());
        }
        let is_cancelled = !self.scheduler.could_hold(&request);
        if !is_cancelled {
            self.scheduler.submit(RequestId(self.clients.len() as u64), request.clone());
            self.scheduler.ask_constraints();
        }
        self.clients.push(Client {
            request,
            constraint,
            events: Vec::new(),
            is_cancelled,
            num_failures: 0,
        });
        self.listen();
    }

    fn random_options(&mut self) -> RequestOptions {
        let prompt = self.random_prompt();
        let stable_tokens = self.num_steps * 7 % (2 * prompt.len());
        // A request for more tokens than the context has room for is refused.
        let room = CONTEXT_TOKENS - prompt.len() as u32;
        let rng = &mut self.rng;
        let mut one_in = |odds: usize| rng.below(odds) == 0;
        let (is_scored, has_logprobs) = (one_in(6), one_in(6));
        let (ignore_eos, stepwise, is_empty) = (one_in(4), one_in(6), one_in(12));
        let (is_eager, is_bound) = (!one_in(4), one_in(8));
        let embed = [None, None, None, None, None, None, Some(Pooling::Mean), Some(Pooling::Last)];
        let embed = embed[rng.below(8)];
        let is_empty = is_empty || embed.is_some();
        let max_tokens = if is_empty { 0 } else { 1 + rng.below(15) as u32 };
        RequestOptions {
            prompt,
            max_tokens: Some(max_tokens),
            sampling: SamplingOptions::default(),
            stop_tokens: vec![rng.below(VOCAB_SIZE as usize) as TokenId],
            ignore_eos,
            min_tokens: match is_eager {
                true => 0,
                false => room.min(rng.below(max_tokens as usize + 1) as u32),
            },
            allowed_tokens: is_bound.then(|| random_tokens_exact(rng, 20)),
            banned_tokens: vec![],
            logprobs: has_logprobs.then_some(2),
            prompt_logprobs: is_scored.then_some(1),
            stepwise,
            embed,
            priority: rng.below(4) as i32 - 2,
            tenant: [None, Some(TenantId(1)), Some(TenantId(2))][rng.below(3)],
            cache_scope: [CacheScope(0), CacheScope(0), CacheScope(1)][rng.below(3)],
            stable_tokens: stable_tokens as u32,
        }
    }

    /// Returns the next turn of a conversation, a common beginning with a new end, or a new prompt.
    fn random_prompt(&mut self) -> Vec<TokenId> {
        let mut prompt = match self.rng.below(4) {
            0 if !self.clients.is_empty() => {
                let client = &self.clients[self.rng.below(self.clients.len())];
                let sampled = client.events.iter().filter_map(|event| match event {
                    Event::Token { token, .. } => Some(*token),
                    _ => None,
                });
                client.request.prompt().iter().copied().chain(sampled).collect()
            }
            1 | 2 => self.openings[self.rng.below(self.openings.len())].clone(),
            _ => Vec::new(),
        };
        prompt.truncate(28);
        prompt.extend(random_tokens(&mut self.rng, 6));
        prompt
    }
}

/// Runs a long request among short ones, or a short one among long ones. The others never cease and
/// may be more important. The single request has to end within a bounded number of steps.
fn starve(seed: u64) {
    const STEPS_MAX: usize = 1500;
    let mut simulation = Simulation::new(seed);
    (simulation.crash_odds, simulation.cancel_odds) = (0, 0);
    let rng = &mut simulation.rng;
    let is_long = rng.below(2) == 0;
    let long = (random_tokens_exact(rng, 30), 14);
    let short = (random_tokens_exact(rng, 2), 14);
    let (witness, crowd) = if is_long { (long, short) } else { (short, long) };
    let importance = rng.below(2) as i32;
    let options = |(mut prompt, max_tokens): (Vec<TokenId>, u32), rng: &mut Rng| {
        prompt[0] = rng.below(VOCAB_SIZE as usize) as TokenId;
        RequestOptions {
            prompt,
            max_tokens: Some(max_tokens),
            ignore_eos: true,
            sampling: SamplingOptions {
                seed: Some(rng.below(1000) as u64),
                ..SamplingOptions::default()
            },
            ..RequestOptions::default()
        }
    };
    let mut witness_idx = None;
    for step in 0..STEPS_MAX {
        let (waiting, _) = simulation.scheduler.num_waiting_and_running();
        if waiting < 4 {
            let next = options(crowd.clone(), &mut simulation.rng);
            simulation.submit(RequestOptions { priority: -importance, ..next }, None);
        }
        if step == 20 {
            witness_idx = Some(simulation.clients.len());
            let next = options(witness.clone(), &mut simulation.rng);
            simulation.submit(next, None);
        }
        simulation.turn();
        if witness_idx.is_some_and(|idx| simulation.clients[idx].is_over()) {
            return;
        }
    }
    panic!("seed {seed}: a request waits for ever");
}

/// Returns the events that `request` must receive. The loop is so simple that it is its own
/// specification.
fn generate_alone(request: &Request, mut constraint: Option<RandomConstraint>) -> Vec<Event> {
    let mut model = overflowing_model(VOCAB_SIZE);
    let mut tokens = request.prompt().to_vec();
    let mut events = vec![Event::Started { cached_tokens: 0, miss: None }];
    if let Some(num_top) = request.prompt_logprobs() {
        let logprob = |idx: usize| pseudo_logprob(&tokens[..idx], tokens[idx], num_top);
        events.push(Event::PromptScored { logprobs: (1..tokens.len()).map(logprob).collect() });
    }
    if let Some(pooling) = request.embed() {
        let is_number = model(&tokens, request.sampling()) != NOT_A_NUMBER;
        let vector = pseudo_embedding(&tokens, pooling);
        let nothing = Event::NotANumber { completion_tokens: 0 };
        events.push(if is_number { Event::Embedded { vector } } else { nothing });
        if !is_number {
            return events;
        }
    }
    let prompt_tokens = tokens.len() as u32;
    let mut usage = Usage { prompt_tokens, ..Usage::default() };
    let mut reason = FinishReason::Length;
    while usage.completion_tokens < request.max_tokens() && reason != FinishReason::Stop {
        let mut sampling = request.sampling().clone();
        let may_end = request.min_tokens() <= usage.completion_tokens;
        sampling.mask = request.mask(may_end).clone();
        if let Some(constraint) = &mut constraint {
            let mut mask = TokenMask::all(VOCAB_SIZE);
            match constraint.allowed(&mut mask) {
                Ok(AllowedTokens::All) => {}
                Ok(AllowedTokens::NotEnd) => sampling.mask = request.mask(false).clone(),
                Ok(AllowedTokens::Masked) if mask.is_empty() => {
                    reason = FinishReason::Stop;
                    continue;
                }
                Ok(AllowedTokens::Masked) => {
                    request.token_mask().iter().for_each(|bound| mask.intersect(bound));
                    if mask.is_empty() {
                        return constraint_failed(events, usage.completion_tokens);
                    }
                    let ends = if may_end { &[] } else { request.stop_tokens() };
                    sampling.mask = mask.without(ends).to_mask();
                }
                Err(_) => return constraint_failed(events, usage.completion_tokens),
            }
        }
        let token = model(&tokens, &sampling);
        if token == NOT_A_NUMBER {
            let completion_tokens = usage.completion_tokens;
            events.push(Event::NotANumber { completion_tokens });
            return events;
        }
        let logprob =
            request.sampling().logprobs.map(|num_top| pseudo_logprob(&tokens, token, num_top));
        tokens.push(token);
        usage.completion_tokens += 1;
        let accepted = constraint.as_mut().map_or(Ok(()), |constraint| constraint.accept(token));
        events.push(Event::Token { token, logprob });
        if request.stops_at(token) {
            reason = FinishReason::Stop;
        } else if accepted.is_err() && usage.completion_tokens < request.max_tokens() {
            return constraint_failed(events, usage.completion_tokens);
        }
    }
    events.push(Event::Finished { reason, usage });
    events
}

fn constraint_failed(mut events: Vec<Event>, completion_tokens: u32) -> Vec<Event> {
    let fault = ConstraintFault::Internal;
    events.push(Event::ConstraintFailed { message: String::new(), fault, completion_tokens });
    events
}

/// Returns the events without what may differ: the numbers of cached tokens and of preemptions, and
/// the message of a failed constraint.
fn normalised(request: &Request, events: &[Event], context: &str) -> Vec<Event> {
    let mut found = None;
    let normalise = |event: &Event| match event {
        Event::Started { cached_tokens, miss } => {
            assert!((*cached_tokens as usize) < request.prompt().len(), "{context}");
            let is_whole = *cached_tokens as usize + 1 == request.prompt().len();
            assert!(!is_whole || miss.is_none(), "{context}");
            assert!(miss.is_none_or(|it| *cached_tokens <= it.diverged_at), "{context}");
            found = Some((*cached_tokens, *miss));
            Event::Started { cached_tokens: 0, miss: None }
        }
        Event::Finished { reason, usage } => {
            assert_eq!(Some((usage.cached_tokens, usage.prefix_miss)), found, "{context}");
            Event::Finished {
                reason: *reason,
                usage: Usage { cached_tokens: 0, prefix_miss: None, preemptions: 0, ..*usage },
            }
        }
        Event::ConstraintFailed { completion_tokens, .. } => Event::ConstraintFailed {
            message: String::new(),
            fault: ConstraintFault::Internal,
            completion_tokens: *completion_tokens,
        },
        other => other.clone(),
    };
    events.iter().map(normalise).collect()
}

fn random_tokens(rng: &mut Rng, most: usize) -> Vec<TokenId> {
    let len = 1 + rng.below(most);
    random_tokens_exact(rng, len)
}

fn random_tokens_exact(rng: &mut Rng, len: usize) -> Vec<TokenId> {
    (0..len).map(|_| rng.below(VOCAB_SIZE as usize) as TokenId).collect()
}

/// Xorshift (Marsaglia 2003): small, and the same on every machine.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}
