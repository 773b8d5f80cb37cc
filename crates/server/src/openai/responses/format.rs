//! Writes the answers of `POST /v1/responses` as items that open, grow and close one after the
//! other.
//!
//! ```text
//!  created, in_progress
//!    output_item.added ─▶ content_part.added ─▶ …delta* ─▶ …done ─▶ content_part.done ─▶ output_item.done
//!    (the next item)
//!  completed | incomplete | failed
//! ```
//!
//! An answer that is not streamed goes through the same states, without sending events.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use jackalope_engine::TenantId;
use serde_json::{Value, json};

use super::items::Item;
use super::kept::{KeptResponse, KeptResponses};
use super::output::{Kind, OutputItem, Terms};
use crate::openai::error;
use crate::wire::merged;
use jackalope_serving::error::ApiError;
use jackalope_serving::generate::{
    AnswerSummary, AnswerWriter, CallDelta, Delta, Finish, ScoredToken,
};
use jackalope_serving::ids::{new_id, unix_seconds};
use jackalope_serving::sse::push_named;

/// How a finished response is stored: the conversation before it, and the key that owns it.
#[derive(Debug)]
pub(super) struct Keeping {
    pub(super) kept: Arc<KeptResponses>,
    /// The items of the conversation before the response.
    pub(super) conversation: Vec<Arc<Item>>,
    /// The key that made the request.
    pub(super) owner: Option<TenantId>,
}

/// Writes a response.
#[derive(Debug)]
pub(super) struct ResponseFormat {
    id: String,
    created_at: u64,
    terms: Terms,
    keeping: Option<Keeping>,
    output: Vec<OutputItem>,
    /// Whether the last item is still growing.
    is_open: bool,
    finish: Option<Finish>,
    num_events: u64,
    /// Events that have not been sent yet.
    events: Vec<u8>,
}

impl ResponseFormat {
    pub(super) fn new(terms: Terms, keeping: Option<Keeping>) -> ResponseFormat {
        ResponseFormat {
            id: new_id("resp_"),
            created_at: unix_seconds(),
            terms,
            keeping,
            output: Vec::new(),
            is_open: false,
            finish: None,
            num_events: 0,
            events: Vec::new(),
        }
    }

    /// Adds a delta of the answer to the output items.
    fn take(&mut self, delta: &Delta) {
        if !delta.reasoning.is_empty() {
            self.think(&delta.reasoning);
        }
        if !delta.text.is_empty() {
            self.say(&delta.text, &delta.scored);
        }
        for call in &delta.calls {
            self.call(call);
        }
        if let Some(finish) = delta.finish {
            self.finish = Some(finish);
            let is_answer = |item: &OutputItem| !matches!(item.kind, Kind::Reasoning);
            if !self.output.iter().any(is_answer) {
                // An answer without any text is a message too.
                self.open_message();
            }
            self.close();
        }
    }

    fn think(&mut self, text: &str) {
        if !self.is_in(|kind| matches!(kind, Kind::Reasoning)) {
            self.open("rs_", Kind::Reasoning);
            if self.terms.summarises {
                self.emit_part("response.reasoning_summary_part.added", "")
            } else {
                self.emit_part("response.content_part.added", "")
            }
        }
        self.grow(text);
        if self.terms.summarises {
            self.emit_text("response.reasoning_summary_text.delta", "delta", text)
        } else {
            self.emit_text("response.reasoning_text.delta", "delta", text)
        }
    }

    fn say(&mut self, text: &str, scored: &[ScoredToken]) {
        if !self.is_in(|kind| matches!(kind, Kind::Message { .. })) {
            self.open_message();
        }
        self.grow(text);
        if let Some(OutputItem { kind: Kind::Message { scored: all }, .. }) = self.output.last_mut()
        {
            all.extend_from_slice(scored);
        }
        let logprobs = self.terms.logprobs(scored);
        self.emit_of_item(
            "response.output_text.delta",
            json!({"content_index": 0, "delta": text, "logprobs": logprobs}),
        );
    }

    fn open_message(&mut self) {
        self.open("msg_", Kind::Message { scored: Vec::new() });
        self.emit_part("response.content_part.added", "");
    }

    fn call(&mut self, call: &CallDelta) {
        if let Some(head) = &call.head {
            let (call_id, name) = (new_id("call_"), head.name.clone());
            self.open("fc_", Kind::Call { call_id, name, is_whole: false });
        }
        if !call.arguments.is_empty() {
            self.grow(&call.arguments);
            let delta = json!({"delta": call.arguments});
            self.emit_of_item("response.function_call_arguments.delta", delta);
        }
        if let (true, Some(item)) = (call.is_whole, self.output.last_mut()) {
            if let Kind::Call { is_whole, .. } = &mut item.kind {
                *is_whole = true;
            }
            self.close();
        }
    }

    fn is_in(&self, is_kind: impl FnOnce(&Kind) -> bool) -> bool {
        self.is_open && self.output.last().is_some_and(|item| is_kind(&item.kind))
    }

    fn grow(&mut self, text: &str) {
        self.output.last_mut().expect("an item is open").text.push_str(text);
    }

