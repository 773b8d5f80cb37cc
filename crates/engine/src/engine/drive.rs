//! The loop around the scheduler: handles commands, plans, sends plans, and processes
//! answers.
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
//! [`recovery`] handles what is lost and comes back, [`super::reporting`] has what others
//! see.

mod recovery;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Instant;

use jackalope_protocol::{Phase, StepOutput};
use tokio::sync::watch;
use tracing::{debug, info, warn};

use super::attempts::Retry;
use super::pressure::{MemoryReading, PressureGuard};
use super::prompt_pace::PromptPace;
use super::reporting::{CompletedStep, Reporting, nanos};
use super::step_clock::{StepClock, StepRun};
use super::{EngineConfig, EngineError};
use crate::command::{Command, Departure, Gauges, Listener, Message, Question};
use crate::constraint_pool::ConstraintPool;
use crate::{
    EngineState, Event, Failure, GroupEvent, RankGroup, RankStatus, Reporter, Request, RequestId,
    Scheduler, Status,
};
use recovery::{Recovery, too_little_memory};

pub(super) struct Driver<G: RankGroup> {
    config: EngineConfig,
    group: G,
    /// Set once the ranks have been ready for the first time.
    scheduler: Option<Scheduler>,
    /// Set with the scheduler, while the loop runs.
    constraint_pool: Option<ConstraintPool>,
    reporting: Reporting,
    recovery: Recovery,
    steps: StepClock,
    pace: PromptPace,
    pressure: PressureGuard,
    /// Wakes the loop when a slow constraint has answered; set while the loop runs.
    waker: Option<Sender<Message<G::Report>>>,
}

enum Flow {
    GoOn,
    End,
}

