//! One streamed answer of a server's chat endpoint, piece by piece.

use std::io::BufReader;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;
use ureq::{Agent, BodyReader};

use crate::client::{CONNECT_TIMEOUT, Server};
use crate::events::next_data;

/// Timeout after which a silent server counts as gone; it sends comments while it computes.
const READ_TIMEOUT: Duration = Duration::from_secs(120);

/// Endpoint of chats.
const PATH: &str = "/v1/chat/completions";

/// A part of an answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Piece {
    /// Reasoning, which is not part of the answer.
    Reasoning(String),
    /// Text of the answer.
    Text(String),
    /// A tool call, as JSON.
    ToolCall(Value),
    /// Number of generated tokens; the last piece, if the request asked for usage.
    Usage(u64),
}

/// An answer that is being generated. Dropping it closes the connection, which ends the generation.
pub(crate) struct AnswerStream {
    reader: BufReader<BodyReader<'static>>,
    /// Pieces of the last event that were not returned yet, in reverse.
    pending: Vec<Piece>,
}

impl AnswerStream {
    /// Sends the request.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses the request.
    pub(crate) fn open(server: &Server, body: &Value) -> anyhow::Result<AnswerStream> {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(READ_TIMEOUT))
            .tls_config(server.tls())
            .build()
            .new_agent();
        let url = server.url_of(PATH);
        let mut request = agent.post(&url).header("content-type", "application/json");
        if let Some(bearer) = server.bearer() {
            request = request.header("authorization", bearer);
        }
        let mut response = request.send(body.to_string()).with_context(|| {
            format!("asking {url}\nhint: start a server with `jackalope serve --model DIR`, or pass `--url`")
        })?;
        if !response.status().is_success() {
            let status = response.status();
            let text = response.body_mut().read_to_string().unwrap_or_default();
            let error: Value = serde_json::from_str(&text).unwrap_or_default();
            bail!("{status}: {}", error["error"]["message"].as_str().unwrap_or(&text));
        }
        let reader = BufReader::new(response.into_body().into_reader());
        Ok(AnswerStream { reader, pending: Vec::new() })
    }

    /// Returns the next piece; `None` at the end.
    ///
    /// # Errors
    /// If the stream breaks off or the server reports an error.
    pub(crate) fn next(&mut self) -> anyhow::Result<Option<Piece>> {
        loop {
            if let Some(piece) = self.pending.pop() {
                return Ok(Some(piece));
            }
            let Some(data) = next_data(&mut self.reader)? else { bail!("the stream ended early") };
            if data == "[DONE]" {
                return Ok(None);
            }
            let chunk: Value = serde_json::from_str(&data).context("reading the stream")?;
            if let Some(message) = chunk["error"]["message"].as_str() {
                bail!("{message}");
            }
            self.pending = pieces(&chunk);
            self.pending.reverse();
        }
    }
}

fn pieces(chunk: &Value) -> Vec<Piece> {
    let delta = &chunk["choices"][0]["delta"];
    let text = |key: &str| delta[key].as_str().filter(|it| !it.is_empty()).map(str::to_owned);
    let mut pieces = Vec::new();
    pieces.extend(text("reasoning_content").or_else(|| text("reasoning")).map(Piece::Reasoning));
    pieces.extend(text("content").map(Piece::Text));
    let calls = delta["tool_calls"].as_array().into_iter().flatten();
    pieces.extend(calls.map(|call| Piece::ToolCall(call["function"].clone())));
    pieces.extend(chunk["usage"]["completion_tokens"].as_u64().map(Piece::Usage));
    pieces
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reasoning_and_text_of_one_event_keep_their_order() {
        let delta = json!({"reasoning_content": "hm", "reasoning": "hm", "content": "yes"});
        let chunk = json!({"choices": [{"delta": delta}], "usage": {"completion_tokens": 3}});
        let expected =
            [Piece::Reasoning("hm".to_owned()), Piece::Text("yes".to_owned()), Piece::Usage(3)];
        assert_eq!(pieces(&chunk), expected);
        assert_eq!(pieces(&json!({"choices": [{"delta": {"content": ""}}]})), []);
    }
}
