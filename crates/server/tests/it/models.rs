//! Several models: loaded once however many ask, swapped by memory, never under a request.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use futures_util::future::join_all;
use jackalope_engine::testing::FakeOrder;
use jackalope_server::{ApiKeys, ServerLimits, ShutdownMode};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::house::{House, Plan, plan};
use crate::support::{Reply, events, open, post, send};

const COMPLETIONS: &str = "/v1/completions";

#[track_caller]
fn text(reply: &Reply) -> String {
    reply.ok()["choices"][0]["text"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_requests_for_a_model_that_is_not_loaded_load_it_once() {
    let house = plan(&[("a", 4), ("b", 4)]).build();
    assert_eq!(house.states().await["b"], "unloaded");
    house.open_gate(false);
    let asking: Vec<JoinHandle<Reply>> = (0..50).map(|_| house.ask_aside("b")).collect();
    house.until("b", "loading").await;
    house.open_gate(true);
    for reply in join_all(asking).await {
        assert_eq!(text(&reply.unwrap()), "bbb");
    }
    assert_eq!(house.log(), ["load b"]);
    assert_eq!(text(&house.ask("default").await), "aaa", "the first one is the default");
    assert_eq!(house.log(), ["load b", "load a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_kept_alive_while_its_model_is_loaded() {
    let soon = |plan: &mut Plan| plan.server.limits.keep_alive = Duration::from_millis(10);
    let house = plan(&[("a", 4), ("b", 4)]).change(soon).build();
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let chat = json!({"model": "a", "messages": messages, "max_tokens": 99, "stream": true});
    let input = json!({"model": "a", "input": "Hi", "stream": true});
    for (path, body, alive, told) in [
        (COMPLETIONS, json!({"model": "a", "prompt": "Hi", "stream": true}), ": ", "\"a\""),
        ("/v1/chat/completions", chat.clone(), ": ", "\"content\":\"a"),
        ("/v1/responses", input, ": ", "response.completed"),
        ("/v1/messages", chat, "event: ping", "message_stop"),
    ] {
        house.open_gate(false);
        let mut live = open(&house.state, post(path, body.to_string())).await;
        assert_eq!(live.status, StatusCode::OK, "{path}");
        for _ in 0..3 {
            let frame = live.next_frame().await.unwrap();
            assert!(frame.starts_with(alive.as_bytes()), "{path}: {frame:?}");
        }
        house.open_gate(true);
        while live.next_frame().await.is_some() {}
        assert!(live.seen.contains(told), "{path}: {}", live.seen);
        assert!(!live.seen.contains("event: error") && !live.seen.contains("\"error\":{"));
        house.post("/model/unload", json!({"model": "a"})).await.ok();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_that_fails_under_a_stream_is_reported_in_it() {
    let soon = |plan: &mut Plan| plan.server.limits.keep_alive = Duration::from_millis(10);
    let house = plan(&[("a", 4)]).change(soon).build();
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let chat = json!({"model": "a", "messages": messages, "max_tokens": 99, "stream": true});
    let input = json!({"model": "a", "input": "Hi", "stream": true});
    for (path, body, told) in [
        ("/v1/chat/completions", chat.clone(), "data: {\"error\":{"),
        ("/v1/responses", input, "event: error\ndata: {"),
        ("/v1/messages", chat, "event: error\ndata: {"),
    ] {
        house.loader.failures.lock().unwrap().insert("a".to_owned(), 1);
        house.open_gate(false);
        let mut live = open(&house.state, post(path, body.to_string())).await;
        live.next_frame().await.unwrap();
        house.open_gate(true);
        while live.next_frame().await.is_some() {}
        assert!(live.seen.contains(told), "{path}: {}", live.seen);
        assert!(live.seen.contains("full of bees"), "{path}: {}", live.seen);
        // A failed load is tried again later, or when somebody asks for it by name.
        house.post("/model/load", json!({"model": "a"})).await.ok();
        house.post("/model/unload", json!({"model": "a"})).await.ok();
    }
    assert_eq!(house.get("/errors").await.ok()["count"], 3);
    // A client that disconnects while the model loads leaves no request behind.
    house.open_gate(false);
    let mut live = open(&house.state, House::streaming("a")).await;
    live.next_frame().await.unwrap();
    drop(live);
    house.open_gate(true);
    house.until("a", "ready").await;
    assert_eq!(house.get("/v1/status").await.ok()["requests"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_least_recently_used_model_makes_room() {
    let house = plan(&[("a", 5), ("b", 5), ("c", 5)]).build();
    for model in ["a", "b", "a", "c"] {
        assert_eq!(text(&house.ask(model).await), model.repeat(3));
    }
    assert_eq!(house.log(), ["load a", "load b", "end b", "load c"], "b is gone before c comes");
    let states = house.states().await;
    assert_eq!(["a", "b", "c"].map(|id| states[id].as_str()), ["ready", "unloaded", "ready"]);
    let card = house.get("/v1/models/b").await.ok();
    assert_eq!((&card["loaded"], &card["max_model_len"]), (&json!(false), &Value::Null));
    assert_eq!(house.log().len(), 4, "looking at a model loads nothing");
    let health = house.get("/health").await.ok();
    assert_eq!(health["models"][2]["state"], "ready");
    assert_eq!(health["models"][2]["ranks"].as_array().unwrap().len(), 2);
    assert_eq!(health["model"], "a");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_pinned_stays_and_what_never_fits_is_refused() {
    let house = plan(&[("a", 6), ("b", 5), ("c", 11)]).pin(0).build();
    house.ask("a").await.ok();
    let reply = house.ask("b").await;
    assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(reply.error()["code"], "model_memory_in_use");
    let message = reply.error()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("a (pinned) are in the way"), "{message}");
    let reply = house.ask("c").await;
    assert_eq!(reply.status, StatusCode::INSUFFICIENT_STORAGE);
    assert_eq!(reply.error()["code"], "insufficient_memory");
    assert_eq!(house.log(), ["load a"]);
    assert_eq!(text(&house.ask("a").await), "aaa");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_with_open_requests_is_not_unloaded_under_them() {
    let long = |plan: &mut Plan| plan.answer_tokens = 100;
    let house = plan(&[("a", 6), ("b", 6)]).change(long).build();
    let mut live = open(&house.state, House::streaming("a")).await;
    live.read_until("\"a").await;
    house.order("a", FakeOrder::Hold);
    let asked = house.ask_aside("b");
    house.until("b", "loading").await;
    assert_eq!(house.log(), ["load a"]);
    house.order("a", FakeOrder::Resume);
    while live.next_frame().await.is_some() {}
    assert_eq!(events(&live.seen).pop().unwrap(), "[DONE]");
    assert!(!live.seen.contains("error"), "{}", live.seen);
    drop(live);
    assert_eq!(text(&asked.await.unwrap()), "b".repeat(100));
    assert_eq!(house.log(), ["load a", "end a", "load b"]);
}

#[tokio::test]
async fn a_load_that_waits_too_long_for_room_says_what_is_in_the_way() {
    let house = plan(&[("a", 6), ("b", 6)]).change(|plan| plan.answer_tokens = 100).build();
    let mut live = open(&house.state, House::streaming("a")).await;
    live.read_until("\"a").await;
    house.order("a", FakeOrder::Hold);
    // From here on only clocks move.
    tokio::time::pause();
    let reply = house.ask("b").await;
    assert_eq!(reply.error()["code"], "model_memory_in_use");
    let message = reply.error()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("a (in use) are in the way"), "{message}");
    let reply = house.post("/model/unload", json!({"model": "a", "timeout_seconds": 3})).await;
    assert_eq!(reply.status, StatusCode::CONFLICT);
    assert_eq!(reply.error()["code"], "model_in_use");
    assert_eq!(house.log(), ["load a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_load_is_reported_to_all_waiting_requests_and_retried_later() {
    let house = plan(&[("a", 1), ("b", 1)]).build();
    house.loader.failures.lock().unwrap().insert("b".to_owned(), 1);
    house.open_gate(false);
    let asking: Vec<JoinHandle<Reply>> = (0..10).map(|_| house.ask_aside("b")).collect();
    let waiting = async {
        loop {
            let health = house.get("/health").await.body;
            let health: Value = serde_json::from_str(&health).unwrap();
            if health["models"][1]["waiting_requests"] == 10 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("all wait");
    house.open_gate(true);
    for reply in join_all(asking).await {
        let reply = reply.unwrap();
        assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(reply.error()["code"], "model_load_failed");
        assert!(reply.body.contains("full of bees"), "{}", reply.body);
        assert!(reply.headers.contains_key("retry-after"));
    }
    assert_eq!(house.ask("b").await.error()["code"], "model_load_failed", "not at once again");
    assert_eq!(house.log(), ["load b"]);
    let card = house.get("/v1/models/b").await.ok();
    assert_eq!(card["state"], "failed");
    // An explicit `/model/load` skips the pause after a failed load.
    let loaded = house.post("/model/load", json!({"model": "b"})).await.ok();
    let said = (&loaded["status"], &loaded["slot"]["loaded"]);
    assert_eq!(said, (&json!("loaded"), &json!(true)), "{loaded}");
    assert_eq!(text(&house.ask("b").await), "bbb");
}

/// All tasks have one thread here, so nothing is noted while the engine gets ready.
#[tokio::test]
async fn no_request_uses_a_model_before_its_load_is_noted() {
    let house = plan(&[("a", 1)]).build();
    house.models.begin_load("a");
    let engine = loop {
        match house.models.status("a").unwrap().model {
            Some(model) => break model.engine.clone(),
            None => tokio::task::yield_now().await,
        }
    };
    while engine.limits().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    house.models.open(Some("a"), &ServerLimits::default()).await.unwrap();
    assert!(house.models.status("a").unwrap().load_time.is_some());
}

#[tokio::test]
async fn after_a_pause_a_request_tries_a_failed_load_again() {
    let house = plan(&[("a", 1)]).build();
    house.loader.failures.lock().unwrap().insert("a".to_owned(), 1);
    assert_eq!(house.ask("a").await.error()["code"], "model_load_failed");
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(6)).await;
    tokio::time::resume();
    assert_eq!(text(&house.ask("a").await), "aaa");
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_wait_are_bounded_in_number_and_time() {
    let short = |plan: &mut Plan| {
        plan.server.limits.load_waiting = 3;
        plan.server.limits.load_wait = Duration::from_millis(300);
    };
    let house = plan(&[("a", 1)]).change(short).build();
    house.open_gate(false);
    let asking: Vec<JoinHandle<Reply>> = (0..8).map(|_| house.ask_aside("a")).collect();
    let mut codes = Vec::new();
    for reply in join_all(asking).await {
        let reply = reply.unwrap();
        let error = reply.error();
        let code = error["code"].as_str().unwrap().to_owned();
        assert!(reply.headers.contains_key("retry-after"));
        if code == "model_loading" {
            assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
            let body: Value = serde_json::from_str(&reply.body).unwrap();
            assert_eq!((&body["loading"]["model"], &error["type"]), (&json!("a"), &json!(code)));
        } else {
            assert_eq!(reply.status, StatusCode::TOO_MANY_REQUESTS);
        }
        codes.push(code);
    }
    codes.sort();
    assert_eq!(codes[..3], ["model_loading"; 3]);
    assert_eq!(codes[3..], ["queue_full"; 5]);
    // The load goes on without anybody who waits for it.
    house.open_gate(true);
    house.until("a", "ready").await;
    assert_eq!(house.log(), ["load a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn unloading_waits_for_streams() {
    let house = plan(&[("a", 1)]).change(|plan| plan.answer_tokens = 100).build();
    let mut live = open(&house.state, House::streaming("a")).await;
    live.read_until("\"a").await;
    house.order("a", FakeOrder::Hold);
    let state = house.state.clone();
    let unloading = tokio::spawn(async move {
        send(&state, post("/model/unload", json!({"model_id": "a"}).to_string())).await
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!unloading.is_finished());
    house.order("a", FakeOrder::Resume);
    while live.next_frame().await.is_some() {}
    assert!(live.seen.contains("[DONE]") && !live.seen.contains("error"), "{}", live.seen);
    drop(live);
    let told = unloading.await.unwrap().ok();
    assert_eq!((&told["status"], &told["model_id"]), (&json!("unloaded"), &json!("a")));
    assert_eq!(house.log(), ["load a", "end a"]);
    let again = house.post("/model/unload", json!({"model": "a"})).await.ok();
    assert_eq!(again["status"], "no_model");
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_models_are_unloaded_after_a_time() {
    let quick = Duration::from_millis(1);
    let timed = |plan: &mut Plan| plan.config.idle_unload = Some(quick);
    let house = plan(&[("a", 1), ("b", 1), ("c", 1)]).change(timed).pin(1).build();
    assert!(house.models.keep_alive("c", None), "for ever");
    for model in ["a", "b", "c"] {
        house.ask(model).await.ok();
    }
    house.until("a", "unloaded").await;
    let states = house.states().await;
    assert_eq!((states["b"].as_str(), states["c"].as_str()), ("ready", "ready"));
    assert!(house.models.keep_alive("c", Some(Duration::ZERO)));
    assert!(house.models.keep_alive("b", Some(Duration::ZERO)), "it is pinned all the same");
    house.until("c", "unloaded").await;
    assert_eq!(house.states().await["b"], "ready");
    assert!(!house.models.keep_alive("z", None));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_loading_on_demand_models_come_by_command_alone() {
    let strict = |plan: &mut Plan| plan.config.load_on_demand = false;
    let house = plan(&[("a", 1), ("b", 1), ("c", 1)]).change(strict).build();
    let reply = house.ask("b").await;
    assert_eq!(reply.status, StatusCode::NOT_FOUND);
    assert_eq!(reply.error()["code"], "model_not_loaded");
    assert_eq!(house.get("/health/ready").await.status, StatusCode::SERVICE_UNAVAILABLE);
    for model in ["b", "c"] {
        assert_eq!(
            house.post("/model/load", json!({"model": model})).await.ok()["status"],
            "loaded"
        );
    }
    assert_eq!(text(&house.ask("b").await), "bbb");
    assert_eq!(house.get("/health/ready").await.ok()["ready"], true, "b answers");
    let gone = house.post("/model/gc", json!({})).await.ok();
    assert_eq!(gone["unloaded"], json!(["b", "c"]));
    assert_eq!(house.states().await["c"], "unloaded");
    house.open_gate(false);
    let begun = house.post("/model/load", json!({"model": "c", "wait": false})).await;
    assert_eq!(begun.status, StatusCode::ACCEPTED);
    house.open_gate(true);
    house.until("c", "ready").await;
}

#[tokio::test]
async fn models_are_controlled_by_those_who_may_and_never_by_path() {
    let kept = |control: bool, keys: ApiKeys| {
        let change = |plan: &mut Plan| {
            plan.server.model_control = control;
            plan.server.api_keys = keys;
        };
        plan(&[("a", 1)]).change(change).build()
    };
    let house = kept(false, ApiKeys::default());
    for path in ["/model/load", "/model/unload", "/model/gc"] {
        assert_eq!(house.post(path, json!({})).await.status, StatusCode::FORBIDDEN);
    }
    let house = kept(true, ApiKeys::new(["other"]).with_admins(["sekret"]));
    let with_key = |key: &str, body: &'static str| {
        let mut request = post("/model/load", body);
        request.headers_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
        request
    };
    let reply = send(&house.state, with_key("other", "{}")).await;
    assert_eq!(reply.error()["code"], "admin_key_needed");
    send(&house.state, with_key("sekret", "{}")).await.ok();
    let house = kept(true, ApiKeys::default());
    for (path, field) in [
        ("/model/load", "model_dir"),
        ("/model/load", "model_path"),
        ("/model/unload", "model_dir"),
        ("/model/unload", "model_path"),
        ("/model/gc", "model"),
        ("/model/gc", "model_id"),
    ] {
        let reply = house.post(path, json!({field: "a"})).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{path} {field}");
        assert_eq!(reply.error()["param"], field);
    }
    assert_eq!(house.post("/model/load", json!({"model": "/etc"})).await.status, 404);
    // A page of another site can send this without asking.
    let empty = |origin: Option<&str>| {
        let request = Request::post("/model/load");
        let request = match origin {
            Some(origin) => request.header("origin", origin),
            None => request,
        };
        request.body(Body::empty()).unwrap()
    };
    assert_eq!(send(&house.state, empty(Some("https://elsewhere.example"))).await.status, 415);
    assert!(house.log().is_empty());
    send(&house.state, empty(None)).await.ok();
    assert_eq!(house.log(), ["load a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_ends_leaves_the_other_models_alone() {
    let house = plan(&[("a", 1), ("b", 1)]).change(|plan| plan.answer_tokens = 100).build();
    house.ask("a").await.ok();
    let mut live = open(&house.state, House::streaming("b")).await;
    live.read_until("\"b").await;
    house.models.engine("a").unwrap().shutdown();
    house.until("a", "failed").await;
    assert!(house.models.engine("a").is_none());
    assert_eq!(house.models.ended("a").await.message, "its engine ended");
    while live.next_frame().await.is_some() {}
    assert!(live.seen.contains("[DONE]") && !live.seen.contains("error"), "{}", live.seen);
    assert_eq!(house.get("/health").await.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(house.get("/health/ready").await.ok()["ready"], true, "b answers");
    house.models.load("a").await.unwrap();
    assert_eq!(house.states().await["a"], "ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn at_the_end_every_engine_ends_and_nothing_is_loaded_any_more() {
    let house = plan(&[("a", 1), ("b", 1), ("c", 1)]).build();
    house.ask("a").await.ok();
    house.ask("b").await.ok();
    house.open_gate(false);
    let waiting = house.ask_aside("c");
    house.until("c", "loading").await;
    house.models.end(ShutdownMode::Shutdown).await;
    assert_eq!(waiting.await.unwrap().error()["code"], "shutting_down");
    // Whether the loader was asked for the third one by then is a matter of time.
    let mut log = house.log();
    log.retain(|it| it != "load c");
    log.sort();
    assert_eq!(log, ["end a", "end b", "load a", "load b"]);
    assert_eq!(house.ask("a").await.error()["code"], "shutting_down");
}

#[tokio::test]
async fn aliases_and_the_default_lead_to_their_models() {
    let named = |plan: &mut Plan| {
        plan.known[1].0.aliases = vec!["gpt-4".to_owned(), "org/x".to_owned()];
        plan.config.default = Some("b".to_owned());
    };
    let house = plan(&[("a", 1), ("b", 1)]).change(named).build();
    for name in ["gpt-4", "org/x", "default"] {
        let answer = house.ask(name).await.ok();
        assert_eq!((&answer["choices"][0]["text"], &answer["model"]), (&json!("bbb"), &json!("b")));
    }
    let unnamed = house.post(COMPLETIONS, json!({"prompt": "Hello", "max_tokens": 9})).await.ok();
    assert_eq!(unnamed["model"], "b");
    assert_eq!(house.get("/v1/models/org/x").await.ok()["id"], "b");
    assert_eq!(house.get("/v1/models/default").await.ok()["default"], true);
    let reply = house.ask("gpt-5").await;
    assert_eq!(
        (reply.status, &reply.error()["code"]),
        (StatusCode::NOT_FOUND, &json!("model_not_found"))
    );
    assert!(reply.body.contains("this server serves a, b"), "{}", reply.body);
    assert_eq!(house.log(), ["load b"]);
}

#[tokio::test]
async fn patterns_lead_to_models_that_no_name_is_more_specific_for() {
    let named = |plan: &mut Plan| {
        plan.known[0].0.aliases = vec!["gpt-*-mini".to_owned(), "*".to_owned()];
        plan.known[1].0.aliases = vec!["gpt-5-mini".to_owned()];
    };
    let house = plan(&[("a", 1), ("b", 1)]).change(named).build();
    for (name, model) in [("gpt-4-mini", "a"), ("gpt-5-mini", "b"), ("anything", "a"), ("b", "b")] {
        assert_eq!(house.ask(name).await.ok()["model"], model, "{name}");
    }
    let strict = plan(&[("a", 1)]).change(|plan| plan.known[0].0.aliases = vec!["x*x".to_owned()]);
    // One letter is not both the beginning and the end.
    assert_eq!(strict.build().ask("x").await.status, StatusCode::NOT_FOUND);
}

/// Agents such as Claude Code have the names of Anthropic's models built in.
#[tokio::test]
async fn names_of_claude_stand_for_the_default_model_on_anthropics_endpoints_alone() {
    let message = json!({
        "model": "claude-sonnet-4-5", "max_tokens": 9,
        "messages": [{"role": "user", "content": "Hello"}],
    });
    let lenient = plan(&[("a", 1), ("b", 1)]).build();
    for is_stream in [false, true] {
        let mut message = message.clone();
        message["stream"] = json!(is_stream);
        let reply = lenient.post("/v1/messages", message).await;
        assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    }
    let counted = lenient.post("/v1/messages/count_tokens", message.clone()).await.ok();
    assert!(counted["input_tokens"].as_u64().is_some(), "{counted}");
    assert_eq!(lenient.ask("claude-sonnet-4-5").await.status, StatusCode::NOT_FOUND);
    let unknown = json!({"model": "gpt-4", "max_tokens": 9, "messages": message["messages"]});
    let reply = lenient.post("/v1/messages", unknown).await;
    assert_eq!(reply.status, StatusCode::NOT_FOUND, "{}", reply.body);
    assert!(reply.body.contains("a, b") && reply.body.contains("--alias"), "{}", reply.body);

    let be_strict = |plan: &mut Plan| plan.server.limits.strict_model_names = true;
    let strict = plan(&[("a", 1)]).change(be_strict).build();
    let reply = strict.post("/v1/messages", message).await;
    assert_eq!(reply.status, StatusCode::NOT_FOUND, "{}", reply.body);
}
