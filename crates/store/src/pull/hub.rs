//! The hub's HTTP API: lists repositories, fetches their files, and interprets refusals.

use std::fmt;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use jackalope_protocol::FilePath;
use serde_json::Value;
use ureq::config::RedirectAuthHeaders;
use ureq::http::{Response, StatusCode};
use ureq::{Agent, Body};

use super::error::{HubError, ListingFault};
use super::retry::{Failure, asked_pause};
use crate::{RepoId, Revision};

/// Timeout for resolving and reaching a server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// Maximum size of a listing.
const LISTING_BYTES_MAX: u64 = 64 << 20;

/// Maximum size that is read of an error response.
const REFUSAL_BYTES_MAX: u64 = 4096;

/// A hub, and the access to it.
#[derive(Clone, Debug, Default)]
pub struct HubAccess {
    /// URL without a trailing slash.
    pub endpoint: String,
    /// Access token.
    pub token: Option<HubToken>,
    /// File that holds the access token, if `token` is absent.
    pub token_path: Option<PathBuf>,
    /// Name of the setting that forbids requests, if one does.
    pub offline: Option<String>,
}

impl HubAccess {
    /// Returns the access token, if there is one.
    fn token(&self) -> Option<HubToken> {
        let from_file = || HubToken::new(&std::fs::read_to_string(self.token_path.as_ref()?).ok()?);
        self.token.clone().or_else(from_file)
    }
}

/// Access token for the hub. Never printed.
#[derive(Clone, Eq, PartialEq)]
pub struct HubToken(String);

impl HubToken {
    /// Returns the value of an `Authorization` header.
    pub fn bearer(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// Parses a token; `None` if the text cannot be one.
    pub fn new(text: &str) -> Option<HubToken> {
        let text = text.trim();
        let is_token = !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic());
        is_token.then(|| HubToken(text.to_owned()))
    }
}

impl fmt::Debug for HubToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// A hub that serves repositories.
#[derive(Debug)]
pub(crate) struct Hub {
    agent: Agent,
    endpoint: String,
    token: Option<HubToken>,
}

/// A revision of a repository.
#[derive(Debug)]
pub(crate) struct Listing {
    /// The commit.
    pub(crate) commit: String,
    /// Files of the revision as the hub names them; nothing is checked yet.
    pub(crate) siblings: Vec<Sibling>,
}

/// A file as the hub names it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sibling {
    pub(crate) name: String,
    pub(crate) bytes: Option<u64>,
    /// SHA-256 of a large file, or git's hash of a small one.
    pub(crate) hash: Option<String>,
}

impl Hub {
    /// Creates a client for a hub. A connection that is silent for longer than
    /// `stall` counts as broken.
    pub(crate) fn new(access: &HubAccess, stall: Duration) -> Hub {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .user_agent(concat!("jackalope/", env!("CARGO_PKG_VERSION")))
            // Sizes and ranges refer to the uncompressed files.
            .accept_encoding("identity")
            // Hubs redirect within themselves and to stores whose URLs contain their own
            // credentials.
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .timeout_resolve(Some(CONNECT_TIMEOUT))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_send_request(Some(stall))
            .timeout_recv_response(Some(stall))
            .timeout_per_read(Some(stall))
            .timeout_per_write(Some(stall))
            .build()
            .new_agent();
        Hub { agent, endpoint: access.endpoint.clone(), token: access.token() }
    }

    /// Closes all connections, also those that other threads wait for.
    pub(crate) fn shut_down(&self) {
        self.agent.clone().shutdown();
    }

    /// Returns the URL of a file.
    pub(crate) fn file_url(&self, repo: &RepoId, commit: &str, path: &FilePath) -> String {
        let path = path.as_str().split('/').map(encode).collect::<Vec<_>>().join("/");
        format!("{}/{repo}/resolve/{commit}/{path}", self.endpoint)
    }

    /// Lists the files of a revision.
    pub(crate) fn list(&self, repo: &RepoId, revision: &Revision) -> Result<Listing, Failure> {
        let revision_part = encode(revision.as_str());
        let url =
            format!("{}/api/models/{repo}/revision/{revision_part}?blobs=true", self.endpoint);
        let mut response = self.get(&url, 0, None)?;
        if !response.status().is_success() {
            return Err(self.refusal(&url, repo, revision, response));
        }
        let body = response.body_mut().with_config().limit(LISTING_BYTES_MAX).read_to_string();
        match body {
            Ok(body) => parse_listing(&body)
                .map_err(|fault| Failure::last(HubError::Listing { url, fault })),
            Err(source) => Err(Failure::again(HubError::ListingBody { url, source }, None)),
        }
    }

