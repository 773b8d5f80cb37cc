//! `cargo xtask bench peers [--llama DIR] [--dllama PROGRAM] [--mlx-lm PYTHON] [--size 0.6b | --shape NAME] [--layers N] [--threads N] [--rounds N]
//! [--contexts N,N|none] [--json]`: Jackalope beside the peers that are installed, on the same shapes, in turns within one run.
//!
//! `--contexts` lists the lengths of the long contexts to measure, in tokens; without it, 4096. On slow machines they take
//! most of the time, and `none` leaves them out.
//!
//! All weights are random and have 4.5 bits each. llama.cpp is measured as it comes and with huge pages, and the better
//! of both counts. Of several rounds the best counts, on either side. A peer that takes longer than [`RUN_MAX`] for one
//! measurement is stopped, and that measurement has no figure of it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

use super::{dllama, gguf};
use crate::process::{command, in_path, target_dir};
use crate::running::{self, DeadlinePassed};

/// Help for the options.
const OPTIONS: &str = "it takes --llama DIR, --dllama PROGRAM, --mlx-lm PYTHON, --size SIZE or --shape NAME, --layers N, \
    --threads N, --rounds N, --contexts N,N|none (lengths of the long contexts; default: 4096) and --json";

/// Huge pages for llama.cpp, which packs its weights again into allocated memory.
const HUGE_PAGES: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");

/// Number of prompt tokens with which prefill is measured.
const PROMPT_TOKENS: u32 = 512;

/// Number of generated tokens.
const GEN_TOKENS: u32 = 64;

/// A load that `jackalope bench` measures.
#[derive(Clone, Copy)]
struct Load {
    prompt_tokens: u32,
    gen_tokens: u32,
    concurrency: u32,
}

/// Number of tokens of the long context that is measured unless others are chosen.
const LONG_TOKENS: u32 = 4096;

/// Number of tokens generated after a long context.
const LONG_GEN_TOKENS: u32 = 16;

/// Number of concurrent sequences.
const SEQUENCES: u32 = 8;

/// How long a worker of distributed-llama may take to listen.
const WORKER_START: Duration = Duration::from_secs(1);

/// How long one measurement may take.
const RUN_MAX: Duration = Duration::from_secs(600);

/// A model that `jackalope synth` knows by its configuration.
struct Shape {
    name: &'static str,
    config: &'static str,
}

/// Shapes of published models, with fewer layers or experts where a small machine's memory asks for it.
const SHAPES: [Shape; 3] = [
    Shape { name: "gpt-oss", config: include_str!("shapes/gpt-oss.json") },
    Shape { name: "qwen3-next", config: include_str!("shapes/qwen3-next.json") },
    Shape { name: "deepseek", config: include_str!("shapes/deepseek.json") },
];

impl Shape {
    fn named(name: &str) -> anyhow::Result<&'static Shape> {
        SHAPES.iter().find(|shape| shape.name == name).with_context(|| {
            let names = SHAPES.map(|shape| shape.name).join(", ");
            format!("no shape is called `{name}`\nhint: --shape takes one of {names}")
        })
    }
}

/// Name of a measurement: a row of the report.
type Case = String;

pub(super) fn run(args: &[String]) -> anyhow::Result<()> {
    let options = Options::parse(args)?;
    let programs = Programs::prepare(&options)?;
    let mut figures = Figures::default();
    for round in 1..=options.rounds {
        eprintln!("round {round} of {}", options.rounds);
        for threads in options.thread_counts() {
            programs.measure_one(threads, &mut figures)?;
        }
        programs.measure_ranks(options.threads, &mut figures)?;
        programs.measure_sequences(options.threads, &mut figures)?;
        for &context_tokens in &options.contexts {
            programs.measure_long(context_tokens, options.threads, &mut figures)?;
        }
    }
    if let Some(python) = &options.python {
        measure_mlx_lm(python, &programs.model, options.threads, &mut figures)?;
    }
    figures.print(&options, &programs)
}

