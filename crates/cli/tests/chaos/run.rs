//! A chaos run: options, the loop over faults, and the printed results.

use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::{Parser, ValueEnum};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use crate::machine::{Harm, Machine};
use crate::network::Network;
use crate::plan::{Fault, Kind, Outcome, Phase, Report, Schedule};
use crate::program::command;
use crate::streams::{Streams, agent};
use crate::{checkpoint, flood, lab};

/// How long after a fault's bound everything may take to go on before the run ends.
const GIVE_UP_AFTER: Duration = Duration::from_secs(30);

/// How long `/health/ready` may take to answer.
const READY_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval between two queries of a server that recovers.
const POLL: Duration = Duration::from_millis(10);

/// Failures that are printed; `--json` has them all.
const WRONG_MAX: usize = 60;

/// Tokens after a fault with which a stream counts as going on.
const TOKENS_AFTER: usize = 3;

/// Chaos: a real server under faults from a seed.
#[derive(Clone, Debug, Parser)]
#[command(name = "cargo xtask chaos")]
struct Options {
    /// Minutes after which no further fault begins.
    #[arg(long, value_name = "MINUTES")]
    minutes: f64,
    /// Seed of the faults. Default: from the clock.
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// Use hosts in network namespaces, with faults of their network (root only).
    #[arg(long)]
    hosts: bool,
    /// Write the report to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Checkpoint: the one that ships, or random weights of Qwen3 0.6B's shape.
    #[arg(long, value_enum, default_value = "mini")]
    size: Size,
    /// Factor for all bounds, for slow machines.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    patience: f64,
    /// Number of streams open at a time.
    #[arg(long, value_name = "COUNT", default_value_t = 8)]
    streams: usize,
    /// Number of ranks on one machine.
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    ranks: usize,
    /// Kinds of faults, separated by commas. Default: all.
    #[arg(long, value_name = "KINDS", value_delimiter = ',')]
    faults: Vec<String>,
    /// End after this number of faults. Default: when the time is over.
    #[arg(long, value_name = "COUNT")]
    count: Option<usize>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Size {
    Mini,
    #[value(name = "0.6b")]
    B0_6,
}

impl Options {
    /// Parses the command line. Under `cargo test` there is one fault, or none if the filter
    /// selects other tests.
    fn read() -> Option<Options> {
        let words: Vec<String> = std::env::args().skip(1).collect();
        let name = "cargo xtask chaos".to_owned();
        if words.iter().any(|it| it == "--help" || it.starts_with("--minutes")) {
            return Some(Options::parse_from(std::iter::once(name).chain(words)));
        }
        let is_meant = |it: &String| it.starts_with('-') || "chaos".contains(it.as_str());
        if !words.iter().all(is_meant) || words.iter().any(|it| it == "--list") {
            return None;
        }
        let smoke =
            "--minutes 1 --seed 1 --count 1 --faults kill --streams 4 --ranks 2 --patience 5";
        Some(Options::parse_from(std::iter::once(name.as_str()).chain(smoke.split(' '))))
    }

    fn kinds(&self) -> anyhow::Result<Vec<Kind>> {
        let possible: &[Kind] = if self.hosts { &Kind::ON_HOSTS } else { &Kind::ON_ONE_MACHINE };
        if self.faults.is_empty() {
            return Ok(possible.to_vec());
        }
        let kind = |name: &String| {
            let kind = Kind::of_name(name).filter(|kind| possible.contains(kind));
            let names = || possible.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ");
            kind.with_context(|| format!("no fault {name} here\nhint: choose among {}", names()))
        };
        self.faults.iter().map(kind).collect()
    }

    fn seed(&self) -> u64 {
        let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        self.seed.unwrap_or_else(|| now().map_or(0, |it| it.as_micros() as u64 % 1_000_000))
    }
}

pub(crate) fn main() -> ExitCode {
    let Some(options) = Options::read() else { return ExitCode::SUCCESS };
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(err) => {
            eprintln!("error: {err:#}");
            ExitCode::FAILURE
        }
    }
}

/// The server under test.
enum Target {
    Machine(Box<Machine>),
    Network(Box<Network>),
}

impl Target {
    fn start(options: &Options) -> anyhow::Result<Target> {
        let program = Path::new(env!("CARGO_BIN_EXE_jackalope"));
        let rank = program.with_file_name("jackalope-rank");
        ensure!(
            rank.is_file(),
            "{} is not built\nhint: cargo build -p jackalope-runner",
            rank.display()
        );
        let model = model(options.size, program)?;
        if !options.hosts {
            let machine = Machine::start(program, &model, options.ranks)?;
            return Ok(Target::Machine(Box::new(machine)));
        }
        if let Some(reason) = lab::missing() {
            bail!("{reason}");
        }
        Ok(Target::Network(Box::new(Network::start(&model))))
    }

    fn url(&self) -> &str {
        match self {
            Target::Machine(machine) => &machine.url,
            Target::Network(network) => &network.server.url,
        }
    }

