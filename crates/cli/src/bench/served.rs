//! `jackalope bench --url`: a sweep over a running server with a fixed number of open requests.
//! When one ends, the next is sent.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use jackalope_console::client::Server;
use jackalope_console::output;
use serde_json::{Value, json};

use super::calibration::Calibration;
use super::comparison::{self, Earlier};
use super::stream::{Fault, Peer, TimedAnswer};
use super::{Quantiles, Shape, quantiles};
use crate::args::BenchArgs;
use crate::client::off_runtime;
use crate::environment::Environment;
use crate::operate;
use crate::report::interruptible;

/// Default number of requests of a measurement, per request that is open at a time.
const REQUESTS_PER_LISTENER: u32 = 4;

/// Result of a server for requests of one shape.
#[derive(Debug)]
struct Row {
    shape: Shape,
    num_answered: usize,
    /// Failures by name: their number, and the message of the first.
    faults: BTreeMap<String, (u64, String)>,
    /// Time from the first request to the end of the last answer.
    took: Duration,
    output_tokens: u64,
    /// Mean number of prompt tokens, if the server reports it.
    reported_prompt_tokens: Option<f64>,
    first_token_ms: Quantiles,
    inter_token_ms: Quantiles,
    token_ms: Quantiles,
    request_ms: Quantiles,
}

pub(super) async fn run(
    args: BenchArgs,
    url: String,
    environment: &Environment,
) -> anyhow::Result<()> {
    let server = operate::named(&url, &args.server.key, environment)?;
    interruptible(off_runtime(move || sweep(&args, server))).await
}

fn sweep(args: &BenchArgs, server: Server) -> anyhow::Result<()> {
    let earlier = args.server.compare.as_deref().map(Earlier::read).transpose()?;
    let most = args.concurrency.iter().max().copied().unwrap_or(1);
    let url = server.url.clone();
    let peer = Peer::new(server, args.server.timeout, most as usize);
    let model = args.model.as_ref().map(|it| it.to_string_lossy().into_owned());
    let calibration = Calibration::of(&peer, model)?;
    if !args.json {
        head(&url, &calibration)?;
    }
    let numbers = AtomicU32::new(0);
    let (mut rows, mut compared, mut unanswered) = (Vec::new(), Vec::new(), None);
    for shape in Shape::all(args) {
        let warmup = Shape { concurrency: 1, ..shape };
        if 0 < args.warmup {
            measure(&peer, &calibration, warmup, args.warmup, &numbers);
        }
        let asked = args.server.requests.unwrap_or(REQUESTS_PER_LISTENER * shape.concurrency);
        let row = measure(&peer, &calibration, shape, asked, &numbers);
        let row_json = row.json();
        let ratios = earlier.as_ref().map(|it| it.ratios(&row_json));
        if !args.json {
            output::line(row.text())?;
            if let Some(ratios) = &ratios {
                output::line(format_args!("  {}", comparison::text(ratios.as_ref())))?;
            }
        }
        if row.num_answered == 0 {
            unanswered = Some(row.fault_text());
        }
        rows.push(row_json);
        compared.extend(ratios);
    }
    if args.json {
        let asking = &calibration.asking;
        let mut report = json!({
            "url": url,
            "model": asking.model,
            "endpoint": asking.path(),
            "answers_may_end_early": !asking.ignores_end,
            "rows": rows,
        });
        if earlier.is_some() {
            report["ratios"] = json!(compared);
        }
        output::line(report)?;
    }
    let unanswered = unanswered.as_deref();
    ensure!(unanswered.is_none(), "no request was answered: {}", unanswered.unwrap_or_default());
    Ok(())
}

fn head(url: &str, calibration: &Calibration) -> anyhow::Result<()> {
    let asking = &calibration.asking;
    output::line(format_args!("{} at {url}{}", asking.model, asking.path()))?;
    if !asking.ignores_end {
        output::line(
            "the server does not know `ignore_eos`: answers may be shorter than requested",
        )?;
    }
    Ok(output::line(format_args!(
        "{:>7}  {:>6}  {:>11}  {:>8}  {:>6}  {:>9}  {:>10}  {:>26}  {:>22}",
        "prompt",
        "answer",
        "concurrency",
        "answered",
        "errors",
        "tok/s",
        "requests/s",
        "first token p50/90/99 ms",
        "inter-token p50/90/99",
    ))?)
}

/// Sends `num_requests` requests, `shape.concurrency` at a time.
fn measure(
    peer: &Peer,
    calibration: &Calibration,
    shape: Shape,
    num_requests: u32,
    numbers: &AtomicU32,
) -> Row {
    let num_sent = AtomicU32::new(0);
    let listen = || {
        let mut results = Vec::new();
        while num_sent.fetch_add(1, Ordering::Relaxed) < num_requests {
            let number = numbers.fetch_add(1, Ordering::Relaxed);
            let prompt = calibration.prompt(shape.prompt_tokens, number);
            results.push(peer.ask(&calibration.asking, &prompt, shape.gen_tokens));
        }
        results
    };
    let begin = Instant::now();
    let results = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..shape.concurrency.min(num_requests)).map(|_| scope.spawn(listen)).collect();
        threads.into_iter().flat_map(|it| it.join().expect("listeners do not panic")).collect()
    });
    Row::of(shape, begin, results)
}

