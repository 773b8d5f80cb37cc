//! `POST /v1/embeddings`.

use jackalope_engine::testing::{FakeOrder, pseudo_embedding};
use jackalope_protocol::{Pooling, TokenId};
use serde_json::{Value, json};

use crate::support::{MODEL, Reply, Server, Setup, merge};

const PATH: &str = "/v1/embeddings";

async fn embed(server: &Server, more: Value) -> Reply {
    server.post(PATH, &merge(json!({"model": MODEL, "input": "Hello"}), more)).await
}

fn numbers(entry: &Value) -> Vec<f32> {
    entry["embedding"].as_array().unwrap().iter().map(|it| it.as_f64().unwrap() as f32).collect()
}

fn normalized(vector: &[f32]) -> Vec<f32> {
    let norm = vector.iter().map(|it| f64::from(*it).powi(2)).sum::<f64>().sqrt();
    vector.iter().map(|it| (f64::from(*it) / norm) as f32).collect()
}

#[tokio::test]
async fn embeddings_read_like_this() {
    let server = Setup::says("Hello").start().await;
    let reply = embed(&server, json!({"input": ["Hello", " world again"], "user": "me"})).await;
    insta::assert_snapshot!(reply.transcript());
}

#[tokio::test]
async fn texts_and_tokens_are_embedded_alike_and_in_order() {
    let server = Setup::says("Hello").start().await;
    let texts = ["Hello", " world again", " The end", "Hello"];
    let lists: Vec<Vec<TokenId>> = texts.iter().map(|text| server.tokens(text)).collect();
    for (name, pooling) in
        [(None, Pooling::Mean), (Some("mean"), Pooling::Mean), (Some("last"), Pooling::Last)]
    {
        for input in [json!(texts), json!(lists)] {
            let list = embed(&server, json!({"input": input, "pooling": name})).await.ok();
            let num_tokens: usize = lists.iter().map(Vec::len).sum();
            assert_eq!(
                list["usage"],
                json!({"prompt_tokens": num_tokens, "total_tokens": num_tokens})
            );
            for (index, tokens) in lists.iter().enumerate() {
                let entry = &list["data"][index];
                assert_eq!(entry["index"], index);
                assert_eq!(numbers(entry), normalized(&pseudo_embedding(tokens, pooling)));
            }
        }
    }
    let alone = embed(&server, json!({"input": lists[1]})).await.ok();
    assert_eq!(alone["data"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn vectors_are_cut_normalized_and_encoded_as_wished() {
    let server = Setup::says("Hello").start().await;
    let raw = pseudo_embedding(&server.tokens("Hello"), Pooling::Mean);
    for (more, expected) in [
        (json!({"normalize": false}), raw.clone()),
        (json!({"normalize": false, "dimensions": 1}), raw[..1].to_vec()),
        (json!({"dimensions": 1}), vec![1.0]),
        (json!({"dimensions": 2}), normalized(&raw)),
    ] {
        let list = embed(&server, more.clone()).await.ok();
        assert_eq!(numbers(&list["data"][0]), expected, "{more}");
    }
    // 1.0 is 0x3f80_0000.
    let list = embed(&server, json!({"dimensions": 1, "encoding_format": "base64"})).await.ok();
    assert_eq!(list["data"][0]["embedding"], "AACAPw==");
}

#[tokio::test]
async fn more_texts_than_the_queue_holds_are_embedded() {
    let server = Setup::says("Hello").engine(|config| {
        config.running_max = 2;
        config.queue_max = 32;
    });
    let server = server.start().await;
    let list = embed(&server, json!({"input": vec!["Hello world"; 300]})).await.ok();
    assert_eq!(list["data"].as_array().unwrap().len(), 300);
}

#[tokio::test]
async fn impossible_embeddings_are_refused() {
    let server = Setup::says("Hello").start().await;
    let cases = [
        (json!({"input": null}), "input", "missing_required_parameter"),
        (json!({"input": ""}), "input", "empty_value"),
        (json!({"input": []}), "input", "empty_value"),
        (json!({"input": ["Hello", ""]}), "input[1]", "empty_value"),
        (json!({"input": {"text": "x"}}), "input", "invalid_type"),
        (json!({"input": [1, "x"]}), "input", "invalid_type"),
        (json!({"input": [99999]}), "input", "invalid_value"),
        (json!({"input": vec!["x"; 2049]}), "input", "too_many_entries"),
        (json!({"input": vec![1; 257]}), "input", "context_length_exceeded"),
        (json!({"dimensions": 0}), "dimensions", "invalid_value"),
        (json!({"dimensions": 3}), "dimensions", "invalid_value"),
        (json!({"encoding_format": "hex"}), "encoding_format", "invalid_type"),
        (json!({"pooling": "max"}), "pooling", "invalid_type"),
    ];
    let mut messages = String::new();
    for (more, param, code) in cases {
        let error = embed(&server, more.clone()).await.error();
        assert_eq!((&error["param"], &error["code"]), (&json!(param), &json!(code)), "{error}");
        let shown: String = more.to_string().chars().take(60).collect();
        messages.push_str(&format!("{shown}\n  {}\n", error["message"].as_str().unwrap()));
    }
    insta::assert_snapshot!(messages);
    embed(&server, json!({})).await.ok();
}

#[tokio::test]
async fn nothing_is_embedded_without_a_text_in_ollamas_api() {
    let server = Setup::says("Hello").start().await;
    for nothing in [json!({"model": MODEL}), json!({"model": MODEL, "input": ""})] {
        let embedded = server.post("/api/embed", &nothing).await.ok();
        assert_eq!(
            (&embedded["embeddings"], &embedded["prompt_eval_count"]),
            (&json!([]), &json!(0))
        );
    }
    let embedded =
        server.post("/api/embeddings", &json!({"model": MODEL, "prompt": ""})).await.ok();
    assert_eq!(embedded, json!({"embedding": []}));
    // An empty text in a list has no vector.
    let list = json!({"model": MODEL, "input": ["Hello", ""]});
    assert_eq!(server.post("/api/embed", &list).await.status, 400);
}

#[tokio::test(start_paused = true)]
async fn embeddings_that_take_too_long_are_given_up() {
    let mut setup = Setup::says("Hello");
    setup.server.limits.request_timeout = Some(std::time::Duration::from_secs(3));
    let server = setup.start().await;
    server.control.order(FakeOrder::Hold);
    let reply = embed(&server, json!({})).await;
    assert_eq!((reply.status.as_u16(), &reply.error()["code"]), (504, &json!("timeout")));
    server.control.order(FakeOrder::Resume);
    server.until("nothing runs", |status| status.running == 0).await;
}
