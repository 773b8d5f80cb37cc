//! What happens when ranks are lost, come back, or are assigned to other machines.
//!
//! [`Attempts`] decides when ranks are replaced and when waiting requests fail;
//! [`Scheduler::ranks_failed`] decides which request makes ranks fail.

use std::collections::HashSet;
use std::time::Instant;

use jackalope_protocol::{Phase, RankFacts, counted};
use tracing::{error, info, warn};

use super::super::attempts::Attempts;
use super::super::outage::Outage;
use super::super::prompt_pace::PromptPace;
use super::super::{EngineError, RetryPolicy, capacity};
use super::Driver;
use crate::command::{Command, Message};
use crate::constraint_pool::ConstraintPool;
use crate::{
    EngineState, Event, Failure, RankGroup, RankStatus, RequestId, Scheduler, SchedulerLimits,
};

/// What is known of the ranks between two losses.
pub(super) struct Recovery {
    pub(super) attempts: Attempts,
    pub(super) outage: Outage,
    /// Facts of each rank; empty before the first start and after a change of ranks.
    pub(super) facts: Vec<RankFacts>,
    /// Whether plans may be sent.
    pub(super) is_standing: bool,
}

impl Recovery {
    pub(super) fn new(policy: RetryPolicy) -> Recovery {
        let attempts = Attempts::new(policy);
        Recovery { attempts, outage: Outage::default(), facts: Vec::new(), is_standing: false }
    }
}

impl<G: RankGroup> Driver<G> {
    /// Fails the open requests because the ranks make no progress. The ranks may still come up
    /// later.
    pub(super) fn stand_still(&mut self, now: Instant) -> Result<(), EngineError> {
        let last = match &self.reporting.status.borrow().state {
            EngineState::Recovering { failure, .. } => Some(failure.clone()),
            _ => None,
        };
        let cause = self.recovery.outage.cause(self.group.unreachable(), last);
        let failure = cause.unwrap_or_else(|| Failure {
            rank: None,
            host: None,
            phase: Phase::Starting,
            message: format!("no rank got further for {:?}", self.config.retry.standstill_max),
            last_words: String::new(),
        });
        if self.scheduler.is_none() {
            self.group.stop();
            return Err(EngineError::Start(failure));
        }
        self.fail(failure, now);
        Ok(())
    }

    /// Records that a rank is alive.
    pub(super) fn note_back(&mut self, rank: usize) {
        let host = &self.reporting.status.borrow().ranks[rank].host;
        self.recovery.outage.note_back(rank, host);
    }

