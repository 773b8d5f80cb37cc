//! Endpoints of other servers that are reproduced here.

use axum::body::Body;
use axum::http::{Method, Request};
use jackalope_engine::testing::FakeOrder;
use jackalope_engine::{MachineHeat, RankTransport};
use jackalope_protocol::Backend;
use jackalope_protocol::machine::{Heat, Thermal};
use serde_json::{Value, json};

use crate::support::{MODEL, Reply, Server, Setup, chat_body, events, post};

async fn root(server: &Server, method: Method, accept: &str) -> Reply {
    let request = Request::builder().method(method).uri("/").header("accept", accept);
    server.send(request.body(Body::empty()).unwrap()).await
}

#[track_caller]
fn check_keys(value: &Value, keys: &str) {
    for key in keys.split_whitespace() {
        assert!(value.get(key).is_some(), "{key} is missing in {value}");
    }
}

#[tokio::test]
async fn the_root_is_what_each_client_looks_for() {
    let server = Setup::says("Hello").start().await;
    let page = root(&server, Method::GET, "text/html,application/xhtml+xml,*/*;q=0.8").await;
    assert!(page.body.starts_with("<!doctype html>"), "{}", page.body);
    assert_eq!(page.headers["content-type"], "text/html; charset=utf-8");
    let card = root(&server, Method::GET, "application/json").await.ok();
    assert_eq!(card["name"], "MLX Distributed Inference API");
    assert_eq!(card["endpoints"]["chat"], "/v1/chat/completions");
    assert_eq!(root(&server, Method::GET, "*/*").await.body, "Ollama is running");
    let head = root(&server, Method::HEAD, "text/html").await;
    assert_eq!((head.status.as_u16(), head.body.as_str()), (200, ""));
}

