//! Who is admitted when: bounds that hold for every workload drawn here, counted in admissions. What
//! requests hear is the simulation's subject.

use jackalope_protocol::TokenId;

use crate::planted::{Bug, Planted};
use crate::scheduler::PASSED_OVER_MAX;
use crate::simulation::Rng;
use crate::testing::{FakeCaches, NextToken, pseudo_model};
use crate::{
    Event, Limits, Request, RequestId, RequestOptions, Scheduler, SchedulerLimits, TenantId,
};

const VOCAB_SIZE: u32 = 50;
const CONTEXT_TOKENS: u32 = 48;
const NUM_SEEDS: u64 = 300;

/// A scheduler and its ranks.
struct Queue {
    rng: Rng,
    scheduler: Scheduler,
    ranks: FakeCaches,
    model: NextToken,
    num_submitted: u64,
    /// Everyone who was admitted for the first time, in order.
    admitted: Vec<RequestId>,
}

impl Queue {
    /// A few places and some memory. No prefix is worth waiting for.
    fn new(seed: u64, planted: Planted) -> Queue {
        let mut rng = Rng::new(seed);
        let room = CONTEXT_TOKENS as usize + [0, 20, 400][rng.below(3)];
        let granule_tokens = 1 + rng.below(4);
        let limits = SchedulerLimits {
            step_tokens: 1 + rng.below(24),
            running_max: 1 + rng.below(6),
            granule_tokens,
            keep_prefixes: false,
            ..SchedulerLimits::new(VOCAB_SIZE, room.div_ceil(granule_tokens))
        };
        Queue {
            rng,
            scheduler: Scheduler::with_planted(limits, planted),
            ranks: FakeCaches::new(granule_tokens),
            model: pseudo_model(VOCAB_SIZE),
            num_submitted: 0,
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
        let limits = Limits {
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

    /// One step and its answer.
    fn step(&mut self) {
        let plan = self.scheduler.plan().expect("there is something to do");
        let output = self.ranks.execute(&plan, &mut self.model);
        self.scheduler.commit(output).expect("the ranks answer what they were asked");
        for (id, event) in self.scheduler.take_events() {
            if let Event::Started { .. } = event {
                self.admitted.push(id);
            }
        }
    }

    /// How many others are admitted before this one, from now on.
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

/// Someone else's 200 requests hold up a single one by two admissions at most.
fn hold_up(seed: u64, planted: Planted) {
    let mut queue = Queue::new(seed, planted);
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

/// Requests of other priorities and tenants that never cease overtake nobody for ever.
fn overtake(seed: u64, planted: Planted) {
    let mut queue = Queue::new(seed, planted);
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
    // Those that were preempted count as admitted when they were admitted first.
    let bound = (num_older + 1) * (PASSED_OVER_MAX as usize + 1);
    let before = queue.admissions_before(least, crowd);
    assert!(before < bound, "seed {seed}: {before} requests go first, the bound is {bound}");
}

#[test]
fn a_tenant_with_many_requests_does_not_hold_up_another() {
    (1..=NUM_SEEDS).for_each(|seed| hold_up(seed, Planted::default()));
}

#[test]
fn nobody_is_overtaken_for_ever() {
    (1..=NUM_SEEDS).for_each(|seed| overtake(seed, Planted::default()));
}

#[test]
fn both_bounds_find_the_mistakes_they_are_for() {
    let fails = |run: fn(u64, Planted), bug: Bug| {
        let planted = Planted { bug: Some(bug) };
        (1..=20).any(|seed| std::panic::catch_unwind(|| run(seed, planted)).is_err())
    };
    assert!(fails(hold_up, Bug::TenantsIgnored), "a tenant is held up");
    assert!(fails(overtake, Bug::NeverAged), "a request is overtaken for ever");
}

/// The order in which requests that wait together are admitted, one at a time.
fn order(requests: &[(u32, i32)]) -> Vec<u64> {
    let mut queue = Queue::new(1, Planted::default());
    queue.scheduler = Scheduler::new(SchedulerLimits {
        running_max: 1,
        keep_prefixes: false,
        ..SchedulerLimits::new(VOCAB_SIZE, 1)
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