impl<G: RankGroup> Driver<G> {
    pub(super) fn new(config: EngineConfig, group: G, gauges: Arc<Gauges>) -> Driver<G> {
        let ranks = RankStatus::starting(group.hosts(), group.transports());
        Driver {
            reporting: Reporting::new(&config, ranks, gauges),
            recovery: Recovery::new(config.retry),
            steps: StepClock::default(),
            pace: PromptPace::new(&config, &[]),
            pressure: PressureGuard::new(config.pressure),
            config,
            group,
            scheduler: None,
            constraint_pool: None,
            waker: None,
        }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Status> {
        self.reporting.subscribe()
    }

    pub(super) fn run(
        mut self,
        inbox: &Receiver<Message<G::Report>>,
        reports: Sender<Message<G::Report>>,
    ) -> Result<(), EngineError> {
        self.recovery.attempts.begin(Instant::now());
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
        let deadline =
            self.group.deadline().into_iter().chain(self.recovery.attempts.deadline()).min();
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
        match self.recovery.attempts.take_due(now) {
            Some(Retry::Replace) => self.group.recover(now),
            Some(Retry::Restart) => {
                info!("starting every rank anew");
                self.group.restart(now);
            }
            None => {}
        }
        if self.recovery.attempts.give_up_at().is_some_and(|give_up_at| give_up_at <= now) {
            self.stand_still(now)?;
        }
        Ok(())
    }

    fn take(&mut self, message: Message<G::Report>) -> Flow {
        match message {
            Message::Report(report) => self.group.handle(report, Instant::now()),
            Message::Command(Command::Submit { id, request, listener }) => {
                self.submit(id, *request, listener);
            }
            Message::Command(Command::Leave { id, departure }) => self.leave(id, departure),
            Message::Command(Command::Ask(question)) => self.answer(question),
            Message::Command(Command::Memory(reading)) => self.on_memory(reading),
            Message::Command(Command::Heat(heat)) => {
                self.reporting.modify(|status| status.heat = heat);
            }
            Message::Command(Command::ConstraintAnswered) => {
                let answers = self.constraint_pool.as_mut().map(ConstraintPool::take);
                if let (Some(scheduler), Some(answers)) = (&mut self.scheduler, answers) {
                    scheduler.take_answers(answers);
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
        self.reporting.status.send_modify(|status| status.state = EngineState::Stopping);
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
        self.reporting.streams.open(id, &request, listener);
        let num_prompt_tokens = request.prompt().len() as u64;
        self.reporting.count(|counters| {
            counters.requests += 1;
            counters.prompt_tokens += num_prompt_tokens;
        });
        let failure = match &self.reporting.status.borrow().state {
            EngineState::Failed { failure, .. } => Some(failure.clone()),
            _ => None,
        };
        if let Some(failure) = failure {
            return self.fail_all(&failure);
        }
        let scheduler = self.scheduler.as_mut().expect("handles refuse requests before that");
        if !scheduler.could_hold(&request) {
            // The request was accepted when the ranks still had more memory.
            let failure = too_little_memory(self.reporting.status.borrow().kv.capacity_tokens);
            return self.reporting.fail_one(id, Event::Failed(failure));
        }
        scheduler.submit(id, request);
        self.ask_constraints();
        self.publish();
    }

    /// Answers a question of a handle. The asking side may have been dropped.
    fn answer(&mut self, question: Question) {
        let scheduler = self.scheduler.as_mut();
        match question {
            Question::Cancel { id, answer } => {
                let is_open = scheduler.is_some_and(|it| it.abort(id));
                if is_open {
                    self.reporting.count(|counters| counters.cancelled += 1);
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
                let _ = answer.send(self.reporting.streams.list(is_running));
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
        if self.reporting.status.borrow().pressure.reading.tier != *tier {
            let tier = tier.name();
            warn!(tier, host, free_bytes, "the memory that other programs leave has changed");
        }
        scheduler.set_pressure(*tier);
        self.reporting.modify(|status| status.pressure = pressure);
        self.publish();
    }

    /// Removes a request whose caller reads no more of it.
    fn leave(&mut self, id: RequestId, departure: Departure) {
        if !self.reporting.leave(id, departure) {
            return;
        }
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.cancel(id);
        }
        self.publish();
    }

    /// Asks the constraints of all new tokens. Their sequences compute no token until they have
    /// answered; slow ones wake the loop later.
    fn ask_constraints(&mut self) {
        let (Some(scheduler), Some(pool)) = (&mut self.scheduler, &mut self.constraint_pool) else {
            return;
        };
        let answers = pool.ask(scheduler.take_questions());
        scheduler.take_answers(answers);
    }

    /// Sends the next plan, if there is one. Returns true if so.
    fn plan(&mut self) -> bool {
        let Some(scheduler) = &mut self.scheduler else { return false };
        if !self.recovery.is_standing || !self.group.takes_plans() || !scheduler.may_plan() {
            return false;
        }
        let begin = Instant::now();
        let Some(plan) = scheduler.plan() else { return false };
        let planned = Instant::now();
        let num_tokens = plan.num_tokens();
        debug!(step = plan.step, rows = plan.rows.len(), num_tokens, "step");
        self.steps.sent(planned, num_tokens);
        self.group.send(plan, planned);
        let (plan_ns, send_ns) = (nanos(planned - begin), nanos(planned.elapsed()));
        self.reporting.modify(|status| {
            status.steps.plan_ns += plan_ns;
            status.steps.send_ns += send_ns;
        });
        true
    }

    fn on_event(&mut self, event: GroupEvent) -> Result<(), EngineError> {
        let now = Instant::now();
        match event {
            GroupEvent::Phase { rank, phase, progress, loaded_bytes, pid } => {
                self.recovery.attempts.note_phase(rank, phase, progress, now);
                if phase != Phase::Starting {
                    self.note_back(rank);
                }
                self.reporting.modify(|status| {
                    let rank = &mut status.ranks[rank];
                    rank.enter(phase, loaded_bytes);
                    (rank.pid, rank.last_message_at) = (pid, Some(now));
                });
            }
            GroupEvent::Reassigned { hosts } => self.on_reassigned(hosts, now),
            GroupEvent::Heartbeat { rank, phase, memory, round_trip, .. } => {
                self.note_back(rank);
                self.reporting.modify(|status| {
                    let rank = &mut status.ranks[rank];
                    (rank.phase, rank.memory, rank.last_message_at) = (phase, memory, Some(now));
                    rank.round_trip = round_trip.or(rank.round_trip);
                })
            }
            GroupEvent::Ready { epoch, facts } => self.on_ready(epoch, facts)?,
            GroupEvent::Output(output) => self.on_output(output, now)?,
            GroupEvent::Done { rank, timings, .. } => self.reporting.modify(|status| {
                let rank = &mut status.ranks[rank];
                rank.last_message_at = Some(now);
                rank.steps += 1;
                rank.timings.add(&timings);
            }),
            GroupEvent::BrokenLinks(links) => {
                self.reporting.modify(|status| status.broken_links = links)
            }
            GroupEvent::Lost { failure, is_fatal } => self.on_lost(failure, is_fatal, now)?,
        }
        Ok(())
    }

    fn on_output(&mut self, output: StepOutput, now: Instant) -> Result<(), EngineError> {
        let StepRun { began, num_tokens } = self.steps.answered(now);
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
        self.pace.note(num_tokens, now - began);
        scheduler.set_prompt_step_tokens(self.pace.num_tokens());
        self.ask_constraints();
        self.recovery.attempts.note_step();
        self.reporting.note_step(&CompletedStep {
            interval: now - began,
            commit_time: now.elapsed(),
            num_tokens,
            timings,
            at: now,
        });
        Ok(())
    }

    pub(super) fn fail_all(&mut self, failure: &Failure) {
        // Events from before the failure are sent first.
        self.send_events();
        self.reporting.fail_all(failure);
    }

    pub(super) fn send_events(&mut self) {
        if let Some(scheduler) = &mut self.scheduler {
            self.reporting.send(scheduler.take_events());
        }
    }

    /// Returns the time by which the next step has to complete.
    fn due_at(&self) -> Option<Instant> {
        if !self.recovery.is_standing {
            let down_since = self.recovery.attempts.down_since()?;
            return Some(down_since + self.group.step_timeout(0));
        }
        let StepRun { began, num_tokens } = self.steps.oldest()?;
        Some(began + self.group.step_timeout(num_tokens))
    }

    /// Publishes the scheduler's numbers in the status.
    pub(super) fn publish(&self) {
        if let Some(scheduler) = &self.scheduler {
            self.reporting.publish(scheduler, self.due_at());
        }
    }
}

impl<G: RankGroup> Drop for Driver<G> {
    /// Publishes the end, however the thread ends, so that no caller waits for requests to be
    /// computed.
    fn drop(&mut self) {
        self.reporting.status.send_modify(|status| status.state = EngineState::Stopping);
    }
}
