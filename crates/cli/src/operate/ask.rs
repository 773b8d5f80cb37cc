//! `jackalope health`, `metrics`, `queue`, `served` and `test`: query a server on this or another
//! machine.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use jackalope_console::client::{Response, Server};
use jackalope_console::output;
use jackalope_deploy::server_record::ServeRecord;
use jackalope_protocol::counted;
use serde_json::{Value, json};

use crate::args::keys::ClientKeyArgs;
use crate::args::operate::AskArgs;
use crate::client::{off_runtime, recorded};
use crate::environment::Environment;
use crate::keys;

/// Default URL of a server.
const DEFAULT_URL: &str = "http://127.0.0.1:8080";

/// Timeout of a request that needs no computation by the model.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout of a short answer of a model, which may wait behind others.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

const TEST_PROMPT: &str = "Say hello in one short sentence.";
const TEST_TOKENS: u32 = 32;

/// Returns the server that was named, or the one of this machine.
pub(crate) fn server(args: &AskArgs, environment: &Environment) -> anyhow::Result<Server> {
    match (&args.url, running(environment)) {
        (None, Some(running)) => {
            let given = keys::given(&args.key)?;
            Ok(Server { api_key: given.or(running.api_key), ..running })
        }
        (url, _) => named(url.as_deref().unwrap_or(DEFAULT_URL), &args.key, environment),
    }
}

/// Returns the server at `url`. A key is used only for the server that it was given for; the key
/// from the environment only for servers on this machine.
pub(crate) fn named(
    url: &str,
    key: &ClientKeyArgs,
    environment: &Environment,
) -> anyhow::Result<Server> {
    let url = url.trim_end_matches('/').to_owned();
    let same = running(environment).filter(|it| it.url == url);
    let api_key = keys::given(key)?.or_else(|| same.and_then(|it| it.api_key));
    let server = Server { url, api_key };
    let of_environment = || environment.client_key().filter(|_| server.is_here());
    Ok(Server { api_key: server.api_key.clone().or_else(of_environment), ..server })
}

fn running(environment: &Environment) -> Option<Server> {
    let home = environment.home().ok()?;
    ServeRecord::running(&home).map(|it| recorded(&it))
}

async fn get(args: &AskArgs, path: &'static str, it: &Environment) -> anyhow::Result<Response> {
    let server = server(args, it)?;
    off_runtime(move || server.ask(path, None, ASK_TIMEOUT)).await
}

pub(crate) async fn health(args: AskArgs, environment: &Environment) -> anyhow::Result<ExitCode> {
    let answer = get(&args, "/health", environment).await?;
    let is_well = answer.is_ok() && answer.body["ok"] == true;
    if args.json {
        output::line(&answer.body)?
    } else {
        output::line(format_args!("{:#}", answer.body))?
    }
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(crate) async fn metrics(args: AskArgs, environment: &Environment) -> anyhow::Result<ExitCode> {
    let answer = get(&args, "/metrics/snapshot", environment).await?;
    ensure!(answer.is_ok(), "{}", answer.refusal());
    if args.json {
        output::line(&answer.body)?
    } else {
        output::line(format_args!("{:#}", answer.body))?
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn queue(args: AskArgs, environment: &Environment) -> anyhow::Result<ExitCode> {
    let Response { body, .. } = get(&args, "/health", environment).await?;
    let number = |key: &str| body[key].as_u64();
    let (Some(size), Some(max)) = (number("queue_size"), number("queue_max")) else {
        bail!("the server reports no queue: {body}");
    };
    let running = number("running").unwrap_or(0);
    if args.json {
        output::line(json!({"size": size, "max": max, "running": running}))?
    } else {
        output::line(format_args!("{running} running, {size} of {max} waiting"))?
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn served(args: AskArgs, environment: &Environment) -> anyhow::Result<ExitCode> {
    let answer = get(&args, "/v1/models", environment).await?;
    ensure!(answer.is_ok(), "{}", answer.refusal());
    if args.json {
        output::line(&answer.body)?;
        return Ok(ExitCode::SUCCESS);
    }
    let models = answer.body["data"].as_array().map(Vec::as_slice).unwrap_or_default();
    for model in models {
        let id = model["id"].as_str().unwrap_or_default();
        match models.len() {
            1 => output::line(id)?,
            _ => output::line(format_args!("{id}  {}", words_of_model(model)))?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Formats the state of one of several models: `ready, default, pinned, also gpt-4`.
fn words_of_model(model: &Value) -> String {
    let mut words = vec![model["state"].as_str().unwrap_or("?").to_owned()];
    words.extend(
        ["default", "pinned"].iter().filter(|it| model[**it] == true).map(|it| (*it).to_owned()),
    );
    let aliases = model["aliases"].as_array().into_iter().flatten().filter_map(Value::as_str);
    words.extend(aliases.map(|alias| format!("also {alias}")));
    words.join(", ")
}

pub(crate) async fn test(args: AskArgs, environment: &Environment) -> anyhow::Result<ExitCode> {
    let server = server(&args, environment)?;
    let answer = off_runtime(move || one_answer(&server)).await?;
    if args.json {
        output::line(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    output::line(answer["text"].as_str().unwrap_or_default().trim())?;
    output::line(format_args!(
        "{}: {} in {:.2} s, {:.1} tokens/s",
        answer["model"].as_str().unwrap_or_default(),
        counted(&answer["completion_tokens"], "token"),
        answer["seconds"].as_f64().unwrap_or(0.0),
        answer["tokens_per_sec"].as_f64().unwrap_or(0.0)
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Requests one short answer, through the chat template if the model has one.
fn one_answer(server: &Server) -> anyhow::Result<Value> {
    let begin = Instant::now();
    let body = json!({
        "model": "default", "max_tokens": TEST_TOKENS, "temperature": 0,
        "messages": [{"role": "user", "content": TEST_PROMPT}],
    });
    let mut answer = server.ask("/v1/chat/completions", Some(&body), ANSWER_TIMEOUT)?;
    let mut text = "/choices/0/message/content";
    if answer.status == 400 {
        let body = json!({
            "model": "default", "max_tokens": TEST_TOKENS, "temperature": 0, "prompt": TEST_PROMPT,
        });
        answer = server.ask("/v1/completions", Some(&body), ANSWER_TIMEOUT)?;
        text = "/choices/0/text";
    }
    ensure!(answer.is_ok(), "{}", answer.refusal());
    let seconds = begin.elapsed().as_secs_f64();
    let num_tokens = answer.body["usage"]["completion_tokens"].as_u64().unwrap_or(0);
    ensure!(0 < num_tokens, "the model answered without a single token: {}", answer.body);
    let tokens_per_sec = num_tokens as f64 / seconds.max(f64::EPSILON);
    Ok(json!({
        "ok": true,
        "model": answer.body["model"],
        "text": answer.body.pointer(text),
        "prompt_tokens": answer.body["usage"]["prompt_tokens"],
        "completion_tokens": num_tokens,
        "seconds": seconds,
        "tokens_per_sec": tokens_per_sec,
    }))
}