    /// Requests `url` from byte `from` on, up to `end` if it is given. Returns the response, whatever
    /// its status.
    pub(crate) fn get(
        &self,
        url: &str,
        from: u64,
        end: Option<u64>,
    ) -> Result<Response<Body>, Failure> {
        let mut request = self.agent.get(url);
        if let Some(token) = &self.token {
            request = request.header("authorization", token.bearer());
        }
        if 0 < from || end.is_some() {
            let last = end.map_or(String::new(), |end| end.saturating_sub(1).to_string());
            request = request.header("range", format!("bytes={from}-{last}"));
        }
        request.call().map_err(|err| {
            let is_final = match &err {
                // The response of the other end is invalid, now and later.
                ureq::Error::Io(err) => err.kind() == ErrorKind::InvalidData,
                ureq::Error::BadUri(_)
                | ureq::Error::Tls(_)
                | ureq::Error::Rustls(_)
                | ureq::Error::TooManyRedirects => true,
                _ => false,
            };
            let (url, endpoint) = (url.to_owned(), self.endpoint.clone());
            let error = HubError::Unreachable { url, endpoint, source: err };
            if is_final { Failure::last(error) } else { Failure::again(error, None) }
        })
    }

    /// Interprets a response that is not a success.
    pub(crate) fn refusal(
        &self,
        url: &str,
        repo: &RepoId,
        revision: &Revision,
        mut response: Response<Body>,
    ) -> Failure {
        let status = response.status();
        let header = |name: &str| Some(response.headers().get(name)?.to_str().ok()?.to_owned());
        let (code, retry_after) = (header("x-error-code"), header("retry-after"));
        let pause = retry_after.and_then(|text| asked_pause(&text, SystemTime::now()));
        let (endpoint, url, repo) = (self.endpoint.clone(), url.to_owned(), repo.clone());
        let error = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                HubError::Denied { endpoint, repo, status, has_token: self.token.is_some() }
            }
            StatusCode::NOT_FOUND if code.as_deref() == Some("RevisionNotFound") => {
                HubError::NoRevision { endpoint, repo, revision: revision.clone() }
            }
            StatusCode::NOT_FOUND => HubError::NoRepository { endpoint, repo, url },
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::REQUEST_TIMEOUT
            | StatusCode::INTERNAL_SERVER_ERROR
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => {
                let text = String::new();
                return Failure::again(HubError::Status { url, status, text }, pause);
            }
            _ => {
                let said = response.body_mut().with_config().limit(REFUSAL_BYTES_MAX);
                let said = said.read_to_string().unwrap_or_default();
                HubError::Status { url, status, text: said.trim().to_owned() }
            }
        };
        Failure::last(error)
    }
}

fn parse_listing(body: &str) -> Result<Listing, ListingFault> {
    let listing: Value = serde_json::from_str(body)?;
    let commit = listing["sha"].as_str().ok_or(ListingFault::NoCommit)?;
    // The commit becomes a part of paths.
    let is_commit = commit.parse::<Revision>().is_ok() && !commit.contains('/');
    if !is_commit {
        return Err(ListingFault::Commit { found: commit.to_owned() });
    }
    let siblings = listing["siblings"].as_array().ok_or(ListingFault::NoFiles)?;
    let sibling = |it: &Value| -> Option<Sibling> {
        let lfs = &it["lfs"];
        let hash = lfs["sha256"].as_str().or_else(|| lfs["oid"].as_str());
        Some(Sibling {
            name: it["rfilename"].as_str()?.to_owned(),
            bytes: lfs["size"].as_u64().or_else(|| it["size"].as_u64()),
            hash: hash.or_else(|| it["blobId"].as_str()).map(str::to_owned),
        })
    };
    let siblings = siblings.iter().map(|it| sibling(it).ok_or(ListingFault::NoName));
    Ok(Listing { commit: commit.to_owned(), siblings: siblings.collect::<Result<_, _>>()? })
}

/// Percent-encodes one part of a URL's path.
fn encode(part: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    part.bytes().fold(String::new(), |text, byte| {
        if is_plain(byte) {
            text + char::from(byte).encode_utf8(&mut [0; 4])
        } else {
            text + &format!("%{byte:02X}")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_is_read_as_the_hub_writes_it() {
        let body = r#"{"id": "o/n", "sha": "abc", "siblings": [
            {"rfilename": "a.json", "blobId": "git", "size": 3},
            {"rfilename": "m.safetensors", "blobId": "pointer", "size": 9,
             "lfs": {"sha256": "content", "size": 9, "pointerSize": 1}}]}"#;
        let listing = parse_listing(body).unwrap();
        let hashes: Vec<_> = listing.siblings.iter().map(|it| it.hash.as_deref()).collect();
        assert_eq!(hashes, [Some("git"), Some("content")]);
        for bad in ["", "{}", r#"{"sha": "../x", "siblings": []}"#, r#"{"sha": "a"}"#] {
            assert!(parse_listing(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn parts_of_a_url_are_encoded() {
        assert_eq!(encode("refs/pr/1"), "refs%2Fpr%2F1");
        assert_eq!(encode("a b#?ü"), "a%20b%23%3F%C3%BC");
    }
}