struct Options {
    llama: Option<PathBuf>,
    dllama: Option<PathBuf>,
    python: Option<PathBuf>,
    size: String,
    /// One of [`SHAPES`], instead of the size of a Qwen3 model.
    shape: Option<&'static Shape>,
    /// Number of layers, instead of the model's own: for mixtures that memory does not hold whole.
    layers: Option<u32>,
    threads: u32,
    rounds: u32,
    /// Lengths of the long contexts, in tokens.
    contexts: Vec<u32>,
    is_json: bool,
}

impl Options {
    fn parse(args: &[String]) -> anyhow::Result<Options> {
        let mut options = Options {
            llama: in_path("llama-bench"),
            dllama: in_path("dllama").map(|dir| dir.join("dllama")),
            python: Some(target_dir().join("venv/bin/python")).filter(|it| it.exists()),
            size: "0.6b".to_owned(),
            shape: None,
            layers: None,
            threads: 2,
            rounds: 2,
            contexts: vec![LONG_TOKENS],
            is_json: false,
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("`{arg}` takes a value"));
            match arg.as_str() {
                "--llama" => options.llama = Some(PathBuf::from(value()?)),
                "--dllama" => options.dllama = Some(PathBuf::from(value()?)),
                "--mlx-lm" => options.python = Some(PathBuf::from(value()?)),
                "--size" => options.size.clone_from(value()?),
                "--shape" => options.shape = Some(Shape::named(value()?)?),
                "--layers" => options.layers = Some(value()?.parse().context("--layers")?),
                "--threads" => options.threads = value()?.parse().context("--threads")?,
                "--rounds" => options.rounds = value()?.parse().context("--rounds")?,
                "--contexts" => options.contexts = contexts(value()?)?,
                "--json" => options.is_json = true,
                _ => bail!("`bench peers` has no option {arg}\nhint: {OPTIONS}"),
            }
        }
        if let Some(dir) = &options.llama {
            let program = dir.join("llama-bench");
            ensure!(
                program.exists(),
                "{} is not there\nhint: --llama takes the folder of llama-bench",
                program.display()
            );
        }
        if options.llama.is_none() && options.python.is_none() {
            eprintln!(
                "no peer found: this measures Jackalope alone\n\
                 hint: --llama takes the folder of llama-bench, --mlx-lm a Python that has mlx-lm"
            );
        }
        Ok(options)
    }

    /// Returns the name of what is measured.
    fn name(&self) -> String {
        let whole =
            self.shape.map_or(format!("qwen3-{}", self.size), |shape| shape.name.to_owned());
        self.layers.map_or(whole.clone(), |layers| format!("{whole}-{layers}-layers"))
    }

    /// Creates the checkpoint if it is not there.
    fn checkpoint(&self, jackalope: &Path) -> anyhow::Result<PathBuf> {
        let model = target_dir().join(format!("bench/{}-4bit", self.name()));
        if model.join("model.safetensors").exists() {
            return Ok(model);
        }
        let mut synth = command(&jackalope.to_string_lossy());
        synth.args(["synth", "--bits", "4", "--out"]).arg(&model);
        match self.shape {
            None => {
                synth.args(["--size", &self.size]);
            }
            Some(shape) => {
                let config = target_dir().join(format!("bench/{}.json", shape.name));
                fs::create_dir_all(target_dir().join("bench"))?;
                fs::write(&config, shape.config)?;
                synth.arg("--config").arg(config);
            }
        }
        synth.args(
            self.layers.iter().flat_map(|layers| ["--layers".to_owned(), layers.to_string()]),
        );
        let status = synth.stdout(Stdio::null()).status().context("starting jackalope synth")?;
        ensure!(status.success(), "`jackalope synth` ended with {status}");
        Ok(model)
    }

    fn thread_counts(&self) -> Vec<u32> {
        let mut counts = vec![1, self.threads];
        counts.dedup();
        counts
    }
}

/// Reads the lengths of the contexts to measure: numbers of tokens, separated by commas, or `none`.
fn contexts(list: &str) -> anyhow::Result<Vec<u32>> {
    if list == "none" {
        return Ok(Vec::new());
    }
    let length = |it: &str| it.parse().ok().filter(|tokens| 0 < *tokens);
    let lengths: Option<Vec<u32>> = list.split(',').map(length).collect();
    lengths.with_context(|| {
        format!("`{list}` is no list of lengths\nhint: --contexts takes 1024,4096 or none")
    })
}

