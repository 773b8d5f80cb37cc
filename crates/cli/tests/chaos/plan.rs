//! Schedule and report of a chaos run. Pure: the schedule follows from its seed alone, the report
//! from the measurements.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};

use crate::random::Random;

/// Stall timeout of the server under test: a rank without progress for this time counts as frozen.
pub(crate) const STALL: Duration = Duration::from_secs(3);

/// `--absent-after` of the server under test: the time after which it goes on without a machine
/// that is away.
pub(crate) const ABSENT_AFTER: Duration = Duration::from_secs(4);

/// Random choices of one fault; enough for the largest storm.
const NUM_CHOICES: usize = 6;

/// Kind of fault that is inflicted on the server under test.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Kind {
    /// SIGKILL to one rank.
    Kill,
    /// SIGKILL to two ranks within 0.4 s.
    Burst,
    /// SIGKILL to three to six ranks within two seconds.
    Storm,
    /// SIGSTOP to one rank.
    Freeze,
    /// SIGKILL to one rank, and SIGSTOP to its replacement as soon as it appears.
    FrozenReplacement,
    /// The server's log is not read while a rank is killed.
    BlockedLog,
    /// Unauthenticated peers connect to the HTTP and control ports while a rank is killed.
    Flood,
    /// Clients open streams and disconnect.
    Disconnects,
    /// A worker and the coordinator do not reach each other for some seconds.
    LinkToCoordinator,
    /// Two workers do not reach each other for some seconds.
    LinkBetweenWorkers,
    /// One worker's frames to one other host are lost for some seconds.
    OneWay,
    /// SIGSTOP to a worker's agent.
    HungAgent,
    /// SIGKILL to a worker's agent.
    KilledAgent,
    /// A worker loses its power, and gets it back later.
    MachineAway,
}

impl Kind {
    /// Kinds of faults for a server on one machine.
    pub(crate) const ON_ONE_MACHINE: [Kind; 8] = [
        Kind::Kill,
        Kind::Burst,
        Kind::Storm,
        Kind::Freeze,
        Kind::FrozenReplacement,
        Kind::BlockedLog,
        Kind::Flood,
        Kind::Disconnects,
    ];

    /// Kinds of faults for hosts with a network between them.
    pub(crate) const ON_HOSTS: [Kind; 9] = [
        Kind::Kill,
        Kind::Burst,
        Kind::Freeze,
        Kind::LinkToCoordinator,
        Kind::LinkBetweenWorkers,
        Kind::OneWay,
        Kind::HungAgent,
        Kind::KilledAgent,
        Kind::MachineAway,
    ];

    /// Its name in reports and after `--faults`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Kill => "kill",
            Kind::Burst => "burst",
            Kind::Storm => "storm",
            Kind::Freeze => "freeze",
            Kind::FrozenReplacement => "frozen-replacement",
            Kind::BlockedLog => "blocked-log",
            Kind::Flood => "flood",
            Kind::Disconnects => "disconnects",
            Kind::LinkToCoordinator => "link-to-coordinator",
            Kind::LinkBetweenWorkers => "link-between-workers",
            Kind::OneWay => "one-way",
            Kind::HungAgent => "hung-agent",
            Kind::KilledAgent => "killed-agent",
            Kind::MachineAway => "machine-away",
        }
    }

    pub(crate) fn of_name(name: &str) -> Option<Kind> {
        let all = Kind::ON_ONE_MACHINE.into_iter().chain(Kind::ON_HOSTS);
        all.into_iter().find(|kind| kind.name() == name)
    }

    /// Maximum pause without a token of any stream, from the last harm on. After a mend,
    /// [`Kind::bound_when_mended`] applies.
    pub(crate) fn bound(self) -> Duration {
        let second = Duration::from_secs(1);
        match self {
            Kind::Kill | Kind::Burst | Kind::Storm | Kind::BlockedLog | Kind::Disconnects => second,
            Kind::Flood => 2 * second,
            Kind::Freeze | Kind::FrozenReplacement => STALL + second,
            // The server goes on without the machine that it cannot reach.
            Kind::LinkToCoordinator | Kind::LinkBetweenWorkers | Kind::OneWay => {
                ABSENT_AFTER + STALL + 2 * second
            }
            Kind::HungAgent | Kind::KilledAgent => ABSENT_AFTER + 2 * second,
            Kind::MachineAway => ABSENT_AFTER + STALL + 2 * second,
        }
    }

    /// Maximum pause after a link was mended or a machine came back.
    pub(crate) fn bound_when_mended(self) -> Duration {
        Duration::from_secs(2)
    }
}

impl Random {
    fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least + self.below(most - least + 1))
    }
}