    /// Inflicts a fault. Returns what was done, and the periods in which pauses are judged.
    fn inflict(
        &mut self,
        fault: &Fault,
        patience: f64,
        now_s: impl Fn() -> f64 + Copy,
    ) -> (Harm, Vec<Phase>) {
        let (harm, mended) = match self {
            Target::Machine(machine) => (machine.inflict(fault, now_s), None),
            Target::Network(network) => network.inflict(fault, now_s),
        };
        let phase = |at_s, bound: Duration| Phase { at_s, bound: bound.mul_f64(patience) };
        let mut phases = vec![phase(harm.at_s, fault.kind.bound())];
        phases.extend(mended.map(|at_s| phase(at_s, fault.kind.bound_when_mended())));
        (harm, phases)
    }

    /// Describes how the server ended, if it did.
    fn ended(&mut self) -> Option<String> {
        match self {
            Target::Machine(machine) => machine.ended(),
            // A server that has ended answers no query, which ends the run as well.
            Target::Network(_) => None,
        }
    }

    /// Whether all machines compute again.
    fn is_whole(&self) -> bool {
        match self {
            Target::Machine(_) => true,
            Target::Network(network) => {
                get(self.url(), "/health").is_some_and(|(_, health)| network.is_whole(&health))
            }
        }
    }

    fn last_words(&self) -> String {
        match self {
            Target::Machine(machine) => machine.last_lines(),
            Target::Network(_) => String::new(),
        }
    }
}

/// Status and body; `None` without an answer.
fn get(url: &str, path: &str) -> Option<(u16, Value)> {
    let mut response = agent(READY_TIMEOUT).get(format!("{url}{path}")).call().ok()?;
    let text = response.body_mut().read_to_string().ok()?;
    Some((response.status().as_u16(), serde_json::from_str(&text).unwrap_or_default()))
}

/// Returns the checkpoint's folder; creates the checkpoint if needed.
fn model(size: Size, program: &Path) -> anyhow::Result<PathBuf> {
    if size == Size::Mini {
        return Ok(checkpoint::shipped());
    }
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../bench/qwen3-0.6b-4bit");
    if !dir.join("config.json").is_file() {
        println!("making a checkpoint of Qwen3 0.6B's shape");
        let mut synth = command(program);
        synth.args(["synth", "--size", "0.6b", "--bits", "4", "--out"]).arg(&dir);
        let status = synth.stdout(Stdio::null()).status().context("starting jackalope synth")?;
        ensure!(status.success(), "`jackalope synth` ended with {status}");
    }
    Ok(dir)
}

/// Returns a flag that an interrupt (Ctrl-C, SIGTERM) sets.
fn interrupted() -> anyhow::Result<Arc<AtomicBool>> {
    let is_over = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&is_over);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut terminate = {
        let _entered = runtime.enter();
        signal(SignalKind::terminate())?
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
        });
        println!("\ninterrupted: this is what was found so far");
        flag.store(true, Ordering::SeqCst);
    });
    Ok(is_over)
}

/// Runs the test. Returns true if nothing is wrong.
fn run(options: &Options) -> anyhow::Result<bool> {
    let (seed, kinds) = (options.seed(), options.kinds()?);
    let length = Duration::try_from_secs_f64(options.minutes * 60.0);
    let length = length.context("`--minutes` is no time\nhint: give a positive number")?;
    ensure!(0.0 < options.patience, "`--patience` is no factor\nhint: give a positive number");
    flood::raise_open_files();
    let is_over = interrupted()?;
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
    println!("chaos: --seed {seed} --patience {} --faults {}", options.patience, names.join(","));
    let target = Target::start(options)?;
    let max_tokens = if options.size == Size::Mini { 300 } else { 60 };
    let streams = Streams::open(target.url(), options.streams, max_tokens);
    let (patience, report) = (options.patience, Report::default());
    let mut run = Run { target, streams, patience, is_over, report };
    let began = Instant::now();
    let faults = Schedule::new(seed, &kinds).take(options.count.unwrap_or(usize::MAX));
    for (number, fault) in faults.enumerate() {
        if length <= began.elapsed() || run.is_over.load(Ordering::SeqCst) {
            break;
        }
        std::thread::sleep(fault.quiet);
        if let Err(why) = run.one_fault(number, &fault) {
            let words = format!("#{number} {}: the run ends here: {why}", fault.words());
            // The failure that ended the run comes first.
            run.report.wrong.insert(0, words);
            break;
        }
    }
    run.end(options, seed, began.elapsed())
}

/// A server under test, and the results so far.
struct Run {
    target: Target,
    streams: Streams,
    patience: f64,
    is_over: Arc<AtomicBool>,
    report: Report,
}

