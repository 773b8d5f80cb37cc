//! State of the links between the machines of a cluster. A good link is not probed: its ranks
//! notice a failure. The agents at both ends probe a link that is suspected, broken, mended or
//! unused.
//!
//! ```text
//!            suspected                  both ends fail                 one end succeeds
//!   good ─────────────▶ suspected ──────────────────────▶ broken ◀───────────────────────▶ mended
//!    ▲                      │ one end succeeds                                                │
//!    └──────────────────────┴──────────────────────── for long enough ────────────────────────┘
//! ```

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use jackalope_engine::BrokenLink;
use tracing::{info, warn};

/// Maximum time in which a machine must answer another one; covers two TCP connection attempts.
pub(super) const PROBE_DEADLINE: Duration = Duration::from_millis(1500);

/// Time after the deadline within which an agent must report; a later result is ignored.
const REPORT_MARGIN: Duration = Duration::from_secs(1);

/// Interval between two probes of a link.
const PROBE_INTERVAL: Duration = Duration::from_millis(500);

/// Maximum number of concurrent probes of a link.
const PROBES_MAX: usize = 8;

/// A link counts as broken if forming a group over it fails twice within this time, whatever the
/// agents report.
const JOINS_FAIL_WITHIN: Duration = Duration::from_secs(120);

/// Time for which a link that failed twice in this way stays broken.
const JOINS_FAIL_HOLD: Duration = Duration::from_secs(300);

/// Minimum time for which a machine that has come back must stay before it is used again. The time
/// doubles with each absence, because taking the machine back means loading anew.
const RETURN_AFTER: Duration = Duration::from_secs(2);
/// Upper limit of the time for which a machine that has come back must stay.
const RETURN_AFTER_MAX: Duration = Duration::from_secs(300);

/// Returns the time for which a machine must stay after `num_absences` absences.
pub(super) fn return_after(num_absences: u32) -> Duration {
    let doublings = num_absences.saturating_sub(1).min(16);
    (RETURN_AFTER * (1 << doublings)).min(RETURN_AFTER_MAX)
}

/// Returns the result of a probe once it is known.
pub(super) type Answer = Box<dyn Fn() -> Option<Result<(), String>> + Send>;

/// Probes links and names their ends.
pub(super) trait Prober {
    /// Asks machine `from` to connect to machine `to`, also at the address `data` if given. Returns
    /// `None` if the agent cannot be asked.
    fn probe(&self, from: usize, to: usize, data: Option<SocketAddr>) -> Option<Answer>;

    /// Returns the name of machine `to`, and the address by which `from` reaches it.
    fn name(&self, from: usize, to: usize) -> (String, Option<IpAddr>);
}

/// All links with a known state, by the node numbers of their ends, the lower one first.
#[derive(Default)]
pub(super) struct Links(BTreeMap<(usize, usize), WatchedLink>);

struct WatchedLink {
    state: State,
    num_breaks: u32,
    /// Address of the higher machine's rank as the lower machine reaches it, and the reverse.
    data: [Option<SocketAddr>; 2],
    attempts: Vec<Attempt>,
    probed_at: Option<Instant>,
    join_failed_at: Option<Instant>,
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    Good,
    Suspected,
    Broken {
        since: Instant,
        reason: String,
        /// A successful probe does not mend the link before this time.
        until: Option<Instant>,
    },
    Mended {
        since: Instant,
    },
    /// A link of a machine that was left out: not used for a while.
    Unused,
}

/// A probe from both ends at once.
struct Attempt {
    began: Instant,
    answers: Vec<Answer>,
}

impl Attempt {
    /// Returns whether the link works, once known. Success at one end suffices: a connection needs
    /// both directions.
    fn result(&self, now: Instant) -> Option<Result<(), String>> {
        let results: Vec<_> = self.answers.iter().map(|answer| answer()).collect();
        if results.iter().any(|it| matches!(it, Some(Ok(())))) {
            return Some(Ok(()));
        }
        let is_over = results.iter().all(Option::is_some) || self.is_over(now);
        let mut failures = results.into_iter().flatten().filter_map(Result::err);
        if is_over { failures.next().map(Err) } else { None }
    }

    fn is_over(&self, now: Instant) -> bool {
        PROBE_DEADLINE + REPORT_MARGIN <= now.saturating_duration_since(self.began)
    }
}

impl Links {
    /// Marks a good link as suspected: the ranks on its machines wait for each other, or for
    /// others.
    pub(super) fn suspect(&mut self, one: usize, other: usize, data: [Option<SocketAddr>; 2]) {
        let link = self.link(one, other);
        link.data = if one < other { data } else { [data[1], data[0]] };
        if link.state == State::Good {
            link.state = State::Suspected;
        }
    }

