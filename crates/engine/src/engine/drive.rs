//! The loop around the scheduler: handles commands, plans, sends plans, processes answers, and
//! recovers from failures.
//!
//! ```text
//!             Ready                 Lost                   no progress
//!  Starting ────────▶ Ready ─────────────────▶ Recovering ────────────────────▶ Failed
//!     │                 ▲  ◀──────── Ready ───────┘                               │
//!     │ Lost: fatal or  └──────────────────────────────────────────── Ready ──────┘
//!     ▼ too often
//!  the engine ends
//! ```
//!
//! [`Attempts`] decides when ranks are replaced and when waiting requests fail;
//! [`Scheduler::ranks_failed`] decides which request makes ranks fail.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use jackalope_protocol::{Phase, RankFacts, StepOutput};
use tokio::sync::watch;
use tracing::{debug, error, info, warn};

use super::attempts::{Attempts, Retry};
use super::pressure::{MemoryReading, PressureGuard, PressureStatus};
use super::streams::Streams;
use super::{EngineConfig, EngineError, capacity};
use crate::command::{Command, Gauges, Listener, Message, Question};
use crate::constraint_pool::ConstraintPool;
use crate::{
    Counters, EngineState, Event, Failure, GroupEvent, KvStatus, PrefixStats, RankGroup,
    RankStatus, RecoveryStats, Reporter, Request, RequestId, RequestStats, Scheduler,
    SchedulerLimits, Status, StepStats,
};

pub(super) struct Driver<G: RankGroup> {
    config: EngineConfig,
    group: G,
    status: watch::Sender<Status>,
    /// Set once the ranks have been ready for the first time.
    scheduler: Option<Scheduler>,
    facts: Vec<RankFacts>,
    streams: Streams,
    pressure: PressureGuard,
    /// Whether plans may be sent.
    is_standing: bool,
    attempts: Attempts,
    /// Time at which each plan in flight was sent, and the number of tokens that it computes.
    sent: VecDeque<(Instant, usize)>,
    answered_at: Option<Instant>,
    /// Wakes the loop when a slow constraint has answered; set while the loop runs.
    waker: Option<Sender<Message<G::Report>>>,
}

enum Flow {
    GoOn,
    End,
}