/// The best results so far, in tokens per second, by measurement and program.
#[derive(Default)]
struct Figures(BTreeMap<(Case, &'static str), f64>);

const OURS: &str = "jackalope";
const LLAMA: &str = "llama.cpp";
const LLAMA_HUGE: &str = "llama.cpp, huge pages";
const DLLAMA: &str = "distributed-llama";
const MLX_LM: &str = "mlx-lm";

impl Figures {
    fn add(&mut self, case: impl Into<Case>, who: &'static str, tokens_per_s: f64) {
        let case = case.into();
        eprintln!("  {case:<36} {who:<22} {tokens_per_s:>8.1} tokens/s");
        let best = self.0.entry((case, who)).or_default();
        *best = best.max(tokens_per_s);
    }

    fn cases(&self) -> Vec<&str> {
        let mut cases: Vec<&str> = self.0.keys().map(|(case, _)| case.as_str()).collect();
        cases.dedup();
        cases
    }

    fn of(&self, case: &str, who: &'static str) -> Option<f64> {
        self.0.get(&(case.to_owned(), who)).copied()
    }

    fn print(&self, options: &Options, programs: &Programs) -> anyhow::Result<()> {
        let rows: Vec<Row<'_>> = self.cases().into_iter().map(|case| self.row(case)).collect();
        let ceilings = self.ceilings(options, programs)?;
        if options.is_json {
            let cases: Vec<Value> = rows.iter().map(Row::json).collect();
            let ceilings: Vec<Value> = ceilings.iter().map(Ceiling::json).collect();
            println!("{}", json!({"model": options.name(), "cases": cases, "ceilings": ceilings}));
            return Ok(());
        }
        println!("{:<36} {OURS:>9}  {:>30} {:>6}", "tokens/s", "best peer", "ratio");
        rows.iter().for_each(|row| println!("{}", row.text()));
        ceilings.iter().for_each(|ceiling| println!("{}", ceiling.text()));
        Ok(())
    }

    fn row<'a>(&self, case: &'a str) -> Row<'a> {
        let peers = [LLAMA, LLAMA_HUGE, DLLAMA, MLX_LM];
        let peers = peers.into_iter().filter_map(|who| Some((who, self.of(case, who)?)));
        Row { case, ours: self.of(case, OURS), peers: peers.collect() }
    }

    /// Adds the limit of the memory to the results of decoding: every weight that a token needs is
    /// read once, of a mixture only the chosen experts.
    fn ceilings(&self, options: &Options, programs: &Programs) -> anyhow::Result<Vec<Ceiling>> {
        let file_bytes = fs::metadata(programs.model.join("model.safetensors"))?.len() as f64;
        let weights_bytes = file_bytes * gguf::active_part(&read_config(&programs.model)?)?;
        let ceiling = |threads: u32| {
            Ok(Ceiling {
                threads,
                read_bytes_per_s: read_bytes_per_s(threads)?,
                weights_bytes,
                ours: self.of(&decode_case(threads), OURS).unwrap_or(0.0),
            })
        };
        options.thread_counts().into_iter().map(ceiling).collect()
    }
}

fn read_config(model: &Path) -> anyhow::Result<Value> {
    let config = fs::read(model.join("config.json")).context("reading config.json")?;
    Ok(serde_json::from_slice(&config)?)
}

/// Maximum memory bandwidth of this number of threads.
fn read_bytes_per_s(threads: u32) -> anyhow::Result<f64> {
    let args = ["--limits", "--json", "--threads", &threads.to_string()].map(str::to_owned);
    let output = super::kernels(&args).output().context("starting cargo")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "measuring the memory ended with {}\n{said}", output.status);
    let limits: Value = serde_json::from_slice(&output.stdout).context("reading the limits")?;
    limits["read_bytes_per_s"].as_f64().context("the limits do not name the memory's speed")
}

/// A row of the report.
struct Row<'a> {
    case: &'a str,
    ours: Option<f64>,
    peers: Vec<(&'static str, f64)>,
}

