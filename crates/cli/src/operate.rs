//! Operates the server of this machine: which process it is, how it was started, and what it
//! reports.
//!
//! ```text
//!   serve   writes ~/.jackalope/serve.json, and last-start.json once it is ready
//!   start   runs serve in the background     stop, restart, kill-all   end exactly that process
//!   resume  gives cables their addresses again after a reboot, then as start
//!   status, monitor, logs, health, metrics, queue, served, test, support   look at it
//! ```

mod ask;
mod kill;
mod logs;
mod monitor;
mod rdma;
mod record;
mod resume;
mod start;
mod status;
mod support;

use std::time::Duration;

use anyhow::Context;
use serde_json::Value;
use ureq::tls::TlsConfig;

pub(crate) use ask::{health, metrics, named, queue, served, test};
pub(crate) use kill::kill_all;
pub(crate) use logs::{keep_serve_log_short, keep_short, logs};
pub(crate) use monitor::monitor;
pub(crate) use record::{ServeRecord, Serving, Start};
pub(crate) use resume::resume;
pub(crate) use start::{restart, start, stop};
pub(crate) use status::{broken_links, status};
pub(crate) use support::support;

/// Timeout for connecting to a server.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Response of a server.
struct Answer {
    status: u16,
    body: Value,
}

impl Answer {
    fn is_ok(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Returns the error message of a response that is not a success.
    fn refusal(&self) -> String {
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
    /// Returns the TLS settings. Certificates are not verified for servers on this machine: a
    /// certificate is seldom issued for `127.0.0.1`, and connections within the machine are as safe
    /// as without TLS.
    pub(crate) fn tls(&self) -> TlsConfig {
        TlsConfig::builder().disable_verification(self.is_here()).build()
    }

    /// Whether the server's address is a loopback address of this machine.
    fn is_here(&self) -> bool {
        let address = self.url.split_once("://").map_or("", |it| it.1);
        ["127.0.0.1:", "[::1]:", "localhost:"].iter().any(|it| address.starts_with(it))
    }

    /// Sends a GET request, or a POST request if there is a body. Every wait is bounded by
    /// `timeout`.
    fn ask(&self, path: &str, body: Option<&Value>, timeout: Duration) -> anyhow::Result<Answer> {
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

/// Runs blocking `work` outside the runtime's own threads.
pub(crate) async fn off_runtime<T: Send + 'static>(
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    tokio::task::spawn_blocking(work).await?
}
