//! Requests to a server over HTTP.

use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;
use ureq::Agent;
use ureq::tls::TlsConfig;

/// Timeout for connecting to a server.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Response of a server.
#[derive(Clone, Debug)]
pub struct Response {
    /// HTTP status.
    pub status: u16,
    /// Body, which is always JSON.
    pub body: Value,
}

impl Response {
    /// Whether the status is a success.
    pub fn is_ok(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Returns the error message of a response that is not a success.
    pub fn refusal(&self) -> String {
        let message = self.body["error"]["message"].as_str().map(str::to_owned);
        format!("{}: {}", self.status, message.unwrap_or_else(|| self.body.to_string()))
    }
}

/// A server and the key for it.
#[derive(Clone, Debug)]
pub struct Server {
    /// URL of the server, without a path.
    pub url: String,
    /// Key sent as bearer token.
    pub api_key: Option<String>,
}

impl Server {
    /// Returns the TLS settings. Certificates are not verified for servers on this machine: a
    /// certificate is seldom issued for `127.0.0.1`, and connections within the machine are as safe
    /// as without TLS.
    pub fn tls(&self) -> TlsConfig {
        TlsConfig::builder().disable_verification(self.is_here()).build()
    }

    /// Whether the server's address is a loopback address of this machine.
    pub fn is_here(&self) -> bool {
        let address = self.url.split_once("://").map_or("", |it| it.1);
        ["127.0.0.1:", "[::1]:", "localhost:"].iter().any(|it| address.starts_with(it))
    }

    /// Returns the URL of a path on the server.
    pub(crate) fn url_of(&self, path: &str) -> String {
        format!("{}{path}", self.url.trim_end_matches('/'))
    }

    /// Returns the value of the `authorization` header.
    pub(crate) fn bearer(&self) -> Option<String> {
        self.api_key.as_ref().map(|key| format!("Bearer {key}"))
    }

    /// Sends a GET request, or a POST request if there is a body. Every wait is bounded by
    /// `timeout`.
    ///
    /// # Errors
    /// If there is no answer, or one that is not JSON.
    pub fn ask(
        &self,
        path: &str,
        body: Option<&Value>,
        timeout: Duration,
    ) -> anyhow::Result<Response> {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT_TIMEOUT.min(timeout)))
            .timeout_global(Some(timeout))
            .tls_config(self.tls())
            .build()
            .new_agent();
        let url = self.url_of(path);
        ensure!(
            ["http://", "https://"].iter().any(|scheme| url.starts_with(scheme)),
            "{} is no address of a server\nhint: write it as http://HOST:PORT",
            self.url
        );
        let bearer = self.bearer();
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
        Ok(Response { status, body })
    }
}