impl Row<'_> {
    fn best_peer(&self) -> Option<(&'static str, f64)> {
        self.peers.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1))
    }

    fn ratio(&self) -> Option<f64> {
        self.ours.zip(self.best_peer()).map(|(ours, (_, peer))| ours / peer)
    }

    fn text(&self) -> String {
        let number = |it: Option<f64>| it.map_or("-".to_owned(), |it| format!("{it:.2}"));
        let peer = self.best_peer().map_or("-".to_owned(), |(who, it)| format!("{it:.1} {who}"));
        let (ours, ratio) = (number(self.ours), number(self.ratio()));
        format!("{:<36} {ours:>9}  {peer:>30} {ratio:>6}", self.case)
    }

    fn json(&self) -> Value {
        let peers: BTreeMap<&str, f64> = self.peers.iter().copied().collect();
        json!({"case": self.case, "jackalope": self.ours, "peers": peers, "ratio": self.ratio()})
    }
}

/// The limit that the memory bandwidth sets.
struct Ceiling {
    threads: u32,
    read_bytes_per_s: f64,
    weights_bytes: f64,
    /// Tokens per second that Jackalope reached.
    ours: f64,
}

impl Ceiling {
    fn percent(&self) -> f64 {
        100.0 * self.ours * self.weights_bytes / self.read_bytes_per_s
    }

    fn text(&self) -> String {
        let most = self.read_bytes_per_s / self.weights_bytes;
        format!(
            "threads: {}; they read {:.1} GB/s, {most:.1} tokens/s at most: decoding reaches {:.0} %",
            self.threads,
            self.read_bytes_per_s / 1e9,
            self.percent()
        )
    }

    fn json(&self) -> Value {
        let (read, percent) = (self.read_bytes_per_s, self.percent());
        json!({"threads": self.threads, "read_bytes_per_s": read, "percent": percent})
    }
}

fn decode_case(threads: u32) -> Case {
    format!("decode, threads: {threads}")
}

fn prefill_case(threads: u32) -> Case {
    format!("prefill {PROMPT_TOKENS}, threads: {threads}")
}

/// Paths of all programs and models.
struct Programs {
    jackalope: PathBuf,
    model: PathBuf,
    llama: Option<(PathBuf, PathBuf)>,
    /// The program dllama, its model and its tokenizer.
    dllama: Option<[PathBuf; 3]>,
}

impl Programs {
    /// Builds Jackalope and creates the checkpoints.
    fn prepare(options: &Options) -> anyhow::Result<Programs> {
        let build =
            ["build", "--release", "--package", "jackalope-cli", "--package", "jackalope-runner"];
        let status = command("cargo").args(build).status().context("starting cargo")?;
        ensure!(status.success(), "building Jackalope ended with {status}");
        let jackalope = target_dir().join("release/jackalope");
        let model = options.checkpoint(&jackalope)?;
        let config = read_config(&model)?;
        let gguf = model.join("q4_0.gguf");
        if options.llama.is_some() && !gguf.exists() {
            gguf::write(&config, &gguf)?;
        }
        let [weights, tokenizer] = ["q40.m", "tokenizer.t"].map(|name| model.join(name));
        if options.dllama.is_some() && !tokenizer.exists() {
            dllama::write_model(&config, &weights)?;
            dllama::write_tokenizer(&config, &tokenizer)?;
        }
        Ok(Programs {
            jackalope,
            model,
            llama: options.llama.clone().map(|dir| (dir, gguf)),
            dllama: options.dllama.clone().map(|program| [program, weights, tokenizer]),
        })
    }

    /// Measures one sequence: prefill, and decoding after a short prompt.
    fn measure_one(&self, threads: u32, figures: &mut Figures) -> anyhow::Result<()> {
        let (prefill, decode) = self.prefill_and_decode(1, threads)?;
        figures.add(prefill_case(threads), OURS, prefill);
        figures.add(decode_case(threads), OURS, decode);
        for (who, huge_pages) in [(LLAMA, false), (LLAMA_HUGE, true)] {
            let (prompt, generated) = (PROMPT_TOKENS.to_string(), GEN_TOKENS.to_string());
            let args = ["-p", &prompt, "-n", &generated];
            for run in self.llama_bench(&args, threads, huge_pages)? {
                let is_prefill = run["n_gen"] == 0;
                let case = if is_prefill { prefill_case(threads) } else { decode_case(threads) };
                figures.add(case, who, speed(&run, "avg_ts")?);
            }
        }
        Ok(())
    }