/// One fault with all its random choices, so that timing changes none of them.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    /// Time without a fault before this one.
    pub(crate) quiet: Duration,
    /// Numbers of the affected ranks or hosts, modulo how many there are.
    pub(crate) victims: Vec<usize>,
    /// Pauses between the victims.
    pub(crate) gaps: Vec<Duration>,
    /// Duration of a lasting fault.
    pub(crate) length: Duration,
}

impl Fault {
    /// Description for the log of a run.
    pub(crate) fn words(&self) -> String {
        let Fault { kind, victims, length, .. } = self;
        format!("{} of {victims:?}, {:.1} s", kind.name(), length.as_secs_f64())
    }
}

/// An endless sequence of faults. Kinds come in shuffled rounds, so that a short run includes all
/// of them.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    random: Random,
    kinds: Vec<Kind>,
    deck: Vec<Kind>,
}

impl Schedule {
    pub(crate) fn new(seed: u64, kinds: &[Kind]) -> Schedule {
        assert!(!kinds.is_empty(), "there is something to do");
        // Xorshift maps zero to itself, and neighbouring seeds must differ at once.
        let seed = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        Schedule { random: Random(seed), kinds: kinds.to_vec(), deck: Vec::new() }
    }

    fn kind(&mut self) -> Kind {
        if self.deck.is_empty() {
            self.deck = self.kinds.clone();
            // Kills happen most often in practice.
            let kills = self.kinds.iter().filter(|it| **it == Kind::Kill).count();
            self.deck.extend(std::iter::repeat_n(Kind::Kill, 2 * kills));
            for idx in (1..self.deck.len()).rev() {
                let other = self.random.below(idx as u64 + 1) as usize;
                self.deck.swap(idx, other);
            }
        }
        self.deck.pop().expect("it was filled")
    }
}

impl Iterator for Schedule {
    type Item = Fault;

    fn next(&mut self) -> Option<Fault> {
        let kind = self.kind();
        let random = &mut self.random;
        let quiet = random.millis(200, 1200);
        let all: Vec<usize> = (0..NUM_CHOICES).map(|_| random.below(60) as usize).collect();
        let gaps = (0..NUM_CHOICES).map(|_| random.millis(0, 400)).collect();
        let num_victims = match kind {
            Kind::Burst => 2,
            Kind::Storm => 3 + random.below(4) as usize,
            _ => 1,
        };
        let length = match kind {
            Kind::BlockedLog => random.millis(3000, 5000),
            Kind::Flood => random.millis(4000, 8000),
            Kind::MachineAway => random.millis(5000, 9000),
            Kind::LinkToCoordinator | Kind::LinkBetweenWorkers | Kind::OneWay => {
                random.millis(1000, 12_000)
            }
            _ => Duration::ZERO,
        };
        Some(Fault { kind, quiet, victims: all[..num_victims].to_vec(), gaps, length })
    }
}

/// Observations of the streams since they were last taken.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Arrival times of tokens, by stream, in seconds of the run.
    pub(crate) tokens: Vec<Vec<f64>>,
    /// Streams that failed, in words.
    pub(crate) lost: Vec<String>,
    /// Streams whose tokens differed from the reference, in words.
    pub(crate) changed: Vec<String>,
}

/// Start of a period in which pauses are judged, and the bound for them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Phase {
    pub(crate) at_s: f64,
    pub(crate) bound: Duration,
}

/// Measured effects of one fault.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    /// Longest time without a token of any stream, after the last harm or mend.
    pub(crate) any_s: f64,
    /// Longest time without a token of the slowest stream, likewise.
    pub(crate) every_s: f64,
    /// As `every_s`, from the first harm on.
    pub(crate) silence_s: f64,
    /// The longest pause that exceeded its bound, and that bound.
    pub(crate) over: Option<(f64, f64)>,
}

impl Outcome {
    /// Judges the arrival times of tokens, by stream in seconds, until `end_s`.
    pub(crate) fn of(tokens: &[Vec<f64>], phases: &[Phase], end_s: f64) -> Outcome {
        let mut merged: Vec<f64> = tokens.iter().flatten().copied().collect();
        merged.sort_by(f64::total_cmp);
        let mut outcome = Outcome::default();
        let of_streams = |from: f64, until: f64| {
            tokens.iter().map(|it| longest_pause(it, from, until)).fold(0.0, f64::max)
        };
        for (idx, phase) in phases.iter().enumerate() {
            let until = phases.get(idx + 1).map_or(end_s, |next| next.at_s);
            let pause = longest_pause(&merged, phase.at_s, until);
            let bound = phase.bound.as_secs_f64();
            if bound < pause && outcome.over.is_none_or(|(worst, _)| worst < pause) {
                outcome.over = Some((pause, bound));
            }
            (outcome.any_s, outcome.every_s) = (pause, of_streams(phase.at_s, until));
        }
        let from = phases.first().map_or(end_s, |it| it.at_s);
        outcome.silence_s = of_streams(from, end_s);
        outcome
    }
}

