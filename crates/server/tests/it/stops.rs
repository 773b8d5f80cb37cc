//! Stop strings: from which token on they count, and how their answers are counted.

use jackalope_engine::Status;
use serde_json::{Value, json};

use crate::support::{Setup, merge};

#[tokio::test]
async fn stop_strings_end_no_answer_before_its_minimum_length() {
    let server = Setup::says("Hello world. Hello world again.").start().await;
    let num_tokens = server.tokens("Hello world. Hello").len();
    for is_stream in [false, true] {
        let ask = async |min_tokens: usize| {
            let options = json!({"stop": ["world"], "min_tokens": min_tokens, "max_tokens": 20});
            let reply = server.chat(merge(options, json!({"stream": is_stream}))).await;
            if is_stream {
                let chunks = reply.chunks();
                let choices = || chunks.iter().map(|chunk| &chunk["choices"][0]);
                let pieces = choices().filter_map(|it| it["delta"]["content"].as_str());
                let reason = choices().find_map(|it| it["finish_reason"].as_str());
                (pieces.collect::<String>(), reason.unwrap().to_owned())
            } else {
                let choice = &reply.ok()["choices"][0];
                let text = |value: &Value| value.as_str().unwrap().to_owned();
                (text(&choice["message"]["content"]), text(&choice["finish_reason"]))
            }
        };
        let stopped = |text: &str| (text.to_owned(), "stop".to_owned());
        assert_eq!(ask(0).await, stopped("Hello "));
        assert_eq!(ask(2).await, stopped("Hello "), "the stop string is in the second token");
        assert_eq!(ask(3).await, stopped("Hello world. Hello "));
        assert_eq!(ask(num_tokens + 1).await, stopped("Hello world. Hello "));
        assert_eq!(ask(num_tokens + 2).await, stopped("Hello world. Hello world again."));
    }
}

#[tokio::test]
async fn an_answer_that_a_stop_string_ends_is_a_finished_one() {
    let server = Setup::says("Hello world again").start().await;
    server.chat(json!({"stop": ["world"]})).await.ok();
    server.chat(json!({"stop": ["world"], "stream": true, "n": 2})).await.chunks();
    let counted = |status: &Status| status.counters.finished + status.counters.cancelled == 3;
    server.until("all are counted", counted).await;
    let counters = server.get("/health").await.ok()["counters"].clone();
    assert_eq!((&counters["finished"], &counters["cancelled"]), (&json!(3), &json!(0)));
}