    /// Handles a change of ranks: the caches of the earlier ranks are lost, as after a failure, but
    /// no rank failed.
    pub(super) fn on_reassigned(&mut self, hosts: Vec<String>, now: Instant) {
        self.steps.clear();
        let was_standing = std::mem::take(&mut self.recovery.is_standing);
        self.recovery.facts.clear();
        self.recovery.attempts.begin(now);
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.ranks_restarted();
        }
        let message = format!("the cluster is planned anew for {}", counted(hosts.len(), "rank"));
        let (phase, last_words) = (Phase::Starting, String::new());
        let failure = Failure { rank: None, host: None, phase, message, last_words };
        let ranks = RankStatus::starting(hosts, self.group.transports());
        self.reporting.status.send_modify(|status| {
            status.ranks = ranks;
            if was_standing {
                status.recovery.begin(&failure, now);
            }
            if let EngineState::Ready = status.state {
                status.state = EngineState::Recovering { since: now, failure };
            }
        });
    }

    /// Updates the capacity, which differs after a change of ranks.
    pub(super) fn on_new_ranks(
        &mut self,
        facts: &[RankFacts],
        now: Instant,
    ) -> Result<(), EngineError> {
        let capacity = match capacity::capacity(&self.config, facts) {
            Ok(capacity) => capacity,
            Err(err) => {
                let message = err.to_string();
                let (phase, last_words) = (Phase::Loading, String::new());
                let failure = Failure { rank: None, host: None, phase, message, last_words };
                return self.on_lost(failure, true, now);
            }
        };
        let scheduler = self.scheduler.as_mut().expect("there were ranks before");
        let kv = capacity::kv_status(&self.config, facts, &capacity);
        let lost = scheduler.set_ranks(capacity, num_stages(facts));
        let failure = too_little_memory(kv.capacity_tokens);
        self.send_events();
        for id in lost {
            self.reporting.fail_one(id, Event::Failed(failure.clone()));
        }
        self.reporting.modify(|status| status.kv = kv);
        Ok(())
    }

    pub(super) fn on_ready(
        &mut self,
        epoch: u64,
        facts: Vec<RankFacts>,
    ) -> Result<(), EngineError> {
        let now = Instant::now();
        if self.scheduler.is_none() {
            self.open_for_requests(&facts)?;
        } else if self.recovery.facts.is_empty() {
            self.on_new_ranks(&facts, now)?;
            self.reporting.count(|counters| counters.recoveries += 1);
        } else if let Some(rank) =
            (0..facts.len()).find(|rank| !is_same_shard(&facts[*rank], &self.recovery.facts[*rank]))
        {
            let failure = Failure {
                rank: Some(rank),
                host: None,
                phase: Phase::Loading,
                message: "it came back with another shard than before\n\
                          hint: the checkpoint was changed; restart jackalope"
                    .to_owned(),
                last_words: String::new(),
            };
            return self.on_lost(failure, true, now);
        } else {
            self.reporting.count(|counters| counters.recoveries += 1);
        }
        info!(epoch, "ranks ready");
        self.recovery.attempts.note_ready(self.owes_steps(), now);
        self.recovery.outage.end();
        self.recovery.is_standing = true;
        let encrypts = self.group.encrypts();
        self.reporting.status.send_modify(|status| {
            status.state = EngineState::Ready;
            status.start_failure = None;
            status.recovery.end(now);
            for (rank, encrypts) in status.ranks.iter_mut().zip(encrypts) {
                rank.encrypts = encrypts;
            }
            for (rank, facts) in status.ranks.iter_mut().zip(&facts) {
                (rank.phase, rank.loaded_bytes) = (Phase::Idle, None);
                rank.facts = Some(facts.clone());
            }
        });
        self.recovery.facts = facts;
        Ok(())
    }

    pub(super) fn open_for_requests(&mut self, facts: &[RankFacts]) -> Result<(), EngineError> {
        let capacity = capacity::capacity(&self.config, facts)?;
        let limits = capacity::limits(&self.config, &facts[0]);
        let kv = capacity::kv_status(&self.config, facts, &capacity);
        if let Some(wanted_tokens) = self.config.context_tokens
            && limits.context_tokens < wanted_tokens
        {
            let served_tokens = limits.context_tokens;
            warn!(wanted_tokens, served_tokens, "the model was made for a shorter context");
        }
        for (rank, cache_bytes, free_bytes) in capacity::excesses(&self.config, facts) {
            warn!(rank, cache_bytes, free_bytes, "caches may take more memory than is free");
        }
        info!(kv.budget_bytes, kv.capacity_tokens, "memory for keys and values");
        let scheduler = Scheduler::new(SchedulerLimits {
            step_tokens: self.config.step_tokens as usize,
            running_max: self.config.running_max as usize,
            keep_prefixes: self.config.keep_prefixes,
            lookahead: self.config.lookahead,
            num_stages: num_stages(facts),
            ..SchedulerLimits::new(limits.vocab_size, capacity)
        });
        if let Some(waker) = self.waker.clone() {
            // Fails if the engine has ended.
            let wake = move || drop(waker.send(Message::Command(Command::ConstraintAnswered)));
            self.constraint_pool = Some(ConstraintPool::new(wake));
        }
        self.pace = PromptPace::new(&self.config, facts);
        self.scheduler = Some(scheduler);
        self.reporting.modify(|status| {
            status.limits = Some(limits);
            status.kv = kv;
        });
        Ok(())
    }

    pub(super) fn on_lost(
        &mut self,
        failure: Failure,
        is_fatal: bool,
        now: Instant,
    ) -> Result<(), EngineError> {
        self.steps.clear();
        self.reporting.count(|counters| counters.failures += 1);
        self.recovery.attempts.note_loss(self.owes_steps(), now);
        self.recovery.outage.note_loss(&failure);
        let was_standing = std::mem::take(&mut self.recovery.is_standing);
        if was_standing {
            self.reporting.modify(|status| status.recovery.begin(&failure, now));
        }
        let Some(scheduler) = &mut self.scheduler else {
            if is_fatal || self.recovery.attempts.is_start_hopeless() {
                self.group.stop();
                return Err(EngineError::Start(failure));
            }
            warn!(rank = failure.rank, %failure, "starting failed, trying again");
            self.reporting.modify(|status| status.start_failure = Some(failure));
            self.recovery.attempts.retry(now);
            return Ok(());
        };
        let poisonous = scheduler.ranks_failed();
        for id in poisonous {
            self.end_poisonous(id, &failure);
        }
        if is_fatal {
            self.recovery.attempts.restart(now);
            self.fail(failure, now);
            return Ok(());
        }
        self.recovery.attempts.retry(now);
        if self.reporting.is_failed() {
            warn!(rank = failure.rank, %failure, "ranks lost again");
            let cause = self.recovery.outage.cause(self.group.unreachable(), Some(failure));
            self.fail(cause.expect("a rank was just lost"), now);
        } else {
            warn!(rank = failure.rank, %failure, "rank lost, replacing it");
            let failure = self.cause_of(failure);
            let state = EngineState::Recovering { since: now, failure };
            self.reporting.status.send_modify(|status| status.state = state);
        }
        Ok(())
    }

    /// Returns the failure to report for the current outage: `failure`, unless nothing but a lost
    /// connection is known of it and another rank failed earlier in the same outage. Ranks that are
    /// restarted after a failure lose their connections too.
    fn cause_of(&self, failure: Failure) -> Failure {
        match &self.reporting.status.borrow().state {
            EngineState::Recovering { failure: earlier, .. }
                if failure.is_unexplained() && earlier.rank.is_some() =>
            {
                earlier.clone()
            }
            _ => failure,
        }
    }

    /// Fails a request that made the ranks fail. The other requests continue.
    pub(super) fn end_poisonous(&mut self, id: RequestId, failure: &Failure) {
        error!(?id, rank = failure.rank, "a request makes ranks fail, and is ended");
        self.send_events();
        self.reporting.fail_one(id, Event::Poisonous(poisonous(failure)));
    }

    /// Whether there are requests to compute.
    pub(super) fn owes_steps(&self) -> bool {
        let num_open = self.scheduler.as_ref().map(Scheduler::num_waiting_and_running);
        num_open.is_some_and(|num_open| num_open != (0, 0))
    }

    /// Fails every request, and refuses new ones until the ranks are ready.
    pub(super) fn fail(&mut self, failure: Failure, now: Instant) {
        if !self.reporting.is_failed() {
            error!(rank = failure.rank, %failure, "requests end");
        }
        self.recovery.attempts.give_up();
        let reported = failure.clone();
        // The state changes first, so that a caller that sees the failure and retries is refused.
        self.reporting.status.send_modify(|status| {
            let since = match status.state {
                EngineState::Failed { since, .. } => since,
                _ => now,
            };
            status.state = EngineState::Failed { since, failure };
        });
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.give_up_all();
        }
        self.fail_all(&reported);
        self.publish();
    }
}