/// The longest part of `from..until` without one of these moments.
fn longest_pause(moments: &[f64], from: f64, until: f64) -> f64 {
    let (mut last, mut longest) = (from, 0.0_f64);
    for &moment in moments.iter().filter(|it| (from..until).contains(*it)) {
        longest = longest.max(moment - last);
        last = moment;
    }
    longest.max(until - last)
}

/// Results of all faults of one kind.
#[derive(Clone, Debug, Default)]
struct Row {
    outcomes: Vec<Outcome>,
    num_lost: usize,
    num_changed: usize,
}

/// Results of a run so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    rows: BTreeMap<Kind, Row>,
    /// Failures, in words.
    pub(crate) wrong: Vec<String>,
}

impl Report {
    /// Adds the outcome of a fault, and the numbers of lost streams and of streams with changed
    /// tokens.
    pub(crate) fn add(&mut self, kind: Kind, outcome: Outcome, lost: usize, changed: usize) {
        let row = self.rows.entry(kind).or_default();
        row.outcomes.push(outcome);
        row.num_lost += lost;
        row.num_changed += changed;
    }

    /// Adds the failures that streams observed; `during` names the period.
    pub(crate) fn count_wrong(&mut self, during: &str, seen: &Seen) {
        let lost = seen.lost.iter().map(|it| format!("{during}: lost: {it}"));
        let changed = seen.changed.iter().map(|it| format!("{during}: tokens changed: {it}"));
        self.wrong.extend(lost.chain(changed));
    }

    pub(crate) fn num_faults(&self) -> usize {
        self.rows.values().map(|row| row.outcomes.len()).sum()
    }

    /// Whether no stream was lost or changed and no bound was exceeded.
    pub(crate) fn is_well(&self) -> bool {
        self.wrong.is_empty() && self.rows.values().all(|it| it.num_lost + it.num_changed == 0)
    }

    /// Table for people, and for BENCHMARKS.md.
    pub(crate) fn table(&self) -> String {
        let mut text = String::from(
            "| Fault | Count | Streams lost | Tokens changed | Until any stream goes on: median / 95 % / most | \
             Until every stream goes on: median / 95 % / most | Longest silence of a stream | Over the bound |\n\
             |---|---|---|---|---|---|---|---|\n",
        );
        for (kind, row) in &self.rows {
            let [any, every] = row.quantiles();
            let words = |it: [f64; 3]| format!("{:.2} / {:.2} / {:.2} s", it[0], it[1], it[2]);
            let line = format!(
                "| {} | {} | {} | {} | {} | {} | {:.2} s | {} |",
                kind.name(),
                row.outcomes.len(),
                row.num_lost,
                row.num_changed,
                words(any),
                words(every),
                row.silence_s(),
                row.num_over()
            );
            // Writing to a string does not fail.
            writeln!(text, "{line}").ok();
        }
        text
    }

    /// Report for programs.
    pub(crate) fn json(&self) -> Value {
        let row = |(kind, row): (&Kind, &Row)| {
            let [any, every] = row.quantiles();
            let quantiles = |it: [f64; 3]| json!({"median": it[0], "p95": it[1], "max": it[2]});
            json!({
                "kind": kind.name(),
                "faults": row.outcomes.len(),
                "streams_lost": row.num_lost,
                "streams_changed": row.num_changed,
                "any_stream_s": quantiles(any),
                "every_stream_s": quantiles(every),
                "longest_silence_s": row.silence_s(),
                "bound_s": kind.bound().as_secs_f64(),
                "over_bound": row.num_over(),
            })
        };
        json!({
            "ok": self.is_well(),
            "faults": self.num_faults(),
            "kinds": self.rows.iter().map(row).collect::<Vec<Value>>(),
            "wrong": self.wrong,
        })
    }
}

impl Row {
    /// Median, 95th percentile and maximum: until any stream goes on, and until every one does.
    fn quantiles(&self) -> [[f64; 3]; 2] {
        let of = |pick: fn(&Outcome) -> f64| {
            let mut values: Vec<f64> = self.outcomes.iter().map(pick).collect();
            values.sort_by(f64::total_cmp);
            [0.5, 0.95, 1.0].map(|share| quantile(&values, share))
        };
        [of(|it| it.any_s), of(|it| it.every_s)]
    }

    fn silence_s(&self) -> f64 {
        self.outcomes.iter().map(|it| it.silence_s).fold(0.0, f64::max)
    }

    fn num_over(&self) -> usize {
        self.outcomes.iter().filter(|it| it.over.is_some()).count()
    }
}

/// Nearest-rank quantile of sorted values; 0 if there are none.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}