    /// Measures as many ranks as threads, with one thread each.
    fn measure_ranks(&self, threads: u32, figures: &mut Figures) -> anyhow::Result<()> {
        let (prefill, decode) = self.prefill_and_decode(threads, 1)?;
        figures.add(format!("prefill {PROMPT_TOKENS}, ranks: {threads} x 1"), OURS, prefill);
        figures.add(format!("decode, ranks: {threads} x 1"), OURS, decode);
        if let Some((prefill, decode)) = self.dllama(threads)? {
            figures.add(format!("prefill {PROMPT_TOKENS}, ranks: {threads} x 1"), DLLAMA, prefill);
            figures.add(format!("decode, ranks: {threads} x 1"), DLLAMA, decode);
        }
        Ok(())
    }

    /// Measures several concurrent sequences.
    fn measure_sequences(&self, threads: u32, figures: &mut Figures) -> anyhow::Result<()> {
        let case = format!("decode of {SEQUENCES} sequences");
        let run = self.jackalope_bench(
            1,
            threads,
            Load { prompt_tokens: 8, gen_tokens: GEN_TOKENS / 2, concurrency: SEQUENCES },
        )?;
        figures.add(case.as_str(), OURS, speed(&run, "decode_tokens_per_s")?);
        for (who, huge_pages) in [(LLAMA, false), (LLAMA_HUGE, true)] {
            if let Some(run) = self.llama_batched(threads, huge_pages)? {
                figures.add(case.as_str(), who, speed(&run, "speed_tg")?);
            }
        }
        Ok(())
    }

    /// Measures a long context: prefill, and decoding after it.
    fn measure_long(
        &self,
        context_tokens: u32,
        threads: u32,
        figures: &mut Figures,
    ) -> anyhow::Result<()> {
        let prefill = format!("prefill {context_tokens}");
        let decode = format!("decode after {context_tokens} tokens");
        let load =
            Load { prompt_tokens: context_tokens, gen_tokens: LONG_GEN_TOKENS, concurrency: 1 };
        let run = self.jackalope_bench(1, threads, load)?;
        figures.add(decode.as_str(), OURS, speed(&run, "decode_tokens_per_s")?);
        figures.add(prefill.as_str(), OURS, speed(&run, "prefill_tokens_per_s")?);
        for flash in ["off", "on"] {
            let (depth, generated) = (context_tokens.to_string(), LONG_GEN_TOKENS.to_string());
            let args = ["-p", &depth, "-n", "0", "-fa", flash];
            for run in self.llama_bench(&args, threads, true)? {
                figures.add(prefill.as_str(), LLAMA_HUGE, speed(&run, "avg_ts")?);
            }
            let args = ["-p", "0", "-n", &generated, "-d", &depth, "-fa", flash];
            for run in self.llama_bench(&args, threads, true)? {
                figures.add(decode.as_str(), LLAMA_HUGE, speed(&run, "avg_ts")?);
            }
        }
        Ok(())
    }

    fn prefill_and_decode(&self, ranks: u32, threads: u32) -> anyhow::Result<(f64, f64)> {
        let prefill = Load { prompt_tokens: PROMPT_TOKENS, gen_tokens: 2, concurrency: 1 };
        let prefill = self.jackalope_bench(ranks, threads, prefill)?;
        let decode = Load { prompt_tokens: 8, gen_tokens: GEN_TOKENS, concurrency: 1 };
        let decode = self.jackalope_bench(ranks, threads, decode)?;
        Ok((speed(&prefill, "prefill_tokens_per_s")?, speed(&decode, "decode_tokens_per_s")?))
    }

    fn jackalope_bench(&self, ranks: u32, threads: u32, load: Load) -> anyhow::Result<Value> {
        let mut bench = command(&self.jackalope.to_string_lossy());
        bench.args(["bench", "--json", "--model"]).arg(&self.model);
        let numbers = [
            ("--ranks", ranks),
            ("--threads", threads),
            ("--prompt-tokens", load.prompt_tokens),
            ("--gen-tokens", load.gen_tokens),
            ("--concurrency", load.concurrency),
        ];
        for (option, number) in numbers {
            bench.args([option, &number.to_string()]);
        }
        let report: Value = serde_json::from_str(&output_of(&mut bench, RUN_MAX)?)?;
        Ok(report["runs"][0].clone())
    }