impl<G: RankGroup> Driver<G> {
    pub(super) fn new(config: EngineConfig, group: G, gauges: Arc<Gauges>) -> Driver<G> {
        let status = Status {
            state: EngineState::Starting,
            limits: None,
            ranks: group.hosts().into_iter().map(RankStatus::new).collect(),
            queued: 0,
            queue_max: config.queue_max as usize,
            running: 0,
            running_max: config.running_max.min(config.step_tokens) as usize,
            kv: KvStatus::default(),
            prefix: PrefixStats::default(),
            counters: Counters::default(),
            steps: StepStats::default(),
            requests: RequestStats::default(),
            due_at: None,
            recovery: RecoveryStats::default(),
            pressure: PressureStatus::default(),
            broken_links: Vec::new(),
        };
        Driver {
            attempts: Attempts::new(config.retry),
            pressure: PressureGuard::new(config.pressure),
            config,
            group,
            status: watch::Sender::new(status),
            scheduler: None,
            facts: Vec::new(),
            streams: Streams::new(gauges),
            is_standing: false,
            sent: VecDeque::new(),
            answered_at: None,
            waker: None,
        }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    pub(super) fn run(
        mut self,
        inbox: &Receiver<Message<G::Report>>,
        reports: Sender<Message<G::Report>>,
    ) -> Result<(), EngineError> {
        self.attempts.begin(Instant::now());
        self.waker = Some(reports.clone());
        self.group.start(Reporter::new(reports), Instant::now());
        loop {
            while let Ok(message) = inbox.try_recv() {
                if let Flow::End = self.take(message) {
                    return Ok(());
                }
            }
            // Deadlines are checked between messages, so that many messages cannot delay them.
            self.pass_deadlines()?;
            let has_moved = self.advance()?;
            if has_moved {
                continue;
            }
            if let Some(message) = self.wait(inbox)
                && let Flow::End = self.take(message)
            {
                return Ok(());
            }
        }
    }

    /// Blocks until there is a message; returns `None` if a deadline passes first.
    fn wait(&self, inbox: &Receiver<Message<G::Report>>) -> Option<Message<G::Report>> {
        let deadline = self.group.deadline().into_iter().chain(self.attempts.deadline()).min();
        let received = match deadline {
            Some(deadline) => {
                inbox.recv_timeout(deadline.saturating_duration_since(Instant::now()))
            }
            None => inbox.recv().map_err(RecvTimeoutError::from),
        };
        match received {
            Ok(message) => Some(message),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => panic!("the group holds a reporter"),
        }
    }

    fn pass_deadlines(&mut self) -> Result<(), EngineError> {
        let now = Instant::now();
        if self.group.deadline().is_some_and(|deadline| deadline <= now) {
            self.group.tick(now);
        }
        match self.attempts.take_due(now) {
            Some(Retry::Replace) => self.group.recover(now),
            Some(Retry::Restart) => {
                info!("starting every rank anew");
                self.group.restart(now);
            }
            None => {}
        }
        if self.attempts.give_up_at().is_some_and(|give_up_at| give_up_at <= now) {
            self.stand_still(now)?;
        }
        Ok(())
    }

    /// Fails the open requests because the ranks make no progress. The ranks may still come up
    /// later.
    fn stand_still(&mut self, now: Instant) -> Result<(), EngineError> {
        let last = match &self.status.borrow().state {
            EngineState::Recovering { failure, .. } => Some(failure.clone()),
            _ => None,
        };
        let failure = self.group.trouble().or(last).unwrap_or_else(|| Failure {
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

    fn take(&mut self, message: Message<G::Report>) -> Flow {
        match message {
            Message::Report(report) => self.group.handle(report, Instant::now()),
            Message::Command(Command::Submit { id, request, listener }) => {
                self.submit(id, *request, listener);
            }
            Message::Command(Command::Leave { id }) => self.leave(id),
            Message::Command(Command::Ask(question)) => self.answer(question),
            Message::Command(Command::Memory(reading)) => self.on_memory(reading),
            Message::Command(Command::ConstraintAnswered) => {
                if let Some(scheduler) = &mut self.scheduler {
                    scheduler.take_constraint_answers();
                }
            }
            Message::Command(Command::Shutdown) => {
                info!("stopping");
                self.close("the server is stopping");
                self.group.stop();
                return Flow::End;
            }
            Message::Command(Command::HandOver) => {
                info!("handing the ranks over");
                self.close("the server is being replaced\nhint: send the request again");
                self.group.hand_over();
                return Flow::End;
            }
        }
        Flow::GoOn
    }

    /// Refuses new requests and ends the open ones.
    fn close(&mut self, reason: &str) {
        self.status.send_modify(|status| status.state = EngineState::Stopping);
        self.fail_all(&Failure {
            rank: None,
            host: None,
            phase: Phase::Waiting,
            message: reason.to_owned(),
            last_words: String::new(),
        });
    }

    /// Does all work that is possible without waiting. Returns true if there was any.
    fn advance(&mut self) -> Result<bool, EngineError> {
        let mut has_moved = false;
        while let Some(event) = self.group.next_event() {
            has_moved = true;
            self.on_event(event)?;
        }
        let has_planned = self.plan();
        if has_moved || has_planned {
            self.publish();
        }
        self.send_events();
        Ok(has_moved || has_planned)
    }

    fn submit(&mut self, id: RequestId, request: Request, listener: Listener) {
        self.streams.open(id, &request, listener);
        let num_prompt_tokens = request.prompt().len() as u64;
        self.count(|counters| {
            counters.requests += 1;
            counters.prompt_tokens += num_prompt_tokens;
        });
        let failure = match &self.status.borrow().state {
            EngineState::Failed { failure, .. } => Some(failure.clone()),
            _ => None,
        };
        if let Some(failure) = failure {
            return self.fail_all(&failure);
        }
        let scheduler = self.scheduler.as_mut().expect("handles refuse requests before that");
        if !scheduler.could_hold(&request) {
            // The request was accepted when the ranks still had more memory.
            let failure = too_little_memory(self.status.borrow().kv.capacity_tokens);
            return self.fail_one(id, Event::Failed(failure));
        }
        scheduler.submit(id, request);
        self.publish();
    }

    /// Answers a question of a handle. The asking side may have been dropped.
    fn answer(&mut self, question: Question) {
        let scheduler = self.scheduler.as_mut();
        match question {
            Question::Cancel { id, answer } => {
                let is_open = scheduler.is_some_and(|it| it.abort(id));
                if is_open {
                    self.count(|counters| counters.cancelled += 1);
                    self.publish();
                    self.send_events();
                }
                let _ = answer.send(is_open);
            }
            Question::ClearPrefixes { answer } => {
                let num_cleared = scheduler.map_or(0, Scheduler::clear_prefixes);
                // Published before the answer, so that the caller finds the change in the status.
                self.publish();
                let _ = answer.send(num_cleared);
            }
            Question::OpenRequests { answer } => {
                let scheduler = self.scheduler.as_ref();
                let is_running = |id| scheduler.is_some_and(|it| it.is_running(id));
                let _ = answer.send(self.streams.list(is_running));
            }
            Question::Ping { answer } => {
                let _ = answer.send(());
            }
        }
    }

    /// Handles a reading of the machines' memory; ignored until the model has been loaded.
    fn on_memory(&mut self, reading: MemoryReading) {
        let Some(scheduler) = &mut self.scheduler else { return };
        let pressure = self.pressure.take(reading, Instant::now());
        let MemoryReading { tier, host, free_bytes } = &pressure.reading;
        if self.status.borrow().pressure.reading.tier != *tier {
            let tier = tier.name();
            warn!(tier, host, free_bytes, "the memory that other programs leave has changed");
        }
        scheduler.set_pressure(*tier);
        self.modify(|status| status.pressure = pressure);
        self.publish();
    }

    /// Removes a request whose caller has left.
    fn leave(&mut self, id: RequestId) {
        let streams = &mut self.streams;
        let mut was_open = false;
        self.status.send_if_modified(|status| {
            was_open = streams.leave(id, &mut status.requests);
            false
        });
        if !was_open {
            return;
        }
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.cancel(id);
        }
        self.count(|counters| counters.cancelled += 1);
        self.publish();
    }

    /// Sends the next plan, if there is one. Returns true if so.
    fn plan(&mut self) -> bool {
        let Some(scheduler) = &mut self.scheduler else { return false };
        if !self.is_standing || !self.group.takes_plans() || !scheduler.may_plan() {
            return false;
        }
        let begin = Instant::now();
        let Some(plan) = scheduler.plan() else { return false };
        let planned = Instant::now();
        let num_tokens = plan.num_tokens();
        debug!(step = plan.step, rows = plan.rows.len(), num_tokens, "step");
        self.sent.push_back((planned, num_tokens));
        self.group.send(plan, planned);
        let (plan_ns, send_ns) = (nanos(planned - begin), nanos(planned.elapsed()));
        self.modify(|status| {
            status.steps.plan_ns += plan_ns;
            status.steps.send_ns += send_ns;
        });
        true
    }

    fn on_event(&mut self, event: GroupEvent) -> Result<(), EngineError> {
        let now = Instant::now();
        match event {
            GroupEvent::Phase { rank, phase, loaded_bytes, pid } => {
                let loaded = loaded_bytes.map_or(0, |(done, _)| done);
                self.attempts.note_phase(rank, phase, loaded, now);
                self.modify(|status| {
                    let rank = &mut status.ranks[rank];
                    (rank.phase, rank.loaded_bytes, rank.pid) = (phase, loaded_bytes, pid);
                    rank.heard_at = Some(now);
                });
            }
            GroupEvent::Reassigned { hosts } => self.on_reassigned(hosts, now),
            GroupEvent::Heartbeat { rank, phase, memory, round_trip, .. } => {
                self.modify(|status| {
                    let rank = &mut status.ranks[rank];
                    (rank.phase, rank.memory, rank.heard_at) = (phase, memory, Some(now));
                    rank.round_trip = round_trip.or(rank.round_trip);
                })
            }
            GroupEvent::Ready { epoch, facts } => self.on_ready(epoch, facts)?,
            GroupEvent::Output(output) => self.on_output(output, now)?,
            GroupEvent::Done { rank, timings, .. } => self.modify(|status| {
                let rank = &mut status.ranks[rank];
                rank.heard_at = Some(now);
                rank.steps += 1;
                rank.timings.add(&timings);
            }),
            GroupEvent::BrokenLinks(links) => self.modify(|status| status.broken_links = links),
            GroupEvent::Lost { failure, is_fatal } => self.on_lost(failure, is_fatal, now)?,
        }
        Ok(())
    }

    /// Handles a change of ranks: the caches of the earlier ranks are lost, as after a failure, but
    /// no rank failed.
    fn on_reassigned(&mut self, hosts: Vec<String>, now: Instant) {
        self.sent.clear();
        self.answered_at = None;
        let was_standing = std::mem::take(&mut self.is_standing);
        self.facts.clear();
        self.attempts.begin(now);
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.ranks_restarted();
        }
        let message = format!("the cluster is planned anew for {} ranks", hosts.len());
        let (phase, last_words) = (Phase::Starting, String::new());
        let failure = Failure { rank: None, host: None, phase, message, last_words };
        self.status.send_modify(|status| {
            status.ranks = hosts.into_iter().map(RankStatus::new).collect();
            if was_standing {
                status.recovery.begin(&failure, now);
            }
            if let EngineState::Ready = status.state {
                status.state = EngineState::Recovering { since: now, failure };
            }
        });
    }

    /// Updates the capacity, which differs after a change of ranks.
    fn on_new_ranks(&mut self, facts: &[RankFacts], now: Instant) -> Result<(), EngineError> {
        let blocks = match capacity::blocks(&self.config, facts) {
            Ok(blocks) => blocks,
            Err(err) => {
                let message = err.to_string();
                let (phase, last_words) = (Phase::Loading, String::new());
                let failure = Failure { rank: None, host: None, phase, message, last_words };
                return self.on_lost(failure, true, now);
            }
        };
        let scheduler = self.scheduler.as_mut().expect("there were ranks before");
        let lost = scheduler.set_ranks(blocks as usize, num_stages(facts));
        let kv = capacity::kv_status(facts, blocks);
        let failure = too_little_memory(kv.capacity_tokens);
        self.send_events();
        for id in lost {
            self.fail_one(id, Event::Failed(failure.clone()));
        }
        self.modify(|status| status.kv = kv);
        Ok(())
    }

    fn on_ready(&mut self, epoch: u64, facts: Vec<RankFacts>) -> Result<(), EngineError> {
        let now = Instant::now();
        if self.scheduler.is_none() {
            self.open_for_requests(&facts)?;
        } else if self.facts.is_empty() {
            self.on_new_ranks(&facts, now)?;
            self.count(|counters| counters.recoveries += 1);
        } else if let Some(rank) =
            (0..facts.len()).find(|rank| !is_same_shard(&facts[*rank], &self.facts[*rank]))
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
            self.count(|counters| counters.recoveries += 1);
        }
        info!(epoch, "ranks ready");
        self.attempts.note_ready(self.owes_steps(), now);
        self.is_standing = true;
        let encrypts = self.group.encrypts();
        self.status.send_modify(|status| {
            status.state = EngineState::Ready;
            status.recovery.end(now);
            for (rank, encrypts) in status.ranks.iter_mut().zip(encrypts) {
                rank.encrypts = encrypts;
            }
            for (rank, facts) in status.ranks.iter_mut().zip(&facts) {
                (rank.phase, rank.loaded_bytes) = (Phase::Idle, None);
                rank.facts = Some(facts.clone());
            }
        });
        self.facts = facts;
        Ok(())
    }

    fn open_for_requests(&mut self, facts: &[RankFacts]) -> Result<(), EngineError> {
        let blocks = capacity::blocks(&self.config, facts)?;
        let limits = capacity::limits(&self.config, &facts[0]);
        let kv = capacity::kv_status(facts, blocks);
        if let Some(wanted_tokens) = self.config.context_tokens
            && limits.context_tokens < wanted_tokens
        {
            let served_tokens = limits.context_tokens;
            warn!(wanted_tokens, served_tokens, "the model was made for a shorter context");
        }
        info!(kv.budget_bytes, kv.capacity_tokens, "memory for keys and values");
        let mut scheduler = Scheduler::new(SchedulerLimits {
            step_tokens: self.config.step_tokens as usize,
            running_max: self.config.running_max as usize,
            keep_prefixes: self.config.keep_prefixes,
            lookahead: self.config.lookahead,
            num_stages: num_stages(facts),
            ..SchedulerLimits::new(limits.vocab_size, blocks as usize)
        });
        if let Some(waker) = self.waker.clone() {
            // Fails if the engine has ended.
            let wake = move || drop(waker.send(Message::Command(Command::ConstraintAnswered)));
            scheduler.set_constraint_pool(ConstraintPool::new(wake));
        }
        self.scheduler = Some(scheduler);
        self.modify(|status| {
            status.limits = Some(limits);
            status.kv = kv;
        });
        Ok(())
    }

    fn on_output(&mut self, output: StepOutput, now: Instant) -> Result<(), EngineError> {
        let (sent_at, num_tokens) = self.sent.pop_front().unwrap_or((now, 0));
        let begin = self.answered_at.map_or(sent_at, |answered_at| sent_at.max(answered_at));
        self.answered_at = Some(now);
        let timings = output.timings.clone();
        let scheduler = self.scheduler.as_mut().expect("only plans are answered");
        if let Err(mismatch) = scheduler.commit(output) {
            let failure = Failure {
                rank: Some(0),
                host: None,
                phase: Phase::Computing,
                message: format!("the answer is not the one to the plan: {mismatch}"),
                last_words: String::new(),
            };
            return self.on_lost(failure, false, now);
        }
        self.attempts.note_step();
        let (interval, commit_ns) = (now - begin, nanos(now.elapsed()));
        self.modify(|status| {
            let steps = &mut status.steps;
            steps.steps += 1;
            steps.computed_tokens += num_tokens as u64;
            steps.commit_ns += commit_ns;
            steps.interval_ns += nanos(interval);
            steps.interval_us.record(nanos(interval) / 1000);
            steps.batch_tokens.record(num_tokens as u64);
            steps.iteration_tokens.record(num_tokens as f64);
            let rank = &mut status.ranks[0];
            rank.heard_at = Some(now);
            rank.steps += 1;
            rank.timings.add(&timings);
        });
        Ok(())
    }

    fn on_lost(
        &mut self,
        failure: Failure,
        is_fatal: bool,
        now: Instant,
    ) -> Result<(), EngineError> {
        self.sent.clear();
        self.answered_at = None;
        self.count(|counters| counters.failures += 1);
        self.attempts.note_loss(self.owes_steps(), now);
        let was_standing = std::mem::take(&mut self.is_standing);
        if was_standing {
            self.modify(|status| status.recovery.begin(&failure, now));
        }
        let Some(scheduler) = &mut self.scheduler else {
            if is_fatal || self.attempts.is_start_hopeless() {
                self.group.stop();
                return Err(EngineError::Start(failure));
            }
            warn!(rank = failure.rank, %failure, "starting failed, trying again");
            self.attempts.retry(now);
            return Ok(());
        };
        let poisonous = scheduler.ranks_failed();
        for id in poisonous {
            self.end_poisonous(id, &failure);
        }
        if is_fatal {
            self.attempts.restart(now);
            self.fail(failure, now);
            return Ok(());
        }
        self.attempts.retry(now);
        if self.is_failed() {
            warn!(rank = failure.rank, %failure, "ranks lost again");
            self.fail(failure, now);
        } else {
            warn!(rank = failure.rank, %failure, "rank lost, replacing it");
            let state = EngineState::Recovering { since: now, failure };
            self.status.send_modify(|status| status.state = state);
        }
        Ok(())
    }

    /// Fails a request that made the ranks fail. The other requests continue.
    fn end_poisonous(&mut self, id: RequestId, failure: &Failure) {
        error!(?id, rank = failure.rank, "a request makes ranks fail, and is ended");
        self.send_events();
        self.fail_one(id, Event::Poisonous(poisonous(failure)));
    }

    /// Whether there are requests to compute.
    fn owes_steps(&self) -> bool {
        let num_open = self.scheduler.as_ref().map(Scheduler::num_waiting_and_running);
        num_open.is_some_and(|num_open| num_open != (0, 0))
    }

    /// Fails every request, and refuses new ones until the ranks are ready.
    fn fail(&mut self, failure: Failure, now: Instant) {
        if !self.is_failed() {
            error!(rank = failure.rank, %failure, "requests end");
        }
        self.attempts.give_up();
        let reported = failure.clone();
        // The state changes first, so that a caller that sees the failure and retries is refused.
        self.status.send_modify(|status| {
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

    fn is_failed(&self) -> bool {
        matches!(self.status.borrow().state, EngineState::Failed { .. })
    }

    fn fail_all(&mut self, failure: &Failure) {
        // Events from before the failure are sent first.
        self.send_events();
        for id in self.streams.ids() {
            self.fail_one(id, Event::Failed(failure.clone()));
        }
    }

    fn fail_one(&mut self, id: RequestId, event: Event) {
        let streams = &mut self.streams;
        self.status.send_if_modified(|status| {
            let was_open = streams.fail(id, event, &mut status.requests);
            status.counters.failed += u64::from(was_open);
            false
        });
    }

    fn send_events(&mut self) {
        let Some(scheduler) = &mut self.scheduler else { return };
        let events = scheduler.take_events();
        if events.is_empty() {
            return;
        }
        let streams = &mut self.streams;
        self.status.send_if_modified(|status| {
            streams.note(&events, &mut status.requests);
            false
        });
        events.into_iter().for_each(|(id, event)| streams.send(id, event));
    }

    /// Returns the time by which the next step has to complete.
    fn due_at(&self) -> Option<Instant> {
        if !self.is_standing {
            return Some(self.attempts.down_since()? + self.group.step_timeout(0));
        }
        let (sent_at, num_tokens) = *self.sent.front()?;
        let begin = self.answered_at.map_or(sent_at, |answered_at| sent_at.max(answered_at));
        Some(begin + self.group.step_timeout(num_tokens))
    }

    /// Publishes the scheduler's numbers in the status.
    fn publish(&self) {
        let Some(scheduler) = &self.scheduler else { return };
        let stats = scheduler.stats();
        let (queued, running) = scheduler.num_waiting_and_running();
        let (used, kept) = scheduler.used_and_kept_blocks();
        let due_at = self.due_at();
        self.modify(|status| {
            status.due_at = due_at;
            (status.queued, status.running) = (queued, running);
            let block_bytes =
                status.kv.bytes_per_token * u64::from(jackalope_protocol::KV_BLOCK_TOKENS);
            status.kv.running_bytes = used as u64 * block_bytes;
            status.kv.kept_bytes = kept as u64 * block_bytes;
            status.kv.num_kept = scheduler.num_kept();
            status.prefix = scheduler.prefix_stats();
            status.counters.finished = stats.finished;
            status.counters.not_a_number = stats.not_a_number;
            status.counters.sampled_tokens = stats.sampled_tokens;
            status.counters.dropped_tokens = stats.dropped_tokens;
            status.counters.preemptions = stats.preemptions;
        });
    }

    /// Changes numbers of the status without waking tasks that wait for another state.
    fn modify(&self, change: impl FnOnce(&mut Status)) {
        self.status.send_if_modified(|status| {
            change(status);
            false
        });
    }

    fn count(&self, change: impl FnOnce(&mut Counters)) {
        self.modify(|status| change(&mut status.counters));
    }
}

impl<G: RankGroup> Drop for Driver<G> {
    /// Publishes the end, however the thread ends, so that no caller waits for requests to be
    /// computed.
    fn drop(&mut self) {
        self.status.send_modify(|status| status.state = EngineState::Stopping);
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
fn too_little_memory(capacity_tokens: u64) -> Failure {
    Failure {
        rank: None,
        host: None,
        phase: Phase::Loading,
        message: format!(
            "the machines that are left have memory for {capacity_tokens} tokens, which is too \
             little for this request\n\
             hint: ask for fewer tokens, or try again when all machines are back"
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

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
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