impl Row {
    fn of(shape: Shape, begin: Instant, results: Vec<Result<TimedAnswer, Fault>>) -> Row {
        let (mut answers, mut faults) = (Vec::new(), BTreeMap::new());
        for result in results {
            match result {
                Ok(answer) => answers.push(answer),
                Err(Fault { name, detail }) => faults.entry(name).or_insert((0, detail)).0 += 1,
            }
        }
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        let of_each =
            |time: &dyn Fn(&TimedAnswer) -> f64| quantiles(answers.iter().map(time).collect());
        let gaps = answers
            .iter()
            .flat_map(|it| it.pieces.windows(2).map(|pair| millis(pair[1] - pair[0])))
            .collect();
        // A piece may contain several tokens, so the time per token is that of the stream divided
        // by their number.
        let tokens = answers
            .iter()
            .filter(|it| 1 < it.output_tokens)
            .map(|it| millis(last(it) - it.pieces[0]) / (it.output_tokens - 1) as f64);
        let prompts: Vec<f64> =
            answers.iter().filter_map(|it| it.prompt_tokens).map(|it| it as f64).collect();
        let end = answers.iter().map(|it| it.end).max().unwrap_or(begin);
        Row {
            shape,
            num_answered: answers.len(),
            faults,
            took: end - begin,
            output_tokens: answers.iter().map(|it| it.output_tokens).sum(),
            reported_prompt_tokens: (!prompts.is_empty())
                .then(|| prompts.iter().sum::<f64>() / prompts.len() as f64),
            first_token_ms: of_each(&|it| millis(it.pieces[0] - it.sent)),
            inter_token_ms: quantiles(gaps),
            token_ms: quantiles(tokens.collect()),
            request_ms: of_each(&|it| millis(it.end - it.sent)),
        }
    }

    fn per_s(&self, count: f64) -> f64 {
        if self.took.is_zero() { 0.0 } else { count / self.took.as_secs_f64() }
    }

    fn num_faults(&self) -> u64 {
        self.faults.values().map(|(count, _)| count).sum()
    }

    /// Formats the failures, as in `3 × http 429: too many requests`.
    fn fault_text(&self) -> String {
        let words = self.faults.iter().map(|(name, (count, first))| {
            let first = first.lines().next().unwrap_or_default();
            format!("{count} × {name}: {first}")
        });
        words.collect::<Vec<_>>().join("; ")
    }

    fn text(&self) -> String {
        let three = |it: Quantiles| format!("{:.1} / {:.1} / {:.1}", it.p50, it.p90, it.p99);
        let mut text = format!(
            "{:>7}  {:>6}  {:>11}  {:>8}  {:>6}  {:>9.1}  {:>10.2}  {:>26}  {:>22}",
            self.shape.prompt_tokens,
            self.shape.gen_tokens,
            self.shape.concurrency,
            self.num_answered,
            self.num_faults(),
            self.per_s(self.output_tokens as f64),
            self.per_s(self.num_answered as f64),
            three(self.first_token_ms),
            three(self.inter_token_ms),
        );
        if !self.faults.is_empty() {
            text.push_str(&format!("\n  {}", self.fault_text()));
        }
        text
    }

    fn json(&self) -> Value {
        let faults: BTreeMap<&String, Value> = self
            .faults
            .iter()
            .map(|(name, (count, first))| (name, json!({"count": count, "first": first})))
            .collect();
        json!({
            "prompt_tokens": self.shape.prompt_tokens,
            "gen_tokens": self.shape.gen_tokens,
            "concurrency": self.shape.concurrency,
            "answered": self.num_answered,
            "errors": faults,
            "seconds": self.took.as_secs_f64(),
            "output_tokens": self.output_tokens,
            "prompt_tokens_told": self.reported_prompt_tokens,
            "tokens_per_s": self.per_s(self.output_tokens as f64),
            "requests_per_s": self.per_s(self.num_answered as f64),
            "first_token_ms": self.first_token_ms.json(),
            "inter_token_ms": self.inter_token_ms.json(),
            "time_per_output_token_ms": self.token_ms.json(),
            "request_ms": self.request_ms.json(),
        })
    }
}

fn last(answer: &TimedAnswer) -> Instant {
    *answer.pieces.last().expect("an answer has text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_shows_times_speeds_and_faults() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let answer = |sent, pieces: &[u64], output_tokens| TimedAnswer {
            sent: at(sent),
            pieces: pieces.iter().map(|ms| at(*ms)).collect(),
            end: at(*pieces.last().unwrap() + 10),
            output_tokens,
            prompt_tokens: Some(output_tokens * 10),
        };
        let fault = |name: &str, detail: &str| {
            Err(Fault { name: name.to_owned(), detail: detail.to_owned() })
        };
        let shape = Shape { prompt_tokens: 8, gen_tokens: 3, concurrency: 2 };
        let results = vec![
            Ok(answer(0, &[100, 110, 120], 3)),
            fault("http 429", "too many"),
            Ok(answer(50, &[250, 290, 490], 5)),
            fault("http 429", "later"),
        ];
        let row = Row::of(shape, begin, results).json();
        assert_eq!(row["errors"], json!({"http 429": {"count": 2, "first": "too many"}}));
        assert_eq!((row["answered"].as_u64(), row["output_tokens"].as_u64()), (Some(2), Some(8)));
        assert_eq!(
            (row["seconds"].as_f64(), row["tokens_per_s"].as_f64()),
            (Some(0.5), Some(16.0))
        );
        assert_eq!(row["first_token_ms"], json!({"p50": 100.0, "p90": 200.0, "p99": 200.0}));
        assert_eq!(row["inter_token_ms"], json!({"p50": 10.0, "p90": 200.0, "p99": 200.0}));
        assert_eq!(row["time_per_output_token_ms"]["p50"], 10.0);
        assert_eq!(row["time_per_output_token_ms"]["p99"], 60.0);
        assert_eq!(row["prompt_tokens_told"], 40.0);
        let failed = Row::of(shape, begin, vec![fault("timeout", "300 s")]);
        assert_eq!(failed.json()["tokens_per_s"], 0.0);
        assert_eq!(failed.fault_text(), "1 × timeout: 300 s");
    }
}