    /// Opens an item, after closing the previous one.
    fn open(&mut self, prefix: &str, kind: Kind) {
        self.close();
        self.output.push(OutputItem { id: new_id(prefix), text: String::new(), kind });
        self.is_open = true;
        let output_index = self.output.len() - 1;
        let item = self.output[output_index].to_json("in_progress", &self.terms);
        self.emit(
            "response.output_item.added",
            json!({"output_index": output_index, "item": item}),
        );
    }

    /// Closes the open item, if there is one.
    fn close(&mut self) {
        if !std::mem::replace(&mut self.is_open, false) {
            return;
        }
        let idx = self.output.len() - 1;
        let text = self.output[idx].text.clone();
        match (&self.output[idx].kind, self.terms.summarises) {
            (Kind::Reasoning, true) => {
                self.emit_text("response.reasoning_summary_text.done", "text", &text);
                self.emit_part("response.reasoning_summary_part.done", &text);
            }
            (Kind::Reasoning, false) => {
                self.emit_text("response.reasoning_text.done", "text", &text);
                self.emit_part("response.content_part.done", &text);
            }
            (Kind::Message { scored }, _) => {
                let logprobs = self.terms.logprobs(scored);
                self.emit_of_item(
                    "response.output_text.done",
                    json!({"content_index": 0, "text": text, "logprobs": logprobs}),
                );
                self.emit_part("response.content_part.done", &text);
            }
            (Kind::Call { name, .. }, _) => {
                let done = json!({"name": name, "arguments": text});
                self.emit_of_item("response.function_call_arguments.done", done);
            }
        }
        let item = self.output[idx].to_json(self.item_status(idx), &self.terms);
        self.emit("response.output_item.done", json!({"output_index": idx, "item": item}));
    }

    /// The status of an item. The last one may have been cut off: a call by the maximum length or
    /// by a stop string, another item by the maximum length.
    fn item_status(&self, idx: usize) -> &'static str {
        let is_last = idx + 1 == self.output.len();
        let is_cut = match self.output[idx].kind {
            Kind::Call { is_whole, .. } => !is_whole,
            Kind::Reasoning | Kind::Message { .. } => {
                self.is_open || self.finish == Some(Finish::Length)
            }
        };
        if is_last && is_cut { "incomplete" } else { "completed" }
    }

    /// Emits an event with reasoning text of the last item: a delta of it, or all of it.
    fn emit_text(&mut self, event: &'static str, field: &str, text: &str) {
        let index = if self.terms.summarises { "summary_index" } else { "content_index" };
        self.emit_of_item(event, json!({index: 0, field: text}));
    }

    /// Emits an event about the only part of the last item.
    fn emit_part(&mut self, event: &'static str, text: &str) {
        let item = self.output.last().expect("an item is open");
        let is_summary = matches!(item.kind, Kind::Reasoning) && self.terms.summarises;
        let index = if is_summary { "summary_index" } else { "content_index" };
        let part = item.part(text, &self.terms);
        self.emit_of_item(event, json!({index: 0, "part": part}));
    }

    /// Emits an event about the last item.
    fn emit_of_item(&mut self, event: &'static str, fields: Value) {
        let output_index = self.output.len() - 1;
        let id = &self.output[output_index].id;
        let payload = json!({"output_index": output_index, "item_id": id});
        self.emit(event, merged(payload, fields));
    }

    fn emit(&mut self, event: &'static str, fields: Value) {
        if !self.terms.is_stream {
            return;
        }
        let payload = json!({"type": event, "sequence_number": self.num_events});
        self.num_events += 1;
        push_named(&mut self.events, event, &merged(payload, fields));
    }

    /// The response object in its current state.
    fn to_json(
        &self,
        status: &'static str,
        summary: Option<&AnswerSummary>,
        error: &Value,
    ) -> Value {
        let cut_off = json!({"reason": "max_output_tokens"});
        let output: Vec<Value> = (0..self.output.len())
            .filter(|_| status != "in_progress")
            .map(|idx| self.output[idx].to_json(self.item_status(idx), &self.terms))
            .collect();
        let response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "background": false,
            "completed_at": (status == "completed").then(unix_seconds),
            "error": error,
            "incomplete_details": if status == "incomplete" { cut_off } else { Value::Null },
            "model": self.terms.model,
            "output": output,
            "usage": summary.map(usage),
        });
        merged(response, self.terms.echo.clone())
    }

    /// The status and the object of the finished response.
    fn ended(&self, summary: &AnswerSummary) -> (&'static str, Value) {
        let status = match self.finish {
            Some(Finish::Length) => "incomplete",
            Some(Finish::Cancelled) => "cancelled",
            Some(Finish::Stop | Finish::ToolCalls) | None => "completed",
        };
        (status, self.to_json(status, Some(summary), &Value::Null))
    }

    /// Stores the finished response for later requests, unless the request's `store` is false.
    fn keep(&self, body: &Value) {
        let Some(keeping) = &self.keeping else { return };
        let mut conversation = keeping.conversation.clone();
        conversation.extend(self.output.iter().map(|item| Arc::new(item.said())));
        let body = Bytes::from(body.to_string());
        let num_input = keeping.conversation.len();
        let owner = keeping.owner;
        keeping.kept.keep(&self.id, KeptResponse { body, conversation, num_input, owner });
    }
}

