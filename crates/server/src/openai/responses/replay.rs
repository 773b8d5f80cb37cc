//! Recreates the events of a kept response for `GET /v1/responses/{id}?stream=true`, with each text
//! in one delta.

use axum::body::Bytes;
use jackalope_serving::sse::push_named;
use serde_json::{Value, json};

use crate::wire::merged;

/// Writes events with their numbers.
#[derive(Debug)]
struct Events {
    next_number: u64,
    /// Events up to and including this number are left out.
    after: Option<u64>,
    buffer: Vec<u8>,
}

impl Events {
    fn push(&mut self, name: &str, mut event: Value) {
        let number = self.next_number;
        self.next_number += 1;
        if self.after.is_some_and(|after| number <= after) {
            return;
        }
        event["type"] = name.into();
        event["sequence_number"] = number.into();
        push_named(&mut self.buffer, name, &event);
    }

    /// Writes the events of one part of an item, or of its summary.
    fn push_part(&mut self, place: &Value, part: &Value, is_summary: bool) {
        let event = |more: Value| merged(place.clone(), more);
        let empty = merged(part.clone(), json!({"text": ""}));
        let (parts, texts) = match part["type"].as_str().unwrap_or_default() {
            _ if is_summary => ("reasoning_summary_part", "reasoning_summary_text"),
            "reasoning_text" => ("content_part", "reasoning_text"),
            _ => ("content_part", "output_text"),
        };
        let mut delta = json!({"delta": part["text"]});
        let mut done = json!({"text": part["text"]});
        if let Some(logprobs) = part.get("logprobs") {
            delta["logprobs"] = logprobs.clone();
            done["logprobs"] = logprobs.clone();
        }
        self.push(&format!("response.{parts}.added"), event(json!({ "part": empty })));
        self.push(&format!("response.{texts}.delta"), event(delta));
        self.push(&format!("response.{texts}.done"), event(done));
        self.push(&format!("response.{parts}.done"), event(json!({ "part": part })));
    }

    fn push_item(&mut self, output_index: usize, item: &Value) {
        let mut begun = item.clone();
        begun["status"] = "in_progress".into();
        for field in ["content", "summary"] {
            if begun.get(field).is_some_and(Value::is_array) {
                begun[field] = json!([]);
            }
        }
        if item["type"] == "function_call" {
            begun["arguments"] = "".into();
        }
        let place = json!({"item_id": item["id"], "output_index": output_index});
        self.push(
            "response.output_item.added",
            json!({"output_index": output_index, "item": begun}),
        );
        for (field, index) in [("summary", "summary_index"), ("content", "content_index")] {
            for (idx, part) in item[field].as_array().into_iter().flatten().enumerate() {
                self.push_part(
                    &merged(place.clone(), json!({ index: idx })),
                    part,
                    field == "summary",
                );
            }
        }
        if item["type"] == "function_call" {
            let delta = merged(place.clone(), json!({"delta": item["arguments"]}));
            self.push("response.function_call_arguments.delta", delta);
            let done = json!({"name": item["name"], "arguments": item["arguments"]});
            self.push("response.function_call_arguments.done", merged(place.clone(), done));
        }
        self.push("response.output_item.done", json!({"output_index": output_index, "item": item}));
    }
}

/// Writes the events of a response; with `after`, only those with a greater number.
pub(super) fn events(response: &Value, after: Option<u64>) -> Bytes {
    let mut events = Events { next_number: 0, after, buffer: Vec::new() };
    let mut begun = response.clone();
    begun["status"] = "in_progress".into();
    begun["output"] = json!([]);
    for field in ["usage", "incomplete_details", "completed_at"] {
        if let Some(value) = begun.get_mut(field) {
            *value = Value::Null;
        }
    }
    events.push("response.created", json!({ "response": begun }));
    events.push("response.in_progress", json!({ "response": begun }));
    for (output_index, item) in response["output"].as_array().into_iter().flatten().enumerate() {
        events.push_item(output_index, item);
    }
    let status = response["status"].as_str().unwrap_or("completed");
    events.push(&format!("response.{status}"), json!({ "response": response }));
    Bytes::from(events.buffer)
}