    fn llama_bench(
        &self,
        args: &[&str],
        threads: u32,
        huge_pages: bool,
    ) -> anyhow::Result<Vec<Value>> {
        let Some((dir, gguf)) = &self.llama else { return Ok(Vec::new()) };
        let mut bench = command(&dir.join("llama-bench").to_string_lossy());
        bench.arg("-m").arg(gguf).args(args);
        bench.args(["-t", &threads.to_string(), "-r", "1", "-o", "json"]);
        bench.envs(huge_pages.then_some(HUGE_PAGES));
        let Some(printed) = peer_output(&mut bench, RUN_MAX)? else { return Ok(Vec::new()) };
        let report: Value = serde_json::from_str(&printed)?;
        Ok(report.as_array().cloned().unwrap_or_default())
    }

    /// Measures prefill and decode over `nodes` processes with one thread each.
    fn dllama(&self, nodes: u32) -> anyhow::Result<Option<(f64, f64)>> {
        let Some([program, weights, tokenizer]) = &self.dllama else { return Ok(None) };
        let program = program.to_string_lossy();
        let mut workers = Vec::new();
        let mut addresses = Vec::new();
        for _ in 1..nodes {
            let port = free_port()?.to_string();
            let mut worker = command(&program);
            worker
                .args(["worker", "--port", &port, "--nthreads", "1", "--net-turbo", "0"])
                .stdout(Stdio::null());
            workers.push(Background(worker.spawn().context("starting dllama worker")?));
            addresses.push(format!("127.0.0.1:{port}"));
        }
        std::thread::sleep(WORKER_START);
        let mut root = command(&program);
        root.args(["inference", "--nthreads", "1", "--buffer-float-type", "q80"]);
        // It would be ten times slower if it spun on its sockets while nodes share this machine.
        root.args(["--net-turbo", "0", "--max-seq-len", "1024", "--temperature", "0", "--model"])
            .arg(weights);
        root.arg("--tokenizer").arg(tokenizer);
        // Every letter is a token.
        root.args(["--prompt", &"a".repeat(PROMPT_TOKENS as usize)]);
        root.args(["--steps", &(PROMPT_TOKENS + GEN_TOKENS).to_string()]);
        if !addresses.is_empty() {
            root.arg("--workers").args(&addresses);
        }
        let Some(printed) = peer_output(&mut root, RUN_MAX)? else { return Ok(None) };
        dllama_speeds(&printed).map(Some).context("distributed-llama printed no speeds")
    }

    fn llama_batched(&self, threads: u32, huge_pages: bool) -> anyhow::Result<Option<Value>> {
        let Some((dir, gguf)) = &self.llama else { return Ok(None) };
        let program = dir.join("llama-batched-bench");
        if !program.exists() {
            return Ok(None);
        }
        let mut bench = command(&program.to_string_lossy());
        bench.arg("-m").arg(gguf).args(["-t", &threads.to_string(), "-npp", "8", "-c", "4096"]);
        bench.args(["-ntg", &(GEN_TOKENS / 2).to_string(), "-npl", &SEQUENCES.to_string()]);
        bench.args(["--output-format", "jsonl"]);
        if huge_pages {
            bench.env(HUGE_PAGES.0, HUGE_PAGES.1);
        }
        let Some(printed) = peer_output(&mut bench, RUN_MAX)? else { return Ok(None) };
        let line = printed.lines().find(|line| line.starts_with('{'));
        let line = line.context("llama-batched-bench printed no result")?;
        Ok(Some(serde_json::from_str(line)?))
    }
}

/// Parses the speeds that distributed-llama prints at its end: of the prompt, then of generation.
fn dllama_speeds(output: &str) -> Option<(f64, f64)> {
    let mut speeds = output.lines().filter_map(|line| {
        let (_, rest) = line.split_once("tokens/s:")?;
        rest.split_whitespace().next()?.parse().ok()
    });
    Some((speeds.next()?, speeds.next()?))
}

/// A program in the background, which is killed when this is dropped.
struct Background(std::process::Child);

