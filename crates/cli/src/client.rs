//! Queries of the server that runs on this machine.

use std::time::Duration;

use jackalope_console::client::Server;
use jackalope_deploy::server_record::ServeRecord;
use serde_json::{Value, json};

use crate::environment::Environment;

/// Timeout of one request to a server or an agent.
pub(crate) const ASK_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns the server of a record, and the key that commands on this machine use.
pub(crate) fn recorded(record: &ServeRecord) -> Server {
    Server { url: record.local_url(), api_key: record.operator_key().map(str::to_owned) }
}

/// Returns the broken links that this machine's server reports, each as a sentence; none without a
/// server.
pub(crate) fn broken_links(environment: &Environment) -> Vec<String> {
    let running = environment.home().ok().and_then(|home| ServeRecord::running(&home));
    let health = running.as_ref().map(health_of).unwrap_or_default();
    link_sentences(&health).collect()
}

/// Describes the broken links of a health report.
pub(crate) fn link_sentences(health: &Value) -> impl Iterator<Item = String> {
    let links = health["broken_links"].as_array().into_iter().flatten();
    links.map(|it| {
        let text = |key: &str| it[key].as_str().unwrap_or("?");
        let (between, seconds, reason) = (text("between"), &it["seconds"], text("reason"));
        format!("{between} do not reach each other, for {seconds} s: {reason}")
    })
}

/// Returns a server's health report, or one that says why there is none.
pub(crate) fn health_of(running: &ServeRecord) -> Value {
    match recorded(running).ask("/health", None, ASK_TIMEOUT) {
        Ok(answer) if answer.body["status"].is_string() => answer.body,
        Ok(answer) => {
            let reason = answer.body["error"]["message"].as_str().unwrap_or("no health");
            json!({"ok": false, "status": "unknown", "reason": reason})
        }
        Err(err) => json!({"ok": false, "status": "silent", "reason": crate::report::text(&err)}),
    }
}

/// Runs blocking `work` outside the runtime's own threads.
pub(crate) async fn off_runtime<T: Send + 'static>(
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    tokio::task::spawn_blocking(work).await?
}