/// Builds the failure that is sent to a request which made the ranks fail each time they computed
/// it.
fn poisonous(last: &Failure) -> Failure {
    let message = format!(
        "this request makes ranks fail: they failed whenever they computed it, also with nothing \
         beside it; the last time: {}\n\
         hint: do not send it again as it is; if it is the rank's memory that ends, a shorter \
         prompt may do",
        last.message
    );
    Failure { phase: Phase::Computing, message, ..last.clone() }
}

/// Builds the failure of a request that fitted into the memory before machines left.
pub(super) fn too_little_memory(capacity_tokens: u64) -> Failure {
    Failure {
        rank: None,
        host: None,
        phase: Phase::Loading,
        message: format!(
            "the machines that are left have memory for {}, which is too little for this request\n\
             hint: ask for fewer tokens, or try again when all machines are back",
            counted(capacity_tokens, "token")
        ),
        last_words: String::new(),
    }
}

/// Whether two loads gave the same shard; false if the checkpoint or the split changed in between.
fn is_same_shard(a: &RankFacts, b: &RankFacts) -> bool {
    let comparable = |facts: &RankFacts| RankFacts {
        load_ms: 0,
        bytes_read: 0,
        free_bytes: 0,
        content: None,
        ..facts.clone()
    };
    // A checkpoint that has not been hashed yet has no identity to compare. Ranks then load it only
    // if its files are in the same state as at the start.
    let is_other = a.content.zip(b.content).is_some_and(|(a, b)| a != b);
    !is_other && comparable(a) == comparable(b)
}

/// Returns the number of pipeline stages: of ranks with different layers.
fn num_stages(facts: &[RankFacts]) -> usize {
    let starts: HashSet<u32> = facts.iter().map(|it| it.layers.start).collect();
    starts.len()
}

#[cfg(test)]
mod tests {
    use jackalope_protocol::UnitRange;

    use super::*;

    #[test]
    fn only_ranks_with_layers_of_their_own_are_stages() {
        let stages = |layers: &[(u32, u32)]| {
            let facts = |&(start, end): &(u32, u32)| RankFacts {
                layers: UnitRange { start, end },
                ..crate::testing::FakeOptions::default().facts
            };
            num_stages(&layers.iter().map(facts).collect::<Vec<_>>())
        };
        assert_eq!(stages(&[(0, 28)]), 1);
        assert_eq!(stages(&[(0, 28), (0, 28)]), 1, "they hold parts of the same");
        assert_eq!(stages(&[(20, 28), (9, 20), (0, 9)]), 3);
    }
}