    /// Records that a group could not be formed because of this link.
    pub(super) fn join_failed(&mut self, one: usize, other: usize, now: Instant) {
        let link = self.link(one, other);
        // Both ends report the same failure; it counts once.
        let earlier = link.join_failed_at.filter(|at| PROBE_DEADLINE <= now.duration_since(*at));
        link.join_failed_at = link.join_failed_at.filter(|_| earlier.is_none()).or(Some(now));
        let is_again = earlier.is_some_and(|at| now.duration_since(at) <= JOINS_FAIL_WITHIN);
        if is_again && !matches!(link.state, State::Broken { .. }) {
            let reason = "its ranks cannot connect, though other programs there answer".to_owned();
            link.num_breaks += 1;
            link.state = State::Broken { since: now, reason, until: Some(now + JOINS_FAIL_HOLD) };
        }
    }

    /// Marks the links of a machine that no longer computes: they are probed before it computes
    /// again.
    pub(super) fn leave_out(&mut self, machine: usize, num_machines: usize) {
        for other in (0..num_machines).filter(|other| *other != machine) {
            let link = self.link(machine, other);
            if matches!(link.state, State::Good | State::Suspected | State::Mended { .. }) {
                link.state = State::Unused;
                link.attempts.clear();
            }
        }
    }

    /// Processes probe results and starts new probes. `computes` says which machines have ranks
    /// now.
    pub(super) fn watch(
        &mut self,
        now: Instant,
        computes: impl Fn(usize) -> bool,
        prober: &impl Prober,
    ) {
        for (&(one, other), link) in &mut self.0 {
            let was_broken = link.is_broken();
            link.take_results(now);
            link.settle(now, computes(one) && computes(other));
            match (&link.state, was_broken) {
                (State::Broken { reason, .. }, false) => {
                    warn!(reason, "{} is broken", name(one, other, prober));
                }
                (State::Mended { .. }, true) => info!("{} is mended", name(one, other, prober)),
                _ => {}
            }
            if link.is_probe_due(now) {
                let there = prober.probe(one, other, link.data[0]);
                let back = prober.probe(other, one, link.data[1]);
                let answers = there.into_iter().chain(back).collect();
                link.attempts.push(Attempt { began: now, answers });
                link.probed_at = Some(now);
            }
        }
    }

    /// Whether any link is not good, so that its state may change.
    pub(super) fn is_watching(&self) -> bool {
        self.0.values().any(|link| link.state != State::Good)
    }

    /// Whether a group may have ranks on both machines. A broken link between machines that compute
    /// stays usable for `absent_after`, as a machine that is away does. A mended link must stay
    /// mended for a while before a machine that was left out is taken back.
    pub(super) fn is_usable(&self, pair: Pair, absent_after: Duration, now: Instant) -> bool {
        let Pair { one, other, is_used } = pair;
        let Some(link) = self.0.get(&(one.min(other), one.max(other))) else { return true };
        match link.state {
            State::Good | State::Suspected => true,
            State::Broken { since, .. } => is_used && now.duration_since(since) < absent_after,
            State::Mended { since } => {
                is_used || return_after(link.num_breaks) <= now.duration_since(since)
            }
            State::Unused => false,
        }
    }

    /// Describes a broken link between two machines that compute, if there is one.
    pub(super) fn broken(
        &self,
        now: Instant,
        computes: impl Fn(usize) -> bool,
        prober: &impl Prober,
    ) -> Option<String> {
        self.0.iter().find_map(|(&(one, other), link)| {
            let State::Broken { since, reason, .. } = &link.state else { return None };
            let broken_for = now.duration_since(*since).as_secs();
            (computes(one) && computes(other)).then(|| {
                format!(
                    "{} is broken (for {broken_for} s): {reason}\n\
                     hint: look at the cable or the network between the two machines, and at \
                     their firewalls",
                    name(one, other, prober)
                )
            })
        })
    }

    /// Returns all broken links, also between machines that do not compute.
    pub(super) fn all_broken(&self, prober: &impl Prober) -> Vec<BrokenLink> {
        let broken = |(&(one, other), link): (&(usize, usize), &WatchedLink)| {
            let State::Broken { since, reason, .. } = &link.state else { return None };
            let (between, reason) = (ends(one, other, prober), reason.clone());
            Some(BrokenLink { between, reason, since: *since })
        };
        self.0.iter().filter_map(broken).collect()
    }

