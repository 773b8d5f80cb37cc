//! Several choices, seeds, stops and log-probabilities: properties rather than examples.

use jackalope_engine::testing::pseudo_model;
use serde_json::{Value, json};

use crate::model;
use crate::support::{Setup, completion_body};

fn texts(answer: &Value) -> Vec<String> {
    let choices = answer["choices"].as_array().unwrap().iter();
    let text = |choice: &Value| {
        choice["message"]["content"].as_str().or(choice["text"].as_str()).unwrap().to_owned()
    };
    choices.map(text).collect()
}

#[tokio::test]
async fn the_first_of_several_choices_is_what_it_would_be_alone() {
    let server = Setup::babbles().start().await;
    for seed in [0, 1, -1, i64::MAX, i64::MIN] {
        let options = |n| json!({"seed": seed, "n": n, "max_tokens": 30});
        let alone = texts(&server.chat(options(1)).await.ok());
        let several = texts(&server.chat(options(4)).await.ok());
        assert_eq!(several[0], alone[0]);
        assert_eq!(several, texts(&server.chat(options(4)).await.ok()), "the same seed again");
        let mut distinct = several.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), 4, "each choice has a seed of its own: {several:?}");
    }
}

#[tokio::test]
async fn without_a_seed_answers_differ() {
    let server = Setup::babbles().start().await;
    let one = texts(&server.chat(json!({"max_tokens": 30})).await.ok());
    let other = texts(&server.chat(json!({"max_tokens": 30})).await.ok());
    assert_ne!(one, other);
}

#[tokio::test]
async fn a_list_of_prompts_is_each_of_them_alone() {
    let server = Setup::babbles().start().await;
    let options = |prompt: Value| json!({"prompt": prompt, "seed": 7, "n": 2, "echo": true});
    let hello = server.tokens("Hello");
    for prompts in [json!(["Hello", " The end", "x"]), json!([hello, [1, 2, 3]])] {
        let together = server.complete(options(prompts.clone())).await.ok();
        let mut alone = Vec::new();
        let mut prompt_tokens = 0;
        for prompt in prompts.as_array().unwrap() {
            let answer = server.complete(options(prompt.clone())).await.ok();
            alone.extend(texts(&answer));
            prompt_tokens += answer["usage"]["prompt_tokens"].as_u64().unwrap();
        }
        assert_eq!(texts(&together), alone);
        assert_eq!(together["usage"]["prompt_tokens"], prompt_tokens);
        let indexes = together["choices"].as_array().unwrap().iter().map(|choice| &choice["index"]);
        assert!(indexes.eq((0..alone.len()).map(Value::from).collect::<Vec<_>>().iter()));
    }
}

#[tokio::test]
async fn every_form_of_the_same_prompt_is_the_same() {
    let server = Setup::babbles().start().await;
    let tokens = server.tokens("Hello world");
    let mut answers = Vec::new();
    for prompt in [json!("Hello world"), json!(["Hello world"]), json!(tokens), json!([tokens])] {
        let options = json!({"prompt": prompt, "seed": 3, "echo": true});
        answers.push(texts(&server.complete(options).await.ok()));
    }
    assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "{answers:?}");
}

#[tokio::test]
async fn a_stop_string_cuts_the_text_before_it_wherever_tokens_end() {
    let server = Setup::babbles().start().await;
    let mut num_cut = 0;
    for seed in 0..60 {
        let options = |stop: Value| json!({"seed": seed, "max_tokens": 40, "stop": stop});
        let uncut = texts(&server.chat(options(Value::Null)).await.ok()).remove(0);
        let chars: Vec<char> = uncut.chars().collect();
        let start = (seed as usize * 7) % chars.len().saturating_sub(4).max(1);
        let stop: String = chars[start..].iter().take(1 + seed as usize % 4).collect();
        let stops = if seed % 2 == 0 { json!(stop) } else { json!(["never said", stop]) };
        let answer = server.chat(options(stops)).await.ok();
        let place = uncut.find(&stop).unwrap();
        assert_eq!(texts(&answer)[0], uncut[..place], "{stop:?} in {uncut:?}");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        num_cut += 1;
    }
    assert_eq!(num_cut, 60);
    server.until("nothing is left running", |status| status.running == 0).await;
}

#[tokio::test]
async fn logprobs_have_every_token_of_the_text_and_none_behind_a_stop() {
    let server = Setup::says("Hello world again").start().await;
    // A token is returned if any of its text is: " world" begins before "world", but not before
    // itself.
    for (stop, wanted) in [
        ("world", vec!["Hello", " world"]),
        (" world", vec!["Hello"]),
        ("d a", vec!["Hello", " world"]),
        (" again", vec!["Hello", " world"]),
        ("Hello", vec![]),
        ("never", vec!["Hello", " world", " again"]),
    ] {
        for stream in [false, true] {
            let options = json!({"logprobs": true, "stop": stop, "stream": stream});
            let reply = server.chat(options).await;
            let chunks = if stream { reply.chunks() } else { vec![reply.ok()] };
            let entries = chunks
                .iter()
                .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array().cloned());
            let returned: Vec<Value> = entries.flatten().collect();
            let tokens: Vec<&str> =
                returned.iter().map(|it| it["token"].as_str().unwrap()).collect();
            assert_eq!(tokens, wanted, "{stop:?}");
        }
    }
}

