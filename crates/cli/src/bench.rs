//! `jackalope bench`: measures how fast a model is computed and where the time goes; with `--url`,
//! how fast any server answers.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use jackalope_console::output;
use jackalope_deploy::models::locate_loadable;
use jackalope_deploy::{Cluster, ClusterOptions};
use jackalope_engine::{
    EngineHandle, Event, Generation, Request, RequestOptions, SamplingOptions, Status,
};
use jackalope_protocol::TokenId;
use jackalope_store::synth::is_synthetic;
use serde_json::{Value, json};

use crate::args::BenchArgs;
use crate::environment::Environment;
use crate::report::interruptible;
use crate::{progress, split};

mod calibration;
mod comparison;
mod profile;
mod served;
mod stream;

use self::profile::StepBreakdown;

/// Size and number of the requests that are open at a time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Shape {
    prompt_tokens: u32,
    gen_tokens: u32,
    concurrency: u32,
}

impl Shape {
    /// Returns every combination of the requested sizes, concurrencies innermost.
    fn all(args: &BenchArgs) -> Vec<Shape> {
        let mut all = Vec::new();
        for &prompt_tokens in &args.prompt_tokens {
            for &gen_tokens in &args.gen_tokens {
                all.extend(args.concurrency.iter().map(|&concurrency| Shape {
                    prompt_tokens,
                    gen_tokens,
                    concurrency,
                }));
            }
        }
        all
    }
}

/// Result of one run with a fixed number of concurrent requests.
#[derive(Debug)]
struct Run {
    shape: Shape,
    prefill_tokens_per_s: f64,
    decode_tokens_per_s: f64,
    first_token_ms: Quantiles,
    inter_token_ms: Quantiles,
    prefill: StepBreakdown,
    decode: StepBreakdown,
}

#[derive(Clone, Copy, Debug)]
struct Quantiles {
    p50: f64,
    p90: f64,
    p99: f64,
}

impl Quantiles {
    fn json(self) -> Value {
        json!({"p50": self.p50, "p90": self.p90, "p99": self.p99})
    }
}

/// Times at which the tokens of one request arrived.
#[derive(Debug)]
struct Arrivals {
    submitted: Instant,
    tokens: Vec<Instant>,
    /// The engine's counters when the first token arrived.
    at_first: Option<Status>,
}

pub(crate) async fn run(args: BenchArgs, environment: &Environment) -> anyhow::Result<()> {
    let key = &args.server.key;
    ensure!(
        args.server.url.is_some() || (key.api_key.is_none() && key.api_key_file.is_none()),
        "a key is only used with a server\nhint: pass its address with `--url`"
    );
    if let Some(url) = args.server.url.clone() {
        return served::run(args, url, environment).await;
    }
    let model = args.model.as_ref().expect("the arguments name a model or a server");
    let model = locate_loadable(model, &environment.local)?;
    let ranks = args.ranks.config(environment)?;
    let options = ClusterOptions { profile: args.profile, ..ClusterOptions::default() };
    let mut cluster = Cluster::start_with(&model, &ranks, &environment.local, options).await?;
    let work = async {
        let status = progress::ready(&mut cluster).await?;
        measure(&args, &model.dir, &cluster.engine, &status).await
    };
    let result = interruptible(work).await;
    let stopped = cluster.stop().await;
    result.and(stopped.map_err(Into::into))
}

async fn measure(
    args: &BenchArgs,
    model_dir: &Path,
    engine: &EngineHandle,
    loaded: &Status,
) -> anyhow::Result<()> {
    let is_synthetic = is_synthetic(model_dir);
    if !args.json {
        if is_synthetic {
            output::line("random weights: only the speed is meaningful")?;
        }
        output::line(split::text(loaded))?;
        output::line(format_args!(
            "{:>7}  {:>6}  {:>11}  {:>13}  {:>12}  {:>17}  {:>17}  decode step: compute / collectives / sampling / graph / control",
            "prompt",
            "answer",
            "concurrency",
            "prefill tok/s",
            "decode tok/s",
            "first token p50/99",
            "inter-token p50/99",
        ))?;
    }
    // Prompts differ from round to round.
    let mut rounds = 0..;
    let mut round = || rounds.next().expect("there are few rounds");
    let shapes = Shape::all(args);
    for _ in 0..args.warmup {
        run_once(Shape { concurrency: 1, ..shapes[0] }, engine, round()).await?;
    }
    let (mut rows, mut summaries) = (Vec::new(), Vec::new());
    for shape in shapes {
        let mut runs = Vec::new();
        for _ in 0..args.runs {
            let run = run_once(shape, engine, round()).await?;
            if !args.json {
                output::line(row(&run))?;
                if args.profile {
                    output::line(run.prefill.text("prefill"))?;
                    output::line(run.decode.text("decode"))?;
                }
            }
            rows.push(run_json(&run));
            runs.push(run);
        }
        let summary = Summary::of(&runs);
        if !args.json && 1 < args.runs {
            output::line(summary.text(args.runs))?;
        }
        summaries.push(summary.json(shape));
    }
    if args.json {
        let result = json!({
            "random_weights": is_synthetic,
            "ranks": split::json(&engine.status()),
            "runs": rows,
            "summary": summaries,
        });
        output::line(result)?;
    }
    Ok(())
}