fn usage(summary: &AnswerSummary) -> Value {
    let AnswerSummary { prompt_tokens, completion_tokens, .. } = *summary;
    json!({
        "input_tokens": prompt_tokens,
        "input_tokens_details": {"cached_tokens": summary.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": completion_tokens,
        "output_tokens_details": {"reasoning_tokens": summary.reasoning_tokens},
        "total_tokens": prompt_tokens.saturating_add(completion_tokens),
    })
}

impl AnswerWriter for ResponseFormat {
    fn push_start(&mut self, _prompt_tokens: u32, buffer: &mut Vec<u8>) {
        let response = self.to_json("in_progress", None, &Value::Null);
        self.emit("response.created", json!({"response": response}));
        self.emit("response.in_progress", json!({"response": response}));
        buffer.append(&mut self.events);
    }

    fn push_events(&mut self, _choice_idx: usize, delta: Delta, buffer: &mut Vec<u8>) {
        self.take(&delta);
        buffer.append(&mut self.events);
    }

    fn push_end(&mut self, summary: &AnswerSummary, buffer: &mut Vec<u8>) {
        let (status, response) = self.ended(summary);
        self.keep(&response);
        let event = match status {
            "incomplete" => "response.incomplete",
            _ => "response.completed",
        };
        self.emit(event, json!({"response": response}));
        buffer.append(&mut self.events);
    }

    fn push_error(&mut self, err: &ApiError, buffer: &mut Vec<u8>) {
        let body = error::to_json(err);
        let found = &body["error"];
        let code = "server_error";
        self.emit(
            "error",
            json!({"code": found["code"], "message": found["message"], "param": found["param"]}),
        );
        let error = json!({"code": code, "message": found["message"]});
        let response = self.to_json("failed", None, &error);
        self.emit("response.failed", json!({"response": response}));
        buffer.append(&mut self.events);
    }

    fn observe(&mut self, _choice_idx: usize, delta: &Delta) {
        self.take(delta);
    }

    fn whole(&self, _choices: Vec<Delta>, summary: &AnswerSummary) -> Response {
        let (_, response) = self.ended(summary);
        self.keep(&response);
        Json(response).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The events of an answer with reasoning before its text.
    fn events(summarises: bool) -> Vec<Value> {
        let terms = Terms {
            model: "m".to_owned(),
            echo: json!({}),
            is_stream: true,
            logprobs: None,
            summarises,
        };
        let mut format = ResponseFormat::new(terms, None);
        let mut buffer = Vec::new();
        format.push_start(1, &mut buffer);
        let thought = |text: &str| Delta { reasoning: text.to_owned(), ..Delta::default() };
        let said = |text: &str| Delta { text: text.to_owned(), ..Delta::default() };
        let end = Delta { finish: Some(Finish::Stop), ..Delta::default() };
        for delta in [thought("Let me "), thought("think."), said("Hello"), end] {
            format.push_events(0, delta, &mut buffer);
        }
        format.push_end(&AnswerSummary::default(), &mut buffer);
        let text = String::from_utf8(buffer).unwrap();
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        data.map(|data| serde_json::from_str(data).unwrap()).collect()
    }

    fn types(events: &[Value]) -> Vec<&str> {
        events.iter().map(|event| event["type"].as_str().unwrap()).collect()
    }

    /// The events after those of the reasoning.
    const MESSAGE: [&str; 7] = [
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ];

    #[test]
    fn a_thought_is_an_item_before_the_message() {
        let events = events(false);
        let thought = [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.reasoning_text.delta",
            "response.reasoning_text.delta",
            "response.reasoning_text.done",
            "response.content_part.done",
            "response.output_item.done",
        ];
        assert_eq!(types(&events), [&thought[..], &MESSAGE].concat());
        assert_eq!(events[6]["text"], "Let me think.");
        let item = &events[8]["item"];
        assert_eq!(item["summary"], json!([]));
        assert_eq!(item["content"], json!([{"type": "reasoning_text", "text": "Let me think."}]));
        let output = &events.last().unwrap()["response"]["output"];
        assert_eq!(&output[0], item);
        assert_eq!(output[1]["content"][0]["text"], "Hello");
    }

    #[test]
    fn a_thought_is_its_own_summary_if_one_is_wanted() {
        let events = events(true);
        let thought = [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.reasoning_summary_part.added",
            "response.reasoning_summary_text.delta",
            "response.reasoning_summary_text.delta",
            "response.reasoning_summary_text.done",
            "response.reasoning_summary_part.done",
            "response.output_item.done",
        ];
        assert_eq!(types(&events), [&thought[..], &MESSAGE].concat());
        assert_eq!(events[4]["summary_index"], 0);
        let summary = json!([{"type": "summary_text", "text": "Let me think."}]);
        assert_eq!(events[8]["item"]["summary"], summary);
        assert!(events[8]["item"].get("content").is_none());
    }
}
