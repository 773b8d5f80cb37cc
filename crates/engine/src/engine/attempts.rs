//! Decides when lost ranks are replaced, and when the requests that wait for them fail.
//!
//! The failure of requests does not depend on the number of losses, only on time: requests fail if
//! ranks are being brought up and, for too long, no rank gets further than it has been since the
//! last completed step.

use std::time::{Duration, Instant};

use jackalope_protocol::Phase;

use super::RetryPolicy;

/// How the ranks are brought back up.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Retry {
    /// Replace the lost ranks.
    Replace,
    /// Restart all ranks, including those that are alive.
    Restart,
}

/// The attempts to bring up the ranks since the last completed step.
#[derive(Debug)]
pub(super) struct Attempts {
    policy: RetryPolicy,
    /// Losses in a row; they determine the pause before the next attempt.
    num_losses: u32,
    /// Losses since a rank last made progress.
    num_stuck: u32,
    /// The next attempt, if one is scheduled.
    retry: Option<(Instant, Retry)>,
    /// Time of the last progress, set while ranks are brought up or steps are owed. Time during
    /// which the group was up does not count.
    stalled_since: Option<Instant>,
    /// Time of the last phase change or load progress of a rank, or of the loss of the group,
    /// whichever is later.
    moved_at: Option<Instant>,
    /// Time since which the group is up; `None` while it is not.
    stood_since: Option<Instant>,
    /// Time since which the group is down; `None` while it is up.
    down_since: Option<Instant>,
    /// Longest time that bringing up the ranks has taken so far.
    took: Duration,
    /// Furthest progress of each rank since the last completed step.
    furthest: Vec<(u8, u64)>,
    /// True after open requests have failed for lack of progress, until the group is up again.
    has_given_up: bool,
}

impl Attempts {
    pub(super) fn new(policy: RetryPolicy) -> Attempts {
        Attempts {
            policy,
            num_losses: 0,
            num_stuck: 0,
            retry: None,
            stalled_since: None,
            moved_at: None,
            stood_since: None,
            down_since: None,
            took: Duration::ZERO,
            furthest: Vec::new(),
            has_given_up: false,
        }
    }

    /// Records that ranks are brought up for the first time, or after the set of ranks has changed.
    pub(super) fn begin(&mut self, now: Instant) {
        self.furthest.clear();
        self.stood_since = None;
        (self.stalled_since, self.down_since, self.moved_at) = (Some(now), Some(now), Some(now));
    }

    /// Records that a rank has entered another phase or got further in one, as
    /// [`GroupEvent::Phase`](crate::GroupEvent::Phase) says.
    pub(super) fn note_phase(&mut self, rank: usize, phase: Phase, progress: u64, now: Instant) {
        let order = match phase {
            Phase::Starting => 0,
            Phase::Loading => 1,
            Phase::WarmingUp => 2,
            Phase::Waiting => 3,
            Phase::Joining => 4,
            Phase::Idle | Phase::Computing => 5,
        };
        let reached = (order, progress);
        if 0 < order {
            self.moved_at = Some(now);
        }
        if self.furthest.len() <= rank {
            self.furthest.resize(rank + 1, (0, 0));
        }
        if self.furthest[rank] < reached {
            self.furthest[rank] = reached;
            self.num_stuck = 0;
            self.stalled_since = self.stalled_since.map(|_| now);
        }
    }

    /// Records that the group is up. `owes_steps` is true if there are requests to compute.
    pub(super) fn note_ready(&mut self, owes_steps: bool, now: Instant) {
        if let Some(since) = self.down_since.take() {
            self.took = self.took.max(now.saturating_duration_since(since));
        }
        self.retry = None;
        self.stood_since = Some(now);
        self.has_given_up = false;
        if !owes_steps {
            self.stalled_since = None;
            self.furthest.clear();
        }
    }

    /// Records a completed step, which resets the counts of losses.
    pub(super) fn note_step(&mut self) {
        (self.num_losses, self.num_stuck) = (0, 0);
        self.stalled_since = None;
        self.furthest.clear();
    }

    /// Records that the group is lost, or could not be formed. `owes_steps` is true if there are
    /// requests to compute.
    pub(super) fn note_loss(&mut self, owes_steps: bool, now: Instant) {
        if let Some(stood_since) = self.stood_since.take() {
            let stood = now.saturating_duration_since(stood_since);
            if self.policy.pause_max <= stood {
                (self.num_losses, self.num_stuck) = (0, 0);
            }
            self.stalled_since = self.stalled_since.filter(|_| owes_steps).map(|it| it + stood);
            self.moved_at = Some(now);
        }
        self.num_losses += 1;
        self.num_stuck += 1;
        self.stalled_since.get_or_insert(now);
        self.down_since.get_or_insert(now);
    }

    /// Schedules the next attempt: the first immediately, later ones after growing pauses.
    pub(super) fn retry(&mut self, now: Instant) {
        let RetryPolicy { pause_first, pause_max, .. } = self.policy;
        let pause = match self.num_losses {
            0 | 1 => Duration::ZERO,
            more => pause_first.saturating_mul(1 << (more - 2).min(16)).min(pause_max),
        };
        self.retry = Some((now + pause, Retry::Replace));
    }