async fn run_once(shape: Shape, engine: &EngineHandle, round: u32) -> anyhow::Result<Run> {
    let before = engine.status();
    let mut listeners = Vec::new();
    for idx in 0..shape.concurrency {
        let generation = submit(shape, engine, (round << 16) + idx)?;
        listeners.push(tokio::spawn(listen(engine.clone(), generation, Instant::now())));
    }
    let mut arrivals = Vec::new();
    for listener in listeners {
        arrivals.push(listener.await??);
    }
    let after = engine.status();
    let last_first = arrivals.iter().max_by_key(|it| it.tokens.first());
    let prefilled = last_first.and_then(|it| it.at_first.as_ref()).unwrap_or(&after);
    let steps =
        [StepBreakdown::between(&before, prefilled), StepBreakdown::between(prefilled, &after)];
    Ok(summarise(shape, &arrivals, steps))
}

fn submit(shape: Shape, engine: &EngineHandle, salt: u32) -> anyhow::Result<Generation> {
    let limits = engine.limits().context("the ranks are not ready")?;
    let options = RequestOptions {
        prompt: prompt(shape.prompt_tokens, limits.vocab_size, salt),
        max_tokens: Some(shape.gen_tokens),
        sampling: SamplingOptions::greedy(),
        ignore_eos: true,
        ..RequestOptions::default()
    };
    Ok(engine.submit(Request::new(options, &limits)?)?)
}

/// Returns a prompt that begins with other tokens than every other prompt of this run, so that no
/// prefix is found in the cache.
fn prompt(len: u32, vocab_size: u32, salt: u32) -> Vec<TokenId> {
    let mut state = u64::from(salt) + 1;
    (0..len)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % u64::from(vocab_size)) as TokenId
        })
        .collect()
}

async fn listen(
    engine: EngineHandle,
    mut generation: Generation,
    submitted: Instant,
) -> anyhow::Result<Arrivals> {
    let (mut tokens, mut at_first) = (Vec::new(), None);
    while let Some(event) = generation.next().await {
        match event {
            Event::Started { .. } | Event::PromptScored { .. } | Event::Embedded { .. } => {}
            Event::Token { .. } => {
                tokens.push(Instant::now());
                at_first.get_or_insert_with(|| engine.status());
            }
            Event::Finished { .. } => return Ok(Arrivals { submitted, tokens, at_first }),
            Event::NotANumber { .. } => bail!(Event::NOT_A_NUMBER),
            Event::ConstraintFailed { message, .. } => bail!(message),
            Event::Poisonous(failure) | Event::Failed(failure) => bail!("{failure}"),
        }
    }
    bail!("the engine ended")
}

fn summarise(shape: Shape, arrivals: &[Arrivals], [prefill, decode]: [StepBreakdown; 2]) -> Run {
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    let begin = arrivals.iter().map(|it| it.submitted).min().expect("at least one request");
    let firsts: Vec<Instant> =
        arrivals.iter().filter_map(|it| it.tokens.first()).copied().collect();
    let prefilled = firsts.iter().max().copied().unwrap_or(begin);
    let end = arrivals.iter().filter_map(|it| it.tokens.last()).max().copied().unwrap_or(begin);
    let first_token: Vec<f64> = arrivals
        .iter()
        .filter_map(|it| it.tokens.first().map(|first| millis(*first - it.submitted)))
        .collect();
    let gaps: Vec<f64> = arrivals
        .iter()
        .flat_map(|it| it.tokens.windows(2).map(|pair| millis(pair[1] - pair[0])))
        .collect();
    // Decoding counts from the moment when the last prompt was finished, so that the prefill of
    // other prompts does not distort it.
    let decoded = arrivals.iter().flat_map(|it| &it.tokens).filter(|at| prefilled < **at).count();
    let decode_s = (end - prefilled).as_secs_f64();
    let prompt_tokens = f64::from(shape.prompt_tokens) * f64::from(shape.concurrency);
    Run {
        shape,
        prefill_tokens_per_s: prompt_tokens / (prefilled - begin).as_secs_f64().max(1e-9),
        decode_tokens_per_s: decoded as f64 / decode_s.max(1e-9),
        first_token_ms: quantiles(first_token),
        inter_token_ms: quantiles(gaps),
        prefill,
        decode,
    }
}