    fn link(&mut self, one: usize, other: usize) -> &mut WatchedLink {
        self.0.entry((one.min(other), one.max(other))).or_insert(WatchedLink {
            state: State::Good,
            num_breaks: 0,
            data: [None; 2],
            attempts: Vec::new(),
            probed_at: None,
            join_failed_at: None,
        })
    }
}

/// Two machines that a group might have ranks on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    pub(super) one: usize,
    pub(super) other: usize,
    /// Whether both machines have ranks now.
    pub(super) is_used: bool,
}

impl WatchedLink {
    fn is_broken(&self) -> bool {
        matches!(self.state, State::Broken { .. })
    }

    fn is_probe_due(&self, now: Instant) -> bool {
        let is_due = self.probed_at.is_none_or(|at| PROBE_INTERVAL <= now.duration_since(at));
        match self.state {
            State::Good => false,
            State::Suspected => self.attempts.is_empty(),
            _ => is_due && self.attempts.len() < PROBES_MAX,
        }
    }

    fn take_results(&mut self, now: Instant) {
        let mut attempts = std::mem::take(&mut self.attempts);
        attempts.retain(|attempt| match attempt.result(now) {
            Some(result) => {
                self.take_result(result, attempt.began, now);
                false
            }
            None => !attempt.is_over(now),
        });
        if self.state != State::Good {
            self.attempts = attempts;
        }
    }

    fn take_result(&mut self, result: Result<(), String>, began: Instant, now: Instant) {
        match (&self.state, result) {
            (State::Broken { until: Some(until), .. }, Ok(())) if now < *until => {}
            (State::Broken { .. } | State::Unused, Ok(())) => {
                self.state = State::Mended { since: now };
            }
            (State::Suspected, Ok(())) => self.state = State::Good,
            // A probe that began before the link was mended is outdated.
            (State::Mended { since }, Err(_)) if began < *since => {}
            (State::Mended { .. } | State::Suspected, Err(reason)) => {
                self.num_breaks += 1;
                self.state = State::Broken { since: now, reason, until: None };
            }
            _ => {}
        }
    }

    /// Marks a mended link as good once it is used and has stayed mended long enough.
    fn settle(&mut self, now: Instant, is_used: bool) {
        if let State::Mended { since } = self.state
            && is_used
            && return_after(self.num_breaks) <= now.duration_since(since)
        {
            self.state = State::Good;
            self.attempts.clear();
        }
    }
}

fn name(one: usize, other: usize, prober: &impl Prober) -> String {
    format!("the link between {}", ends(one, other, prober))
}