impl Drop for Background {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Measures mlx-lm with the same checkpoint on all cores, for a few tokens, because it computes
/// them in scalar code.
fn measure_mlx_lm(
    python: &Path,
    model: &Path,
    threads: u32,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    const SCRIPT: &str = "
import json, sys, time
import mlx.core as mx
from pathlib import Path
from mlx_lm.utils import load_model
from mlx_lm.generate import generate_step
model = load_model(Path(sys.argv[1]))[0]
times = []
for token, _ in generate_step(mx.array([1, 2, 3, 4]), model, max_tokens=6):
    times.append(time.perf_counter())
print(json.dumps({'decode': (len(times) - 2) / (times[-1] - times[1])}))
";
    let mut script = command(&python.to_string_lossy());
    script.args(["-c", SCRIPT]).arg(model);
    let Some(printed) = peer_output(&mut script, RUN_MAX)? else { return Ok(()) };
    let speed = speed(&serde_json::from_str(&printed)?, "decode")?;
    figures.add(decode_case(threads), MLX_LM, speed);
    Ok(())
}

fn free_port() -> anyhow::Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn speed(run: &Value, key: &str) -> anyhow::Result<f64> {
    run[key].as_f64().with_context(|| format!("a result without {key}: {run}"))
}

/// Returns what a program prints, which must succeed within `limit`.
fn output_of(program: &mut Command, limit: Duration) -> anyhow::Result<String> {
    let name = program.get_program().display().to_string();
    running::output(program, Instant::now() + limit).context(name)
}

/// Returns what a peer prints; `None`, and says so, if it takes longer than `limit`.
fn peer_output(program: &mut Command, limit: Duration) -> anyhow::Result<Option<String>> {
    match output_of(program, limit) {
        Err(err) if err.root_cause().is::<DeadlinePassed>() => {
            eprintln!("stopped after {} s: {program:?}", limit.as_secs());
            Ok(None)
        }
        printed => printed.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_to_the_best_peer_of_its_line() {
        let mut figures = Figures::default();
        for (who, speed) in [(OURS, 30.0), (LLAMA, 10.0), (LLAMA, 20.0), (LLAMA_HUGE, 15.0)] {
            figures.add("a", who, speed);
        }
        figures.add("b", MLX_LM, 1.0);
        assert_eq!(figures.cases(), ["a", "b"]);
        let row = figures.row("a");
        assert_eq!((row.best_peer(), row.ratio()), (Some((LLAMA, 20.0)), Some(1.5)));
        assert_eq!(figures.row("b").json()["ratio"], Value::Null);
    }

    #[test]
    fn the_long_contexts_can_be_chosen_or_left_out() {
        let parsed = |args: &[&str]| {
            let args: Vec<String> = args.iter().map(|it| (*it).to_owned()).collect();
            Options::parse(&args).map(|options| options.contexts)
        };
        assert_eq!(parsed(&[]).unwrap(), [4096]);
        assert_eq!(parsed(&["--contexts", "1024,2048"]).unwrap(), [1024, 2048]);
        assert!(parsed(&["--contexts", "none"]).unwrap().is_empty());
        for wrong in ["", "0", "4k", "1024,", "-1"] {
            let err = parsed(&["--contexts", wrong]).unwrap_err().to_string();
            assert!(err.contains("hint: --contexts takes"), "{err}");
        }
    }

    #[test]
    fn a_peer_that_takes_too_long_has_no_figure_and_one_that_fails_is_an_error() {
        let shell =
            |script: &str, limit: Duration| peer_output(command("sh").args(["-c", script]), limit);
        assert_eq!(shell("exec sleep 600", Duration::from_millis(50)).unwrap(), None);
        assert_eq!(shell("echo 3", RUN_MAX).unwrap().unwrap(), "3\n");
        assert!(shell("exit 1", RUN_MAX).is_err());
    }

    #[test]
    fn the_speeds_of_distributed_llama_are_read_in_order() {
        let output = "Evaluation\n   tokens/s: 83.84 (11.93 ms/tok)\nPrediction\n   tokens/s: 24.48 (4 ms)\n";
        assert_eq!(dllama_speeds(output), Some((83.84, 24.48)));
        assert_eq!(dllama_speeds("Evaluation\n   tokens/s: 1.0\n"), None);
    }
}