fn quantiles(mut values: Vec<f64>) -> Quantiles {
    values.sort_by(f64::total_cmp);
    let at = |quantile: f64| {
        let idx = (values.len() as f64 * quantile).ceil() as usize;
        values.get(idx.clamp(1, values.len().max(1)) - 1).copied().unwrap_or(0.0)
    };
    Quantiles { p50: at(0.5), p90: at(0.9), p99: at(0.99) }
}

fn row(run: &Run) -> String {
    let step = &run.decode;
    format!(
        "{:>7}  {:>6}  {:>11}  {:>13.1}  {:>12.1}  {:>8.1} / {:>6.1}  {:>8.2} / {:>6.2}  {:.0} / {:.0} / {:.0} / {:.0} / {:.0} µs",
        run.shape.prompt_tokens,
        run.shape.gen_tokens,
        run.shape.concurrency,
        run.prefill_tokens_per_s,
        run.decode_tokens_per_s,
        run.first_token_ms.p50,
        run.first_token_ms.p99,
        run.inter_token_ms.p50,
        run.inter_token_ms.p99,
        step.compute_us,
        step.collectives_us,
        step.sampling_us,
        step.graph_us,
        step.control_us,
    )
}

/// Summary of the runs of one shape.
#[derive(Debug)]
struct Summary {
    prefill_tokens_per_s: MeanStd,
    decode_tokens_per_s: MeanStd,
}

/// Mean and standard deviation (of the sample; 0 for a single value).
#[derive(Clone, Copy, Debug, PartialEq)]
struct MeanStd {
    mean: f64,
    std: f64,
}

impl MeanStd {
    fn of(values: impl Iterator<Item = f64> + Clone) -> MeanStd {
        let count = values.clone().count() as f64;
        let mean = values.clone().sum::<f64>() / count;
        let square: f64 = values.map(|value| (value - mean).powi(2)).sum();
        MeanStd { mean, std: (square / (count - 1.0).max(1.0)).sqrt() }
    }

    fn json(self) -> Value {
        json!({"mean": self.mean, "std": self.std})
    }
}

impl Summary {
    fn of(runs: &[Run]) -> Summary {
        Summary {
            prefill_tokens_per_s: MeanStd::of(runs.iter().map(|run| run.prefill_tokens_per_s)),
            decode_tokens_per_s: MeanStd::of(runs.iter().map(|run| run.decode_tokens_per_s)),
        }
    }

    fn text(&self, num_runs: u32) -> String {
        let Summary { prefill_tokens_per_s: prefill, decode_tokens_per_s: decode } = self;
        format!(
            "mean of {num_runs}: prefill {:.1} ± {:.1} tok/s, decode {:.1} ± {:.1} tok/s",
            prefill.mean, prefill.std, decode.mean, decode.std
        )
    }

    fn json(&self, shape: Shape) -> Value {
        json!({
            "prompt_tokens": shape.prompt_tokens,
            "gen_tokens": shape.gen_tokens,
            "concurrency": shape.concurrency,
            "prefill_tokens_per_s": self.prefill_tokens_per_s.json(),
            "decode_tokens_per_s": self.decode_tokens_per_s.json(),
        })
    }
}

fn run_json(run: &Run) -> Value {
    json!({
        "prompt_tokens": run.shape.prompt_tokens,
        "gen_tokens": run.shape.gen_tokens,
        "concurrency": run.shape.concurrency,
        "prefill_tokens_per_s": run.prefill_tokens_per_s,
        "decode_tokens_per_s": run.decode_tokens_per_s,
        "first_token_ms": run.first_token_ms.json(),
        "inter_token_ms": run.inter_token_ms.json(),
        "step_us": run.decode.json(),
        "prefill_step_us": run.prefill.json(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_sorted_values() {
        let found = quantiles((1..=100).rev().map(f64::from).collect());
        assert_eq!((found.p50, found.p90, found.p99), (50.0, 90.0, 99.0));
        let empty = quantiles(Vec::new());
        assert_eq!((empty.p50, empty.p90, empty.p99), (0.0, 0.0, 0.0));
    }

    #[test]
    fn runs_have_a_mean_and_the_deviation_of_a_sample() {
        let found = MeanStd::of([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0].into_iter());
        assert_eq!((found.mean, found.std), (5.0, (32.0f64 / 7.0).sqrt()));
        assert_eq!(MeanStd::of([3.0].into_iter()), MeanStd { mean: 3.0, std: 0.0 });
    }

    #[test]
    fn prompts_of_one_run_begin_differently() {
        let prompts: Vec<Vec<TokenId>> = (0..50).map(|salt| prompt(8, 1000, salt)).collect();
        for (idx, prompt) in prompts.iter().enumerate() {
            assert!(prompts[..idx].iter().all(|other| other[..4] != prompt[..4]));
        }
    }
}
