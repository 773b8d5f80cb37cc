//! Copies of models to other machines, over HTTP.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{Request, StatusCode};
use jackalope_server::{
    Copier, CopyFuture, CopyProgress, MachineHolding, MachineProgress, ModelHoldings,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::support::{MODEL, Reply, Server, Setup};

const COPIES: &str = "/v1/copies";

/// How long a test waits for what must happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// Two machines, of which the second has no room.
#[derive(Debug)]
struct TwoMachines;

impl Copier for TwoMachines {
    fn hosts(&self) -> CopyFuture<Vec<String>> {
        Box::pin(async { Ok(vec!["mac2".to_owned(), "mac3".to_owned()]) })
    }

    fn holdings(&self, id: &str) -> CopyFuture<ModelHoldings> {
        let is_known = id == MODEL;
        Box::pin(async move {
            assert!(is_known, "names are resolved before");
            let partial = MachineHolding::Partial { num_bytes: 4 };
            let reason = "no route\nhint: look at the cable".to_owned();
            let unreachable = MachineHolding::Unreachable { reason };
            let machines = vec![("mac2".to_owned(), partial), ("mac3".to_owned(), unreachable)];
            Ok(ModelHoldings { total_bytes: 10, machines })
        })
    }

    fn copy(&self, _: &str, hosts: Vec<String>) -> mpsc::Receiver<CopyProgress> {
        let (sender, progress) = mpsc::channel(16);
        let send = |it| sender.try_send(it).unwrap();
        send(CopyProgress::Sized { total_bytes: 10 });
        for host in hosts {
            let progress = if host == "mac2" {
                MachineProgress::Done { dir: "/models/m".to_owned() }
            } else {
                MachineProgress::Failed { reason: "no room\nhint: free some".to_owned() }
            };
            send(CopyProgress::Machine { host, progress });
        }
        send(CopyProgress::Ended);
        progress
    }
}

/// A machine to which a copy never ends. The test gets the sender of each copy's progress.
#[derive(Debug)]
struct SlowMachine(mpsc::UnboundedSender<mpsc::Sender<CopyProgress>>);

impl Copier for SlowMachine {
    fn hosts(&self) -> CopyFuture<Vec<String>> {
        Box::pin(async { Ok(vec!["mac2".to_owned()]) })
    }

    fn holdings(&self, _: &str) -> CopyFuture<ModelHoldings> {
        Box::pin(async { Err("the model's folder cannot be read".to_owned()) })
    }

    fn copy(&self, _: &str, hosts: Vec<String>) -> mpsc::Receiver<CopyProgress> {
        let (sender, progress) = mpsc::channel(2);
        sender.try_send(CopyProgress::Sized { total_bytes: 10 }).unwrap();
        let [host] = hosts.try_into().unwrap();
        let arrived = MachineProgress::Has { num_bytes: 4 };
        sender.try_send(CopyProgress::Machine { host, progress: arrived }).unwrap();
        self.0.send(sender).unwrap();
        progress
    }
}

/// Polls until the oldest copy is as wanted, and returns it.
async fn until(server: &Server, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let copy = server.get(COPIES).await.ok()["copies"][0].clone();
        if is_so(&copy) {
            return copy;
        }
        assert!(Instant::now() < deadline, "no {what}: {copy}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn until_ended(server: &Server) -> Value {
    until(server, "end of the copy", |it| it["state"] != "running").await
}

async fn delete(server: &Server, id: &Value) -> Reply {
    let path = format!("{COPIES}/{}", id.as_str().unwrap());
    server.send(Request::delete(path).body(Body::empty()).unwrap()).await
}

#[tokio::test]
async fn a_model_is_copied_to_the_machines_that_are_named_and_each_reports_its_end() {
    let setup = Setup::says("Hello").limited(|it| it.copier = Some(Arc::new(TwoMachines)));
    let server = setup.start().await;
    let held = server.get("/v1/copies/machines").await.ok();
    assert_eq!((&held["model"], &held["total_bytes"]), (&json!(MODEL), &json!(10)));
    assert_eq!(held["machines"][0]["state"], "partial");
    assert_eq!(held["machines"][1]["error"], "no route\nhint: look at the cable");

    let id = server.post(COPIES, &json!({"model": MODEL})).await.ok()["id"].clone();
    let ended = until_ended(&server).await;
    assert_eq!((&ended["id"], &ended["state"]), (&id, &json!("failed")));
    assert_eq!(ended["machines"][0]["path"], "/models/m");
    assert_eq!(ended["machines"][1]["error"], "no room\nhint: free some");
    let body = json!({"model": MODEL, "hosts": ["mac2"]});
    server.post(COPIES, &body).await.ok();
    let rest = delete(&server, &id).await.ok();
    assert_eq!(rest["copies"].as_array().unwrap().len(), 1);
    assert_eq!(until_ended(&server).await["state"], "done");
    let unknown = delete(&server, &id).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    assert_eq!(unknown.error()["code"], "unknown_copy");
}

#[tokio::test]
async fn a_copy_that_is_cancelled_ends_keeps_what_has_arrived_and_is_resumed() {
    let (started, mut copies) = mpsc::unbounded_channel();
    let copier = Arc::new(SlowMachine(started));
    let server = Setup::says("Hello").limited(|it| it.copier = Some(copier)).start().await;
    let begin = json!({"model": MODEL});
    let id = server.post(COPIES, &begin).await.ok()["id"].clone();
    until(&server, "bytes that arrived", |it| it["completed_bytes"] == 4).await;
    assert_eq!(server.post(COPIES, &begin).await.ok()["id"], id, "it runs already");
    let list = delete(&server, &id).await.ok();
    let cancelled = &list["copies"][0];
    assert_eq!((&cancelled["id"], &cancelled["state"]), (&id, &json!("cancelled")));
    let machine = json!({
        "host": "mac2", "state": "cancelled", "completed_bytes": 4, "path": null, "error": null,
    });
    assert_eq!(cancelled["machines"], json!([machine]));
    let sender = copies.recv().await.unwrap();
    let closed = tokio::time::timeout(PATIENCE, sender.closed()).await;
    assert!(closed.is_ok(), "the copier is not told");
    let again = server.post(COPIES, &begin).await.ok()["id"].clone();
    assert_ne!(again, id);
    let _resumed = copies.recv().await.unwrap();
    let resumed = until(&server, "resumed copy", |it| it["completed_bytes"] == 4).await;
    assert_eq!((&resumed["id"], &resumed["state"]), (&again, &json!("running")));
    let refused = server.get("/v1/copies/machines").await;
    assert_eq!(
        (refused.status, &refused.error()["code"]),
        (StatusCode::CONFLICT, &json!("not_copied"))
    );
}

#[tokio::test]
async fn what_cannot_be_copied_is_refused_with_the_place() {
    let setup = Setup::says("Hello").limited(|it| it.copier = Some(Arc::new(TwoMachines)));
    let server = setup.start().await;
    for (body, param) in [
        (json!({}), "model"),
        (json!({"model": "org/none"}), "model"),
        (json!({"model": MODEL, "hosts": []}), "hosts"),
        (json!({"model": MODEL, "hosts": ["mac9"]}), "hosts"),
    ] {
        assert_eq!(server.post(COPIES, &body).await.error()["param"], param, "{body}");
    }
    assert_eq!(server.get(COPIES).await.ok(), json!({"copies": []}));
}

#[tokio::test]
async fn a_server_without_other_machines_says_what_to_do() {
    let server = Setup::says("Hello").start().await;
    for reply in [
        server.post(COPIES, &json!({"model": MODEL})).await,
        server.get("/v1/copies/machines").await,
    ] {
        let error = reply.error();
        assert_eq!((reply.status, &error["code"]), (StatusCode::FORBIDDEN, &json!("not_offered")));
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("hint: ") && message.contains("--hosts FILE"), "{message}");
    }
}
