//! `jackalope demo`: asks a server three questions, and shows which rank holds what.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::answer_stream::{AnswerStream, Piece};
use crate::client::Server;
use crate::output;

const QUESTIONS: [&str; 3] =
    ["Who are you?", "What is the capital of France?", "Tell me a short story about a fox."];

/// Maximum number of tokens of one answer.
const ANSWER_TOKENS: u32 = 120;

/// Timeout of the query for the split.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);

/// Asks the questions, prints the answers as they arrive, and prints how the model was split.
///
/// # Errors
/// If an answer fails or is empty.
pub fn show(server: &Server) -> anyhow::Result<()> {
    for question in QUESTIONS {
        ask(server, question)?;
    }
    print_split(server)
}

/// Streams one answer to the terminal, with its speed.
fn ask(server: &Server, question: &str) -> anyhow::Result<()> {
    output::line(format_args!("> {question}"))?;
    let body = json!({
        "model": "default",
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": ANSWER_TOKENS,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    let mut stream = AnswerStream::open(server, &body)?;
    let started = Instant::now();
    let (mut first, mut num_tokens) = (None, 0);
    while let Some(piece) = stream.next()? {
        match piece {
            Piece::Text(text) => {
                first.get_or_insert_with(Instant::now);
                output::piece(text)?;
            }
            Piece::Usage(tokens) => num_tokens = tokens,
            Piece::Reasoning(_) | Piece::ToolCall(_) => {}
        }
    }
    ensure!(0 < num_tokens, "no token came");
    let seconds = first.unwrap_or(started).elapsed().as_secs_f64();
    let speed = num_tokens as f64 / seconds.max(1e-6);
    Ok(output::line(format_args!("\n  ({num_tokens} tokens, {speed:.0} tokens/s)\n"))?)
}

/// Prints which rank holds which part, and how its time was spent.
fn print_split(server: &Server) -> anyhow::Result<()> {
    let health = server.ask("/health", None, ASK_TIMEOUT)?.body;
    output::line("How the model was split:")?;
    for rank in health["ranks"].as_array().context("/health names no ranks")? {
        output::line(rank_line(rank))?;
    }
    Ok(())
}

fn rank_line(rank: &Value) -> String {
    let facts = &rank["facts"];
    let range = |key: &str| format!("{}..{}", facts[key]["start"], facts[key]["end"]);
    let micros = |key: &str| rank[key].as_f64().unwrap_or(0.0);
    format!(
        "  rank {}: {} bytes of weights; heads {}, kv heads {}, mlp {}, vocabulary {}; \
         {} steps, {:.0} % of their time in collectives",
        rank["rank"],
        facts["weights_bytes"],
        range("heads"),
        range("kv_heads"),
        range("mlp"),
        range("vocab"),
        rank["steps"],
        100.0 * micros("collectives_us") / micros("total_us").max(1.0),
    )
}
