//! Requests to a server over HTTP.

use std::time::Duration;

use anyhow::Context;
use jackalope_deploy::server_record::ServeRecord;
use serde_json::{Value, json};
use ureq::tls::TlsConfig;

use crate::environment::Environment;

/// Timeout for connecting to a server.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Timeout of one request to a server or an agent.
pub(crate) const ASK_TIMEOUT: Duration = Duration::from_secs(2);

/// Response of a server.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Value,
}

impl Answer {
    pub(crate) fn is_ok(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Returns the error message of a response that is not a success.
    pub(crate) fn refusal(&self) -> String {
        let message = self.body["error"]["message"].as_str().map(str::to_owned);
        format!("{}: {}", self.status, message.unwrap_or_else(|| self.body.to_string()))
    }
}

/// A server and the key for it.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) url: String,
    pub(crate) api_key: Option<String>,
}

impl Server {
    /// Returns the server of a record, and the key that commands on this machine use.
    pub(crate) fn recorded(record: &ServeRecord) -> Server {
        Server { url: record.local_url(), api_key: record.operator_key().map(str::to_owned) }
    }

    /// Returns the TLS settings. Certificates are not verified for servers on this machine: a
    /// certificate is seldom issued for `127.0.0.1`, and connections within the machine are as safe
    /// as without TLS.
    pub(crate) fn tls(&self) -> TlsConfig {
        TlsConfig::builder().disable_verification(self.is_here()).build()
    }

    /// Whether the server's address is a loopback address of this machine.
    pub(crate) fn is_here(&self) -> bool {
        let address = self.url.split_once("://").map_or("", |it| it.1);
        ["127.0.0.1:", "[::1]:", "localhost:"].iter().any(|it| address.starts_with(it))
    }

    /// Sends a GET request, or a POST request if there is a body. Every wait is bounded by
    /// `timeout`.
    pub(crate) fn ask(
        &self,
        path: &str,
        body: Option<&Value>,
        timeout: Duration,
    ) -> anyhow::Result<Answer> {
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT_TIMEOUT.min(timeout)))
            .timeout_global(Some(timeout))
            .tls_config(self.tls())
            .build()
            .new_agent();
        let url = format!("{}{path}", self.url.trim_end_matches('/'));
        let bearer = self.api_key.as_ref().map(|key| format!("Bearer {key}"));
        let response = match body {
            None => {
                let mut request = agent.get(&url);
                if let Some(bearer) = &bearer {
                    request = request.header("authorization", bearer);
                }
                request.call()
            }
            Some(body) => {
                let mut request = agent.post(&url).header("content-type", "application/json");
                if let Some(bearer) = &bearer {
                    request = request.header("authorization", bearer);
                }
                request.send(body.to_string())
            }
        };
        let mut response = response.with_context(|| {
            format!("asking {url}\nhint: `jackalope status` shows what runs on this machine")
        })?;
        let status = response.status().as_u16();
        let text =
            response.body_mut().read_to_string().with_context(|| format!("reading {url}"))?;
        let body = serde_json::from_str(&text)
            .with_context(|| format!("{url} answered {status}, and not with JSON"))?;
        Ok(Answer { status, body })
    }
}

/// Returns the broken links that this machine's server knows of, each as a sentence; none without a
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
    match Server::recorded(running).ask("/health", None, ASK_TIMEOUT) {
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
