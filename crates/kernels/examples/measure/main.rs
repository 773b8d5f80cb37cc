//! The CPU kernels on the shapes of Qwen3 0.6B, beside what this machine can do at best:
//! `measure [--threads 1,2] [--cpu SET|all] [--json] [--limits] [FILTER]`. Only lines whose name contains the filter
//! are measured; with `--limits` none is.
//!
//! Weights are streamed from memory far larger than the caches, as in decoding. Each figure is the best of several
//! passes; rooflines are those of the same run.

#![expect(clippy::print_stdout, reason = "an example speaks to people")]

mod cases;
mod divided;
mod experts;

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use jackalope_kernels::{InstructionSet, Limits, Threads, limits};
use serde_json::json;

/// Time spent on each line.
const MEASURE: Duration = Duration::from_millis(200);

/// Time spent on each comparison.
const COMPARE: Duration = Duration::from_millis(1000);

/// Minimum number of turns of a comparison.
const TURNS_MIN: usize = 9;

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let options = Options::parse(&args)?;
    for &instructions in &options.sets {
        for &count in &options.threads {
            let threads = Threads::with_instructions(count, instructions);
            let mut report = Report { limits: limits(&threads), options: &options, threads };
            report.print_limits();
            if !options.is_limits {
                cases::measure_all(&mut report);
                divided::measure_all(&mut report);
                experts::measure_all(&mut report);
            }
        }
    }
    Ok(())
}

/// What was asked for.
struct Options {
    threads: Vec<usize>,
    sets: Vec<InstructionSet>,
    is_json: bool,
    is_limits: bool,
    filter: String,
}

impl Options {
    fn parse(args: &[String]) -> anyhow::Result<Options> {
        let mut options = Options {
            threads: vec![1, 2],
            sets: vec![InstructionSet::from_environment()?],
            is_json: false,
            is_limits: false,
            filter: String::new(),
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("`{arg}` takes a value"));
            match arg.as_str() {
                "--json" => options.is_json = true,
                "--limits" => options.is_limits = true,
                "--threads" => {
                    let counts = value()?.split(',').map(str::parse);
                    options.threads = counts.collect::<Result<_, _>>().context("--threads")?;
                }
                "--cpu" => match value()?.as_str() {
                    "all" => options.sets = InstructionSet::available(),
                    name => options.sets = vec![name.parse()?],
                },
                _ => {
                    ensure!(!arg.starts_with('-'), "`bench kernels` has no option {arg}");
                    options.filter.clone_from(arg);
                }
            }
        }
        Ok(options)
    }
}

/// What a call does.
#[derive(Clone, Copy)]
struct Work {
    /// Read from memory, packed as it lies there.
    bytes: usize,
    macs: usize,
    /// Whether 16-bit activations meet whole codes.
    is_whole: bool,
}

/// One of two ways to compute the same.
struct Call<F> {
    name: &'static str,
    run: F,
}

fn timed(threads: &Threads, call: &mut impl FnMut(&Threads)) -> Duration {
    let start = Instant::now();
    call(threads);
    start.elapsed()
}

/// Measures and prints.
struct Report<'a> {
    options: &'a Options,
    threads: Threads,
    limits: Limits,
}