#[tokio::test]
async fn the_page_needs_nothing_from_elsewhere_and_runs_nothing_of_others() {
    let server = Setup::says("Hello").start().await;
    let page = server.get("/dashboard").await;
    let policy = page.headers["content-security-policy"].to_str().unwrap();
    let rules =
        ["default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'"];
    for rule in
        rules.iter().chain(&["frame-ancestors 'none'", "require-trusted-types-for 'script'"])
    {
        assert!(policy.contains(rule), "{policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    let links: Vec<&str> = page.body.split("=\"/assets/").skip(1).collect();
    assert_eq!(links.len(), 3, "{}", page.body);
    for link in links {
        let path = format!("/assets/{}", link.split('"').next().unwrap());
        let file = server.get(&path).await;
        assert_eq!(file.status, 200, "{path}");
        assert_eq!(file.headers["x-content-type-options"], "nosniff", "{path}");
        assert!(file.headers["cache-control"].to_str().unwrap().contains("immutable"), "{path}");
        for word in ["@import", "url(http", "//cdn", "document.write", "eval("] {
            assert!(!file.body.contains(word), "{path}: {word}");
        }
    }
    let unknown = server.get("/assets/other.js").await;
    assert_eq!(unknown.status, 404);
}

#[tokio::test]
async fn the_overview_has_machines_ranks_and_models() {
    let server = Setup::says("Hello").start().await;
    server.chat(json!({})).await.ok();
    let overview = server.get("/v1/cluster?n=5").await.ok();
    check_keys(
        &overview,
        "time version uptime_s default_model running running_max waiting waiting_max open_streams \
         samples recoveries machines links models",
    );
    let machine = &overview["machines"][0];
    check_keys(machine, "name weights_bytes kv_bytes active_bytes total_bytes ranks");
    assert_eq!(machine["ranks"][0]["rank"], 0);
    let model = &overview["models"][0];
    assert_eq!((&model["state"], &model["is_default"]), (&json!("ready"), &json!(true)));
    assert_eq!(model["counters"]["requests"], 1);
    assert_eq!(overview["recoveries"], json!([]));
}

#[tokio::test]
async fn ranks_have_their_transport_and_its_rdma_devices() {
    let keys = ["transport", "rdma"];
    let ranks = async |setup: Setup| {
        let server = setup.start().await;
        let cluster = server.get("/v1/cluster").await.ok()["machines"][0]["ranks"].clone();
        let health = server.get("/health").await.ok()["ranks"].clone();
        let shown = |ranks: &Value| {
            json!([0, 1].map(|rank: usize| keys.map(|key| ranks[rank][key].clone())))
        };
        assert_eq!(shown(&cluster), shown(&health));
        shown(&health)
    };
    assert_eq!(ranks(Setup::says("Hello")).await, json!([[null, null], [null, null]]));
    let transport = |backend, devices: &[&str]| RankTransport {
        backend,
        rdma: devices.iter().map(|&it| it.to_owned()).collect(),
    };
    let mut setup = Setup::says("Hello");
    setup.transports = vec![
        transport(Backend::Jaccl, &["rdma_en5", "rdma_en4"]),
        transport(Backend::Jaccl, &["rdma_en3"]),
    ];
    let rdma = json!([["jaccl", ["rdma_en5", "rdma_en4"]], ["jaccl", ["rdma_en3"]]]);
    assert_eq!(ranks(setup).await, rdma);
    let mut setup = Setup::says("Hello");
    setup.transports = vec![transport(Backend::Tcp, &[]); 2];
    assert_eq!(ranks(setup).await, json!([["tcp", []], ["tcp", []]]));
}

#[tokio::test]
async fn temperature_power_and_load_of_a_machine_are_in_the_overview_and_in_its_health() {
    let server = Setup::says("Hello").start().await;
    let silent = server.get("/v1/cluster").await.ok();
    assert_eq!(silent["machines"][0]["thermal"], Value::Null);
    assert_eq!(server.get("/health").await.ok()["machines"], json!([]));
    let thermal = Some(Thermal::Celsius(71));
    let heat = Heat { thermal, cpu_watts: None, gpu_watts: Some(591), gpu_percent: Some(98) };
    let told = ["", "elsewhere"].map(|host| MachineHeat { host: host.to_owned(), heat });
    server.engine.report_heat(told.to_vec());
    server.until("it is reported", |it| !it.heat.is_empty()).await;
    let machines = server.get("/v1/cluster").await.ok()["machines"].clone();
    assert_eq!(machines.as_array().unwrap().len(), 1, "only machines of ranks: {machines}");
    let keys = ["name", "thermal", "cpu_watts", "gpu_watts", "gpu_percent"];
    let shown = keys.map(|key| machines[0][key].clone());
    assert_eq!(json!(shown), json!(["this machine", "71 °C", null, 591, 98]));
    let health = server.get("/health").await.ok();
    let here = json!({
        "host": null, "thermal": "71 °C", "cpu_watts": null, "gpu_watts": 591, "gpu_percent": 98,
    });
    assert_eq!(health["machines"][0], here);
    assert_eq!(health["machines"][1]["host"], "elsewhere");
}

#[tokio::test]
async fn a_snapshot_has_the_numbers_of_the_last_minute() {
    let server = Setup::says("Hello").start().await;
    let empty = server.get("/metrics/snapshot").await.ok();
    assert_eq!((&empty["total_requests"], &empty["avg_tps_60s"]), (&json!(0), &json!(0.0)));
    server.chat(json!({})).await.ok();
    server.complete(json!({"stream": true})).await;
    let snapshot = server.get("/metrics/snapshot").await.ok();
    check_keys(
        &snapshot,
        "uptime_s total_tokens total_prompt_tokens error_count avg_tps_60s peak_tps_60s \
         avg_latency_60s queue_size queue_max memory nodes memory_monitor",
    );
    assert_eq!(snapshot["total_requests"], 2);
    assert_eq!(snapshot["recent_count"], 2);
    assert_eq!(snapshot["error_count"], 0);
    let history = snapshot["history"].as_array().unwrap();
    let kinds: Vec<&Value> = history.iter().map(|it| &it["kind"]).collect();
    assert_eq!(kinds, ["chat", "completions"]);
    check_keys(&history[0], "t tps latency ctokens");
    assert_eq!(snapshot["nodes"]["1"]["status"], "connected");
    check_keys(&snapshot["memory"]["0"], "active_gb cache_gb total_gb");
}

#[tokio::test(start_paused = true)]
async fn the_stream_sends_a_snapshot_every_two_seconds() {
    let server = Setup::says("Hello").start().await;
    let request = Request::get("/metrics/stream").body(Body::empty()).unwrap();
    let mut live = server.open(request).await;
    assert_eq!(live.headers["cache-control"], "no-cache");
    let began = tokio::time::Instant::now();
    for _ in 0..3 {
        live.next_frame().await.unwrap();
    }
    assert_eq!(began.elapsed().as_secs(), 4);
    let told = events(&live.seen);
    assert_eq!(told.len(), 3);
    let event: Value = serde_json::from_str(&told[2]).unwrap();
    check_keys(&event, "uptime_s history queue_size");
}

#[tokio::test]
async fn health_has_the_keys_of_every_founding_system() {
    let server = Setup::says("Hello").start().await;
    let health = server.get("/health").await.ok();
    check_keys(
        &health,
        "ok world_size rank model queue_max queue_size status api config model_loaded model_name \
         model_type engine_type mcp memory memory_safe monitor requests_total available_models \
         residency_state active_requests last_used_at loaded_at auto_unload_idle_seconds last_error",
    );
    assert_eq!((&health["status"], &health["api"]), (&json!("healthy"), &json!("ready")));
    assert_eq!(health["config"]["cors_enabled"], false);
    check_keys(&health["memory"], "active_gb peak_gb limit_gb pressure_pct headroom_gb");
}

#[tokio::test]
async fn the_queue_the_model_and_the_memory_are_reported() {
    let server = Setup::says("Hello").start().await;
    server.control.order(FakeOrder::Hold);
    let request = post("/v1/chat/completions", chat_body(json!({"stream": true})).to_string());
    let live = server.open(request).await;
    server.until("it runs", |status| status.running == 1).await;
    let queue = server.get("/queue").await.ok();
    assert_eq!((&queue["size"], &queue["running"]), (&json!(0), &json!(1)));
    assert!(queue["max"].as_u64().unwrap() > 0 && queue["oldest_open_s"].is_number());
    let status = server.get("/v1/status").await.ok();
    check_keys(&status, "status uptime_s steps_executed metal cache spec_decode");
    assert_eq!((&status["status"], &status["num_running"]), (&json!("running"), &json!(1)));
    assert_eq!(status["requests"][0]["kind"], "chat");
    server.control.order(FakeOrder::Resume);
    drop(live);

    let info = server.get("/model/info").await.ok();
    check_keys(&info, "model_id loaded slot memory backend models max_context_length max_tokens");
    assert_eq!((&info["id"], &info["num_devices"]), (&json!(MODEL), &json!(2)));
    let memory = server.get("/memory").await.ok();
    check_keys(&memory, "ok mlx system slot limits monitor ranks");
    check_keys(&memory["mlx"], "timestamp active_gb peak_gb limit_gb pressure_pct model_size_gb");
    let live = server.get("/memory/live?n=1").await.ok();
    assert_eq!(live["count"], 1);
    check_keys(&live["data"][0], "timestamp mlx_active_gb system_pressure_pct model_loaded");
    let reply = server.get("/memory/live?n=many").await;
    assert_eq!((reply.status.as_u16(), &reply.error()["param"]), (400, &json!("query")));
}

#[tokio::test]
async fn a_request_is_cancelled_by_its_name_and_by_its_answers() {
    let server = Setup::answers(|_| vec![33; 1_000_000]).start().await;
    for (is_by_answer, is_stream) in [(false, true), (true, true)] {
        server.control.order(FakeOrder::Hold);
        let body = chat_body(json!({"stream": is_stream, "max_tokens": 100}));
        let mut request = post("/v1/chat/completions", body.to_string());
        request.headers_mut().insert("x-request-id", "mine".parse().unwrap());
        let mut live = server.open(request).await;
        let open = server.get("/v1/status").await.ok()["requests"][0].clone();
        let name = if is_by_answer { &open["answer_id"] } else { &open["request_id"] };
        let path = format!("/v1/requests/{}", name.as_str().unwrap());
        let request = Request::delete(path).body(Body::empty()).unwrap();
        let cancelled = server.send(request).await.ok();
        assert_eq!(cancelled["object"], "request.cancel");
        assert_eq!((&cancelled["cancelled"], &cancelled["model"]), (&json!(true), &json!(MODEL)));
        server.control.order(FakeOrder::Resume);
        while live.next_frame().await.is_some() {}
        assert!(live.seen.contains("\"finish_reason\":\"abort\""), "{}", live.seen);
        drop(live);
        let last = server.get("/requests/recent?n=1").await.ok()["requests"][0].clone();
        assert_eq!(
            (&last["status"], &last["finish_reason"]),
            (&json!("cancelled"), &json!("abort"))
        );
    }
    let unknown = server.post("/v1/requests/nobody/cancel", &json!({})).await;
    assert_eq!(
        (unknown.status.as_u16(), &unknown.error()["code"]),
        (404, &json!("unknown_request"))
    );
}

#[tokio::test]
async fn the_prefix_cache_is_emptied_on_demand() {
    let server = Setup::says("Hello").start().await;
    server.complete(json!({"prompt": "Hello ".repeat(20)})).await.ok();
    server.until("it is kept", |status| status.kv.num_kept == 1).await;
    assert_eq!(server.get("/v1/cache/stats").await.ok()["entries"], 1);
    let request = Request::delete("/v1/cache").body(Body::empty()).unwrap();
    let cleared = server.send(request).await.ok();
    assert_eq!((&cleared["status"], &cleared["cleared_entries"]), (&json!("cleared"), &json!(1)));
    server.until("nothing is kept", |status| status.kv.num_kept == 0).await;
}
