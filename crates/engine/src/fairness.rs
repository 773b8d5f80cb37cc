//! Checks the order of admission: bounds, counted in admissions, that hold for every random
//! workload here. The simulation checks the events of the requests.

use jackalope_protocol::TokenId;

use crate::scheduler::PASSED_OVER_MAX;
use crate::simulation::{Rng, check_seed};
use crate::testing::{FakeCaches, NextToken, pseudo_model};
use crate::{
    CacheCapacity, Event, Request, RequestId, RequestLimits, RequestOptions, Scheduler,
    SchedulerLimits, TenantId,
};

const VOCAB_SIZE: u32 = 50;
const CONTEXT_TOKENS: u32 = 48;
const NUM_SEEDS: u64 = 300;

/// The first of these seeds, which search for the mutations of `tests/mutations`.
const SEARCH_SEEDS: u64 = 20;

/// Maximum number of steps of one queue, so that a scheduler that admits nobody fails a test
/// instead of blocking it.
const STEPS_MAX: usize = 50_000;

/// A scheduler with fake ranks.
struct Queue {
    rng: Rng,
    scheduler: Scheduler,
    ranks: FakeCaches,
    model: NextToken,
    num_submitted: u64,
    num_steps: usize,
    /// Requests in the order of their first admission.
    admitted: Vec<RequestId>,
}

impl Queue {
    /// Creates a queue with few places and little memory. No caches are kept, so that no request
    /// waits for a prefix.
    fn new(seed: u64) -> Queue {
        let mut rng = Rng::new(seed);
        let room = CONTEXT_TOKENS as usize + [0, 20, 400][rng.below(3)];
        let block_tokens = 1 + rng.below(4);
        let limits = SchedulerLimits {
            step_tokens: 1 + rng.below(24),
            running_max: 1 + rng.below(6),
            block_tokens,
            keep_prefixes: false,
            ..SchedulerLimits::new(
                VOCAB_SIZE,
                CacheCapacity::of_blocks(room.div_ceil(block_tokens)),
            )
        };
        Queue {
            rng,
            scheduler: Scheduler::new(limits),
            ranks: FakeCaches::new(block_tokens),
            model: pseudo_model(VOCAB_SIZE),
            num_submitted: 0,
            num_steps: 0,
            admitted: Vec::new(),
        }
    }

    fn submit(&mut self, tenant: u32, priority: i32) -> RequestId {
        let len = 1 + self.rng.below(20);
        let token = |rng: &mut Rng| rng.below(VOCAB_SIZE as usize) as TokenId;
        let options = RequestOptions {
            prompt: (0..len).map(|_| token(&mut self.rng)).collect(),
            max_tokens: Some(1 + self.rng.below(12) as u32),
            tenant: Some(TenantId(tenant)),
            priority,
            ..RequestOptions::default()
        };
        let limits = RequestLimits {
            context_tokens: CONTEXT_TOKENS,
            max_prompt_tokens: CONTEXT_TOKENS,
            vocab_size: VOCAB_SIZE,
            eos_tokens: Vec::new(),
        };
        let id = RequestId(self.num_submitted);
        self.num_submitted += 1;
        self.scheduler.submit(id, Request::new(options, &limits).expect("a legal request"));
        id
    }

    /// Plans, executes and commits one step.
    fn step(&mut self) {
        self.num_steps += 1;
        assert!(self.num_steps <= STEPS_MAX, "requests never end");
        let plan = self.scheduler.plan().expect("there is something to do");
        let output = self.ranks.execute(&plan, &mut self.model);
        self.scheduler.commit(output).expect("the ranks answer what they were asked");
        for (id, event) in self.scheduler.take_events() {
            if let Event::Started { .. } = event {
                self.admitted.push(id);
            }
        }
    }

    /// Returns the number of requests that are admitted before `wanted` from now on.
    fn admissions_before(
        &mut self,
        wanted: RequestId,
        mut between: impl FnMut(&mut Queue),
    ) -> usize {
        let num_admitted = self.admitted.len();
        loop {
            let later = &self.admitted[num_admitted..];
            if let Some(place) = later.iter().position(|id| *id == wanted) {
                return place;
            }
            assert!(later.len() < 5000, "it waits for ever");
            between(self);
            self.step();
        }
    }
}