    /// Schedules a restart of all ranks, after a failure that replacing single ranks does not fix.
    pub(super) fn restart(&mut self, now: Instant) {
        self.retry = Some((now + self.policy.restart_pause, Retry::Restart));
    }

    /// Takes the scheduled attempt if it is due; the caller then starts it.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Retry> {
        self.retry.take_if(|(at, _)| *at <= now).map(|(_, retry)| retry)
    }

    /// Returns the time since which the group is down.
    pub(super) fn down_since(&self) -> Option<Instant> {
        self.down_since
    }

    /// Whether the number of losses without progress has reached `start_failures_max`, so that the
    /// first start fails.
    pub(super) fn is_start_hopeless(&self) -> bool {
        self.policy.start_failures_max <= self.num_stuck
    }

    /// Records that open requests have failed for lack of progress.
    pub(super) fn give_up(&mut self) {
        self.has_given_up = true;
    }

    /// Returns the time at which open requests fail, if no rank makes progress until then. Ranks
    /// that repeat phases after a loss are granted additional time, up to the longest time that
    /// bringing them up has taken so far.
    pub(super) fn give_up_at(&self) -> Option<Instant> {
        let since = self.stalled_since.filter(|_| !self.has_given_up && self.stood_since.is_none());
        let at = since? + self.took;
        Some(self.moved_at.map_or(at, |moved_at| at.min(moved_at)) + self.policy.standstill_max)
    }

    /// Returns the time of the next scheduled attempt or failure of the requests, whichever is
    /// earlier.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.retry.map(|(at, _)| at).into_iter().chain(self.give_up_at()).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn attempts() -> (Attempts, Instant) {
        let now = Instant::now();
        let mut attempts = Attempts::new(RetryPolicy::default());
        attempts.begin(now);
        (attempts, now)
    }

    fn pause(attempts: &mut Attempts, now: Instant) -> Duration {
        attempts.note_loss(true, now);
        attempts.retry(now);
        attempts.deadline().expect("an attempt is planned") - now
    }

    #[test]
    fn pauses_grow_while_nothing_is_computed_and_begin_anew_after_a_step() {
        let (mut attempts, now) = attempts();
        let pauses: Vec<u128> = (0..9).map(|_| pause(&mut attempts, now).as_millis()).collect();
        assert_eq!(pauses, [0, 50, 100, 200, 400, 800, 1600, 2000, 2000]);
        attempts.note_ready(true, now);
        attempts.note_step();
        assert_eq!(pause(&mut attempts, now), Duration::ZERO);
    }

    #[test]
    fn a_crash_loop_ends_however_often_its_ranks_load() {
        let (mut attempts, mut now) = attempts();
        let limit = RetryPolicy::default().standstill_max;
        let mut num_losses = 0;
        while attempts.give_up_at().is_none_or(|at| now < at) {
            for (phase, bytes) in [(Phase::Starting, 0), (Phase::Loading, 7), (Phase::Waiting, 0)] {
                attempts.note_phase(0, phase, bytes, now);
            }
            now += SECOND;
            attempts.note_ready(true, now);
            attempts.note_loss(true, now);
            num_losses += 1;
            assert!(num_losses < 1000, "it goes on for ever");
        }
        assert!(now - limit <= attempts.give_up_at().unwrap());
        attempts.give_up();
        assert_eq!(attempts.give_up_at(), None);
    }

    #[test]
    fn losses_of_an_idle_group_are_no_reason_to_give_up() {
        let (mut attempts, mut now) = attempts();
        for _ in 0..200 {
            attempts.note_phase(0, Phase::Waiting, 0, now);
            now += SECOND;
            attempts.note_ready(false, now);
            attempts.note_loss(false, now);
            assert!(attempts.give_up_at().is_some_and(|at| now < at));
        }
    }

    #[test]
    fn steps_that_take_long_are_not_counted() {
        let (mut attempts, mut now) = attempts();
        attempts.note_ready(true, now);
        assert_eq!(attempts.give_up_at(), None, "the group has deadlines of its own");
        now += SECOND * 1000;
        attempts.note_loss(true, now);
        assert!(attempts.give_up_at().is_some_and(|at| now < at));
    }

    #[test]
    fn first_steps_that_take_long_are_progress_while_they_report() {
        let (mut attempts, mut now) = attempts();
        for num_reports in 1..1000 {
            attempts.note_phase(0, Phase::WarmingUp, num_reports, now);
            now += SECOND;
            assert!(attempts.give_up_at().is_some_and(|at| now < at));
        }
        now += RetryPolicy::default().standstill_max;
        assert!(attempts.give_up_at().is_some_and(|at| at <= now), "there are no more reports");
    }

    #[test]
    fn loading_that_took_long_may_take_as_long_again() {
        let (mut attempts, mut now) = attempts();
        for bytes in 0..100 {
            attempts.note_phase(0, Phase::Loading, bytes, now);
            now += SECOND * 10;
        }
        attempts.note_ready(true, now);
        attempts.note_loss(true, now);
        let alone = attempts.give_up_at().expect("ranks are brought up");
        assert_eq!(alone, now + RetryPolicy::default().standstill_max, "if nothing moves at all");
        for bytes in 0..99 {
            attempts.note_phase(0, Phase::Loading, bytes, now);
            now += SECOND * 10;
            assert!(attempts.give_up_at().is_some_and(|at| now < at));
        }
    }
}