impl Run {
    /// Inflicts one fault and waits until everything goes on. The error says what did not.
    fn one_fault(&mut self, number: usize, fault: &Fault) -> Result<(), String> {
        let Run { target, streams, patience, is_over, report } = self;
        report.count_wrong(&format!("before #{number}"), &streams.take());
        let (harm, phases) = target.inflict(fault, *patience, || streams.now_s());
        let recovered = wait_until_all_go_on(target, streams, &harm, fault.kind, is_over);
        if recovered == Ok(Waited::Interrupted) {
            // An interrupted recovery cannot be judged.
            return Ok(());
        }
        let seen = streams.take();
        let outcome = Outcome::of(&seen.tokens, &phases, streams.now_s());
        let name = format!("#{number} {}{}", fault.kind.name(), harm.words);
        println!(
            "{name}: {:.2} s until any stream went on, {:.2} s until all; {} lost, {} changed",
            outcome.any_s,
            outcome.every_s,
            seen.lost.len(),
            seen.changed.len()
        );
        if let Some((pause, bound)) = outcome.over {
            let words = format!("{name}: {pause:.2} s without a token, {bound:.2} s are allowed");
            report.wrong.push(words);
        }
        report.count_wrong(&name, &seen);
        report.add(fault.kind, outcome, seen.lost.len(), seen.changed.len());
        recovered.map(drop)
    }

    /// Ends the server and prints the report. Returns true if nothing is wrong.
    fn end(self, options: &Options, seed: u64, took: Duration) -> anyhow::Result<bool> {
        let Run { target, streams, mut report, .. } = self;
        report.count_wrong("at the end", &streams.take());
        let num_whole = streams.num_whole();
        let counters = get(target.url(), "/health").map(|it| it.1["counters"].clone());
        let counters = counters.unwrap_or_default();
        let last_words = target.last_words();
        drop(streams);
        if let Target::Machine(machine) = target
            && let Err(why) = machine.end()
        {
            report.wrong.push(why);
        }
        Shown { seed, took, num_whole, counters }.print(&report, options, &last_words)?;
        Ok(report.is_well())
    }
}

/// How a wait for all streams ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Waited {
    AllGoOn,
    Interrupted,
}

/// Waits until the victims are gone, the server is ready, and every stream goes on.
fn wait_until_all_go_on(
    target: &mut Target,
    streams: &Streams,
    harm: &Harm,
    kind: Kind,
    is_over: &AtomicBool,
) -> Result<Waited, String> {
    let mut patience = kind.bound() + GIVE_UP_AFTER;
    if matches!(target, Target::Network(_)) {
        patience += Network::return_timeout();
    }
    let deadline = Instant::now() + patience;
    let mut ready_at: Option<f64> = None;
    loop {
        let alive: Vec<&u32> = harm.victims.iter().filter(|pid| is_there(**pid)).collect();
        if let Some(why) = target.ended() {
            return Err(why);
        }
        if ready_at.is_none() && alive.is_empty() {
            let is_ready = get(target.url(), "/health/ready").is_some_and(|it| it.0 == 200);
            ready_at = (is_ready && target.is_whole()).then(|| streams.now_s());
        }
        let slow = ready_at.map(|at_s| streams.slow_after(at_s, TOKENS_AFTER));
        if slow.as_ref().is_some_and(Vec::is_empty) {
            return Ok(Waited::AllGoOn);
        }
        if is_over.load(Ordering::SeqCst) {
            return Ok(Waited::Interrupted);
        }
        if deadline <= Instant::now() {
            return Err(match slow {
                Some(slow) => format!("streams {slow:?} do not go on within {patience:?}"),
                None if !alive.is_empty() => format!("processes {alive:?} are still there"),
                None => format!("the server is not ready within {patience:?}"),
            });
        }
        std::thread::sleep(POLL);
    }
}

/// Whether a process exists and has not ended.
fn is_there(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|it| it.1.split_whitespace().next());
    state.is_some_and(|state| !"ZX".contains(state))
}

/// What is printed besides the faults.
struct Shown {
    seed: u64,
    took: Duration,
    num_whole: u64,
    counters: Value,
}

impl Shown {
    fn print(&self, report: &Report, options: &Options, last_words: &str) -> anyhow::Result<()> {
        let Shown { seed, took, num_whole, counters } = self;
        println!("\n{}", report.table());
        println!(
            "{} faults in {:.0} s, {num_whole} streams answered wholly and rightly; --seed {seed}",
            report.num_faults(),
            took.as_secs_f64()
        );
        if !report.is_well() {
            println!("\nwrong:");
            report.wrong.iter().take(WRONG_MAX).for_each(|it| println!("  {it}"));
            if WRONG_MAX < report.wrong.len() {
                println!("  and {} more", report.wrong.len() - WRONG_MAX);
            }
            println!("\nthe server's last lines:\n{last_words}");
        }
        if let Some(path) = &options.json {
            let mut json = report.json();
            json["seed"] = json!(seed);
            json["seconds"] = json!(took.as_secs_f64());
            json["patience"] = json!(options.patience);
            json["hosts"] = json!(options.hosts);
            json["streams_whole"] = json!(num_whole);
            json["counters"] = counters.clone();
            let text = format!("{json:#}\n");
            std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(())
    }
}