/// Checks that 200 requests of one tenant hold up a request of another by at most two admissions.
fn hold_up(seed: u64) {
    let mut queue = Queue::new(seed);
    (0..200).for_each(|_| _ = queue.submit(1, 0));
    for _ in 0..queue.rng.below(40) {
        queue.step();
    }
    for _ in 0..3 {
        let single = queue.submit(2, 0);
        let before = queue.admissions_before(single, |_| {});
        assert!(before <= 2, "seed {seed}: {before} requests go first");
    }
}

/// Checks that an endless load of other priorities and tenants does not overtake a request forever.
fn overtake(seed: u64) {
    let mut queue = Queue::new(seed);
    let num_waiting = 1 + queue.rng.below(20);
    let crowd = move |queue: &mut Queue| {
        while queue.scheduler.num_waiting_and_running().0 < num_waiting {
            let (tenant, priority) = (queue.rng.below(4), queue.rng.below(3));
            queue.submit(tenant as u32, -(priority as i32));
        }
    };
    for _ in 0..30 {
        crowd(&mut queue);
        queue.step();
    }
    let (num_older, _) = queue.scheduler.num_waiting_and_running();
    let least = queue.submit(1, i32::MAX);
    // A preempted request counts only when it is admitted first.
    let bound = (num_older + 1) * (PASSED_OVER_MAX as usize + 1);
    let before = queue.admissions_before(least, crowd);
    assert!(before < bound, "seed {seed}: {before} requests go first, the bound is {bound}");
}

#[test]
fn a_tenant_with_many_requests_does_not_hold_up_another() {
    (SEARCH_SEEDS + 1..=NUM_SEEDS).for_each(|seed| check_seed(seed, hold_up));
}

#[test]
fn no_request_is_overtaken_for_ever() {
    (SEARCH_SEEDS + 1..=NUM_SEEDS).for_each(|seed| check_seed(seed, overtake));
}

/// `cargo xtask mutants` runs this test under every mutation: together with the test of the same
/// name in the simulation, it has to find each of them.
#[test]
fn the_seeds_of_the_mutation_search_find_nothing() {
    for seed in 1..=SEARCH_SEEDS {
        check_seed(seed, hold_up);
        check_seed(seed, overtake);
    }
}

/// Returns the order in which requests that wait together are admitted, one at a time.
fn order(requests: &[(u32, i32)]) -> Vec<u64> {
    let mut queue = Queue::new(1);
    queue.scheduler = Scheduler::new(SchedulerLimits {
        running_max: 1,
        keep_prefixes: false,
        ..SchedulerLimits::new(VOCAB_SIZE, CacheCapacity::of_blocks(1))
    });
    queue.ranks = FakeCaches::default();
    requests.iter().for_each(|(tenant, priority)| _ = queue.submit(*tenant, *priority));
    while queue.admitted.len() < requests.len() {
        queue.step();
    }
    queue.admitted.iter().map(|id| id.0).collect()
}

#[test]
fn lower_priorities_go_first_then_tenants_take_turns_then_age_decides() {
    assert_eq!(order(&[(1, 0), (1, 5), (1, -3), (1, 0)]), [2, 0, 3, 1]);
    assert_eq!(order(&[(1, 0), (1, 0), (1, 0), (2, 0), (2, 0), (3, 0)]), [0, 3, 5, 1, 4, 2]);
    assert_eq!(order(&[(1, 0), (1, 0), (2, 1), (3, -1)]), [3, 0, 1, 2]);
    // The oldest is passed over seven times.
    let crowd: Vec<(u32, i32)> = std::iter::once((1, 9)).chain([(1, 0); 9]).collect();
    assert_eq!(order(&crowd), [1, 2, 3, 4, 5, 6, 7, 0, 8, 9]);
}