impl Report<'_> {
    fn wants(&self, name: &str) -> bool {
        name.contains(&self.options.filter)
    }

    fn print_limits(&self) {
        let Limits {
            read_bytes_per_s,
            dispatch_s,
            copy_bytes_per_s,
            f32_macs_per_s,
            whole_macs_per_s,
        } = self.limits;
        let (set, count) = (self.threads.instructions(), self.threads.count());
        if self.options.is_json {
            let line = json!({
                "set": set.name(), "threads": count, "read_bytes_per_s": read_bytes_per_s,
                "copy_bytes_per_s": copy_bytes_per_s, "f32_macs_per_s": f32_macs_per_s,
                "whole_macs_per_s": whole_macs_per_s,
                "dispatch_s": dispatch_s,
            });
            println!("{line}");
            return;
        }
        let whole = whole_macs_per_s
            .map_or(String::new(), |macs| format!(", {:.0} GMAC/s whole numbers", macs / 1e9));
        println!(
            "\n{} with {count} threads: memory reads {:.1} GB/s and copies {:.1} GB/s; \
             {:.0} GMAC/s f32{whole}; {:.1} µs to start all threads",
            set.name(),
            read_bytes_per_s / 1e9,
            copy_bytes_per_s / 1e9,
            f32_macs_per_s / 1e9,
            dispatch_s * 1e6
        );
        if !self.options.is_limits {
            println!("{:44} {:>8} {:>5} {:>8} {:>5}", "kernel", "GB/s", "%", "GMAC/s", "%");
        }
    }

    /// Prints the best of several calls.
    fn measure(&mut self, name: &str, work: Work, mut call: impl FnMut(&Threads)) {
        let begin = Instant::now();
        let mut best = Duration::MAX;
        while best == Duration::MAX || begin.elapsed() < MEASURE {
            best = best.min(timed(&self.threads, &mut call));
        }
        self.print(name, work, best);
    }

    /// Makes two calls in turns, so that other load on the machine affects both equally, and prints the best of each
    /// and how fast the second one is compared with the first, which is the median of all turns.
    fn compare<A: FnMut(&Threads), B: FnMut(&Threads)>(
        &mut self,
        name: &str,
        work: Work,
        mut first: Call<A>,
        mut second: Call<B>,
    ) {
        let begin = Instant::now();
        let mut turns: Vec<[Duration; 2]> = Vec::new();
        while turns.len() < TURNS_MIN || begin.elapsed() < COMPARE {
            let turn =
                [timed(&self.threads, &mut first.run), timed(&self.threads, &mut second.run)];
            turns.push(turn);
        }
        for (idx, call) in [first.name, second.name].into_iter().enumerate() {
            let best = turns.iter().map(|turn| turn[idx]).min().expect("some turns");
            self.print(&format!("{name}, {call}"), work, best);
        }
        let mut ratios: Vec<f64> =
            turns.iter().map(|[first, second]| first.div_duration_f64(*second)).collect();
        ratios.sort_by(f64::total_cmp);
        let ratio = ratios[ratios.len() / 2];
        if self.options.is_json {
            let line = json!({
                "compared": name, "set": self.threads.instructions().name(),
                "threads": self.threads.count(), "ratio": ratio, "turns": turns.len(),
            });
            println!("{line}");
        } else {
            let (first, second) = (first.name, second.name);
            println!("{name:44} {second} has {ratio:.3} of the speed of {first}");
        }
    }

    fn print(&self, name: &str, work: Work, best: Duration) {
        let seconds = best.as_secs_f64();
        let (bytes_per_s, macs_per_s) = (work.bytes as f64 / seconds, work.macs as f64 / seconds);
        let peak = match self.limits.whole_macs_per_s {
            Some(peak) if work.is_whole => peak,
            _ => self.limits.f32_macs_per_s,
        };
        let of_memory = bytes_per_s / self.limits.read_bytes_per_s;
        let of_peak = macs_per_s / peak;
        if self.options.is_json {
            let line = json!({
                "kernel": name, "set": self.threads.instructions().name(),
                "threads": self.threads.count(), "seconds": seconds,
                "bytes_per_s": bytes_per_s, "of_memory": of_memory,
                "macs_per_s": macs_per_s, "of_peak": of_peak,
            });
            println!("{line}");
        } else {
            println!(
                "{name:44} {:8.2} {:4.0}% {:8.1} {:4.0}%",
                bytes_per_s / 1e9,
                of_memory * 100.0,
                macs_per_s / 1e9,
                of_peak * 100.0
            );
        }
    }
}