/// Every token is found at its offset.
#[track_caller]
fn check_offsets(choice: &Value) {
    let text: Vec<char> = choice["text"].as_str().unwrap().chars().collect();
    let logprobs = &choice["logprobs"];
    let offsets: Vec<usize> = serde_json::from_value(logprobs["text_offset"].clone()).unwrap();
    let tokens = logprobs["tokens"].as_array().unwrap();
    assert_eq!(offsets.len(), tokens.len());
    assert!(offsets.is_sorted());
    for (token, offset) in tokens.iter().zip(offsets) {
        let token = token.as_str().unwrap();
        if token == model::END || token.starts_with("bytes:") {
            continue;
        }
        let found: String = text[offset..].iter().take(token.chars().count()).collect();
        assert_eq!(found, token, "at {offset} of {choice}");
    }
}

#[tokio::test]
async fn echo_returns_the_prompt_and_its_logprobs() {
    let server = Setup::says(" world \u{1f998} again").start().await;
    let plain = server.complete(json!({"prompt": "Hello é", "logprobs": 3})).await.ok();
    let options = json!({"prompt": "Hello é", "logprobs": 3, "echo": true});
    let echoed = server.complete(options).await.ok();
    let (plain, echoed) = (&plain["choices"][0], &echoed["choices"][0]);
    check_offsets(plain);
    check_offsets(echoed);
    assert_eq!(echoed["text"], format!("Hello é{}", plain["text"].as_str().unwrap()));
    let prompt_tokens = server.tokens("Hello é").len();
    for list in ["tokens", "token_logprobs", "top_logprobs"] {
        let (plain, echoed) = (&plain["logprobs"][list], &echoed["logprobs"][list]);
        let (plain, echoed) = (plain.as_array().unwrap(), echoed.as_array().unwrap());
        assert_eq!(echoed[prompt_tokens..], plain[..], "{list}");
    }
    assert_eq!(echoed["logprobs"]["token_logprobs"][0], Value::Null);
    assert_eq!(echoed["logprobs"]["top_logprobs"][0], Value::Null);
    assert!(echoed["logprobs"]["token_logprobs"][1].is_number());
}

#[tokio::test]
async fn a_prompt_can_be_scored_without_drawing_a_token() {
    let server = Setup::babbles().start().await;
    let options = json!({"prompt": "Hello world", "max_tokens": 0, "echo": true, "logprobs": 0});
    let answer = server.complete(options.clone()).await.ok();
    let choice = &answer["choices"][0];
    check_offsets(choice);
    assert_eq!(choice["text"], "Hello world");
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["logprobs"]["tokens"], json!(["Hello", " world"]));
    assert_eq!(answer["usage"]["completion_tokens"], 0);
    let mut options = options;
    options["stream"] = true.into();
    let chunks = server.complete(options).await.chunks();
    assert_eq!(chunks[0]["choices"][0]["text"], "Hello world");
    assert_eq!(chunks[0]["choices"][0]["logprobs"], choice["logprobs"]);
}

#[tokio::test]
async fn a_token_that_begins_every_text_is_scored_but_not_read() {
    let text = model::text_with_bos();
    let vocab_size = text.tokenizer.vocab_size() as u32;
    let server = Setup::with(text, pseudo_model(vocab_size)).start().await;
    let options = json!({"prompt": "Hello", "max_tokens": 0, "echo": true, "logprobs": 1});
    let answer = server.complete(options).await.ok();
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], "Hello");
    assert_eq!(choice["logprobs"]["tokens"], json!(["<|bos|>", "Hello"]));
    assert_eq!(choice["logprobs"]["text_offset"], json!([0, 0]));
    for (more, prompt_tokens) in [
        (json!({}), 2),
        (json!({"add_special_tokens": false}), 1),
        (json!({"prompt": "<|bos|>Hello"}), 2),
    ] {
        let answer = server.complete(more).await.ok();
        assert_eq!(answer["usage"]["prompt_tokens"], prompt_tokens);
    }
}

#[tokio::test]
async fn a_completion_goes_on_where_the_prompt_ends_within_a_character() {
    let bytes = |tokens: &[u32]| tokens.to_vec();
    let server = Setup::says("x").start().await;
    let kangaroo = server.tokens("\u{1f998}");
    assert_eq!(kangaroo.len(), 4);
    let rest = bytes(&kangaroo[1..]);
    drop(server);
    let server = Setup::answers(move |_| rest.clone()).start().await;
    let answer = server.complete(json!({"prompt": [kangaroo[0]]})).await.ok();
    assert_eq!(texts(&answer), ["\u{1f998}"]);
}

#[tokio::test]
async fn best_of_keeps_the_likeliest() {
    let server = Setup::babbles().start().await;
    let options = |n: u32, best_of: Value, logprobs: Value| json!({"n": n, "best_of": best_of, "seed": 5, "logprobs": logprobs, "max_tokens": 8});
    let all = server.complete(options(6, Value::Null, json!(0))).await.ok();
    let mean = |choice: &Value| {
        let logprobs = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        logprobs.iter().map(|it| it.as_f64().unwrap()).sum::<f64>() / logprobs.len() as f64
    };
    let mut ranked: Vec<&Value> = all["choices"].as_array().unwrap().iter().collect();
    ranked.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
    let best = server.complete(options(2, json!(6), Value::Null)).await.ok();
    let wanted: Vec<&Value> = ranked[..2].iter().map(|choice| &choice["text"]).collect();
    let found = texts(&best);
    assert_eq!(wanted, found.iter().collect::<Vec<_>>());
    assert_eq!(best["choices"][0]["logprobs"], Value::Null, "they were not asked for");
    assert_eq!(best["usage"]["completion_tokens"], all["usage"]["completion_tokens"]);
    let body = completion_body(json!({"best_of": 2, "stream": true}));
    assert_eq!(server.post("/v1/completions", &body).await.error()["param"], "best_of");
}