/// Names both machines of a link, with the addresses by which they reach each other.
fn ends(one: usize, other: usize, prober: &impl Prober) -> String {
    let end = |of: usize, from: usize| match prober.name(from, of) {
        (name, Some(ip)) => format!("{name} ({ip})"),
        (name, None) => name,
    };
    format!("{} and {}", end(one, other), end(other, one))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    use super::*;

    /// Links that are cut, by the lower and the higher machine.
    #[derive(Default)]
    struct Network(RefCell<BTreeSet<(usize, usize)>>);

    impl Prober for Network {
        fn probe(&self, from: usize, to: usize, _: Option<SocketAddr>) -> Option<Answer> {
            let is_cut = self.0.borrow().contains(&(from.min(to), from.max(to)));
            let result = if is_cut { Err("no answer".to_owned()) } else { Ok(()) };
            Some(Box::new(move || Some(result.clone())))
        }

        fn name(&self, _: usize, to: usize) -> (String, Option<IpAddr>) {
            (format!("host-{to}"), Some([10, 0, 0, to as u8].into()))
        }
    }

    struct Case {
        links: Links,
        network: Network,
        now: Instant,
        computing: Vec<usize>,
    }

    impl Case {
        fn new() -> Case {
            let (links, network) = (Links::default(), Network::default());
            Case { links, network, now: Instant::now(), computing: vec![0, 1, 2] }
        }

        /// Lets time pass, with ten polls a second.
        fn pass(&mut self, time: Duration) {
            for _ in 0..time.as_millis() / 100 {
                self.now += Duration::from_millis(100);
                let computing = &self.computing;
                self.links.watch(self.now, |it| computing.contains(&it), &self.network);
            }
        }

        fn is_usable(&self, one: usize, other: usize) -> bool {
            let is_used = self.computing.contains(&one) && self.computing.contains(&other);
            self.links.is_usable(Pair { one, other, is_used }, ABSENT_AFTER, self.now)
        }

        fn broken(&self) -> Option<String> {
            self.links.broken(self.now, |it| self.computing.contains(&it), &self.network)
        }
    }

    const ABSENT_AFTER: Duration = Duration::from_secs(4);
    const MOMENT: Duration = Duration::from_millis(300);

    #[test]
    fn a_machine_that_leaves_again_and_again_is_trusted_later_each_time() {
        let seconds = |num_absences| return_after(num_absences).as_secs();
        assert_eq!([0, 1, 2, 3, 8].map(seconds), [2, 2, 4, 8, 256]);
        assert_eq!([9, 40, u32::MAX].map(seconds), [300, 300, 300]);
    }

    #[test]
    fn a_suspicion_that_both_ends_refute_is_forgotten() {
        let mut case = Case::new();
        case.links.suspect(2, 1, [None; 2]);
        assert!(case.links.is_watching());
        case.pass(MOMENT);
        assert!(!case.links.is_watching() && case.broken().is_none());
    }

    #[test]
    fn a_broken_link_is_named_with_both_ends_and_counts_as_long_as_an_absent_machine() {
        let mut case = Case::new();
        case.network.0.borrow_mut().insert((1, 2));
        for (one, other) in [(0, 1), (0, 2), (1, 2)] {
            case.links.suspect(one, other, [None; 2]);
        }
        case.pass(MOMENT);
        let text = case.broken().unwrap();
        assert!(
            text.starts_with("the link between host-1 (10.0.0.1) and host-2 (10.0.0.2)"),
            "{text}"
        );
        assert!(text.contains("no answer") && text.contains("\nhint: "), "{text}");
        assert!(case.is_usable(1, 2), "it may heal soon");
        case.pass(ABSENT_AFTER);
        assert!(!case.is_usable(1, 2) && case.is_usable(0, 1) && case.is_usable(0, 2));
        case.computing = vec![0, 1];
        case.links.leave_out(2, 3);
        assert!(case.broken().is_none(), "nobody needs it now");
        let known = case.links.all_broken(&case.network);
        assert_eq!(known.len(), 1, "{known:?}");
        assert_eq!(known[0].between, "host-1 (10.0.0.1) and host-2 (10.0.0.2)");
        assert!(!case.is_usable(1, 2) && !case.is_usable(0, 2), "it is tried before it is used");
        case.pass(MOMENT * 10);
        assert!(case.is_usable(0, 2) && !case.is_usable(1, 2));
        // Mended, but usable only after a while.
        case.network.0.borrow_mut().clear();
        case.pass(Duration::from_secs(1));
        assert!(!case.is_usable(1, 2));
        case.pass(return_after(1));
        assert!(case.is_usable(1, 2));
        case.computing = vec![0, 1, 2];
        case.pass(MOMENT);
        assert!(!case.links.is_watching(), "it is as good as any other");
    }

    #[test]
    fn a_link_that_heals_soon_is_used_at_once() {
        let mut case = Case::new();
        case.network.0.borrow_mut().insert((0, 2));
        case.links.suspect(0, 2, [None; 2]);
        case.pass(Duration::from_secs(2));
        assert!(case.broken().is_some());
        case.network.0.borrow_mut().clear();
        case.pass(PROBE_INTERVAL + MOMENT);
        assert!(case.broken().is_none() && case.is_usable(0, 2));
    }

    #[test]
    fn a_link_over_which_groups_do_not_form_is_broken_whatever_agents_say() {
        let mut case = Case::new();
        case.links.join_failed(1, 2, case.now);
        case.links.join_failed(2, 1, case.now + MOMENT);
        case.pass(MOMENT);
        assert!(case.broken().is_none(), "both ends report the same failure");
        case.pass(Duration::from_secs(20));
        case.links.join_failed(2, 1, case.now);
        case.pass(ABSENT_AFTER);
        assert!(case.broken().unwrap().contains("cannot connect"));
        assert!(!case.is_usable(1, 2));
        case.pass(JOINS_FAIL_HOLD);
        assert!(case.broken().is_none(), "it is tried again some time");
    }

    #[test]
    fn an_unanswered_probe_neither_breaks_nor_restores_a_link() {
        struct Nobody;
        impl Prober for Nobody {
            fn probe(&self, _: usize, _: usize, _: Option<SocketAddr>) -> Option<Answer> {
                None
            }
            fn name(&self, _: usize, to: usize) -> (String, Option<IpAddr>) {
                (to.to_string(), None)
            }
        }
        let (mut links, now) = (Links::default(), Instant::now());
        links.suspect(0, 1, [None; 2]);
        for tenths in 0..100 {
            links.watch(now + MOMENT * tenths, |_| true, &Nobody);
        }
        assert!(links.broken(now, |_| true, &Nobody).is_none() && links.is_watching());
    }
}
