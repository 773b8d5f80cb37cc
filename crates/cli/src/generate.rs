//! `jackalope generate`: completes one prompt without a server.

use std::io::Read;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use jackalope_console::output::{self, OutputError};
use jackalope_deploy::Cluster;
use jackalope_deploy::models::locate_loadable;
use jackalope_engine::{
    EngineHandle, Event, FinishReason, Generation, Request, RequestOptions, SamplingOptions, Usage,
};
use jackalope_protocol::{Logprob, TokenId, counted};
use jackalope_text::{ChatPrompt, ModelText};
use serde_json::{Map, Value, json};

use crate::args::GenerateArgs;
use crate::environment::Environment;
use crate::progress;
use crate::report::interruptible;

/// Maximum size of a prompt on standard input.
const PROMPT_BYTES_MAX: u64 = 64 << 20;

/// A complete answer.
#[derive(Debug)]
struct Generated {
    tokens: Vec<TokenId>,
    logprobs: Vec<Logprob>,
    text: String,
    reason: FinishReason,
    usage: Usage,
    first_token_ms: f64,
    total_ms: f64,
}

pub(crate) async fn run(args: GenerateArgs, environment: &Environment) -> anyhow::Result<()> {
    let model = locate_loadable(&args.model.model, &environment.local)?;
    let args = with_prompt(args)?;
    let mut cluster =
        Cluster::start(&model, &args.model.ranks.config(environment)?, &environment.local).await?;
    let work = async {
        progress::ready(&mut cluster).await?;
        let prompt = prompt_tokens(&args, &cluster.text)?;
        let generation = submit(&args, &cluster.engine, prompt.clone())?;
        let generated = listen(generation, &cluster.text, args.json).await?;
        print(&args, &prompt, &generated)
    };
    let result = interruptible(work).await;
    let stopped = cluster.stop().await;
    result.and(stopped.map_err(Into::into))
}

/// Returns the arguments; a prompt of `-` is replaced by the text of standard input.
fn with_prompt(args: GenerateArgs) -> anyhow::Result<GenerateArgs> {
    if args.prompt.as_deref() != Some("-") {
        return Ok(args);
    }
    let mut prompt = String::new();
    let mut input = std::io::stdin().lock().take(PROMPT_BYTES_MAX + 1);
    input.read_to_string(&mut prompt).context("reading the prompt from standard input")?;
    ensure!(
        prompt.len() as u64 <= PROMPT_BYTES_MAX,
        "the prompt on standard input is longer than {PROMPT_BYTES_MAX} bytes"
    );
    Ok(GenerateArgs { prompt: Some(prompt), ..args })
}

fn prompt_tokens(args: &GenerateArgs, text: &ModelText) -> anyhow::Result<Vec<TokenId>> {
    if let Some(ids) = &args.prompt_ids {
        return Ok(ids.clone());
    }
    let prompt = args.prompt.as_deref().context("a prompt is required")?;
    if !args.chat {
        return Ok(text.tokenizer.encode_prompt(prompt)?);
    }
    let mut messages = Vec::new();
    if let Some(system) = &args.system {
        messages.push(json!({"role": "system", "content": system}));
    }
    messages.push(json!({"role": "user", "content": prompt}));
    let prompt = ChatPrompt {
        messages: &messages,
        tools: None,
        kwargs: &Map::new(),
        add_generation_prompt: true,
    };
    Ok(text.encode_chat(&prompt)?)
}

fn submit(
    args: &GenerateArgs,
    engine: &EngineHandle,
    prompt: Vec<TokenId>,
) -> anyhow::Result<Generation> {
    let limits = engine.limits().context("the ranks are not ready")?;
    let options = RequestOptions {
        prompt,
        max_tokens: Some(args.max_tokens),
        sampling: SamplingOptions {
            temperature: args.temperature,
            top_p: args.top_p,
            top_k: args.top_k,
            min_p: args.min_p,
            seed: args.seed,
            ..SamplingOptions::default()
        },
        logprobs: args.logprobs,
        ignore_eos: args.ignore_eos,
        ..RequestOptions::default()
    };
    Ok(engine.submit(Request::new(options, &limits)?)?)
}

/// Collects the answer, and prints it as it arrives unless `quiet`.
async fn listen(
    mut generation: Generation,
    text: &ModelText,
    quiet: bool,
) -> anyhow::Result<Generated> {
    let started = Instant::now();
    let mut detokenizer = text.detokenizer();
    let mut first_token_ms = 0.0;
    let (mut tokens, mut logprobs, mut answer) = (Vec::new(), Vec::new(), String::new());
    let say = |piece: String, answer: &mut String| -> Result<(), OutputError> {
        if !quiet {
            output::piece(&piece)?;
        }
        answer.push_str(&piece);
        Ok(())
    };
    while let Some(event) = generation.next().await {
        match event {
            Event::Started { .. } | Event::PromptScored { .. } | Event::Embedded { .. } => {}
            Event::Token { token, logprob } => {
                if tokens.is_empty() {
                    first_token_ms = started.elapsed().as_secs_f64() * 1e3;
                }
                tokens.push(token);
                logprobs.extend(logprob);
                say(detokenizer.push(token), &mut answer)?;
            }
            Event::Finished { reason, usage } => {
                say(detokenizer.finish(), &mut answer)?;
                let total_ms = started.elapsed().as_secs_f64() * 1e3;
                return Ok(Generated {
                    tokens,
                    logprobs,
                    text: answer,
                    reason,
                    usage,
                    first_token_ms,
                    total_ms,
                });
            }
            Event::NotANumber { .. } => bail!(Event::NOT_A_NUMBER),
            Event::ConstraintFailed { message, .. } => bail!(message),
            Event::Poisonous(failure) | Event::Failed(failure) => bail!("{failure}"),
        }
    }
    bail!("the engine ended")
}

fn print(args: &GenerateArgs, prompt: &[TokenId], generated: &Generated) -> anyhow::Result<()> {
    let Generated { tokens, text, usage, first_token_ms, total_ms, .. } = generated;
    let num_later = tokens.len().saturating_sub(1) as f64;
    let later_ms = total_ms - first_token_ms;
    let decode_tokens_per_s = if later_ms > 0.0 { num_later / later_ms * 1e3 } else { 0.0 };
    if !args.json {
        output::line("")?;
        eprintln!(
            "{}, first token after {first_token_ms:.0} ms; {} at {decode_tokens_per_s:.1}/s",
            counted(usage.prompt_tokens, "prompt token"),
            counted(usage.completion_tokens, "token")
        );
        return Ok(());
    }
    let reason = match generated.reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Cancelled => "abort",
    };
    let logprobs: Vec<Value> =
        generated.logprobs.iter().map(|it| json!({"logprob": it.logprob, "top": it.top})).collect();
    let result = json!({
        "text": text,
        "token_ids": tokens,
        "prompt_token_ids": prompt,
        "finish_reason": reason,
        "logprobs": args.logprobs.map(|_| logprobs),
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
            "miss_reason": usage.prefix_miss.map(|miss| miss.reason.name()),
            "diverged_at": usage.prefix_miss.map(|miss| miss.diverged_at),
        },
        "timings": {
            "first_token_ms": first_token_ms,
            "total_ms": total_ms,
            "decode_tokens_per_s": decode_tokens_per_s,
        },
    });
    Ok(output::line(result)?)
}
