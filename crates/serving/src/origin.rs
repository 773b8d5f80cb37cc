//! Access of web pages to the server: the origins that may read answers (CORS), and the host names
//! that the server answers to.
//!
//! A page of any site can send requests to a server on the visitor's machine. Unless the server
//! allows it, the browser does not let the page read the answers; that is the default. A host name
//! of the page's own that resolves to this machine (DNS rebinding) would circumvent that, so a
//! server that is only for this machine refuses foreign host names.

use std::net::IpAddr;

use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HOST, ORIGIN, VARY,
};
use axum::http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use axum::response::{IntoResponse, Response};

use crate::error::ApiError;

/// Headers that pages of other origins may read.
const EXPOSED: &str = "x-request-id, retry-after, x-ratelimit-limit-requests, \
    x-ratelimit-remaining-requests, x-ratelimit-reset-requests, x-ratelimit-limit-tokens, \
    x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens";

/// Time for which a browser may cache a preflight response, in seconds.
const PREFLIGHT_SECONDS: &str = "600";

/// Origins whose pages may read answers.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum AllowedOrigins {
    /// Only pages of the server itself.
    #[default]
    None,
    /// These origins, written as browsers write them: `https://chat.example`.
    These(Vec<String>),
    /// All origins.
    Any,
}

impl AllowedOrigins {
    /// Creates the set from a list of origins; `*` in the list means all origins.
    pub fn new<S: AsRef<str>>(origins: impl IntoIterator<Item = S>) -> AllowedOrigins {
        let origins =
            origins.into_iter().map(|it| it.as_ref().trim().trim_end_matches('/').to_owned());
        let origins: Vec<String> = origins.filter(|it| !it.is_empty()).collect();
        match origins.as_slice() {
            [] => AllowedOrigins::None,
            all if all.iter().any(|it| it == "*") => AllowedOrigins::Any,
            _ => AllowedOrigins::These(origins),
        }
    }

    /// The value of `Access-Control-Allow-Origin`, if the request's origin may read the answer.
    fn allowed(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = headers.get(ORIGIN)?;
        match self {
            AllowedOrigins::None => None,
            AllowedOrigins::Any => Some(HeaderValue::from_static("*")),
            AllowedOrigins::These(origins) => {
                let is_allowed =
                    |it: &String| origin.as_bytes().eq_ignore_ascii_case(it.as_bytes());
                origins.iter().any(is_allowed).then(|| origin.clone())
            }
        }
    }

    /// The response to a preflight request, which comes without a key; none for other requests, or
    /// if the origin is not allowed.
    pub fn preflight<B>(&self, request: &Request<B>) -> Option<Response> {
        let headers = request.headers();
        if request.method() != Method::OPTIONS
            || !headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
        {
            return None;
        }
        let origin = self.allowed(headers)?;
        let mut response = StatusCode::NO_CONTENT.into_response();
        let added = response.headers_mut();
        added.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        added.insert(
            ACCESS_CONTROL_ALLOW_METHODS,
            HeaderValue::from_static("GET, HEAD, POST, DELETE, OPTIONS"),
        );
        if let Some(wanted) = headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
            added.insert(ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
        }
        added.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(PREFLIGHT_SECONDS));
        added.insert(VARY, HeaderValue::from_static("origin, access-control-request-headers"));
        Some(response)
    }

    /// The headers to add to the answer to a request with these headers.
    pub fn answer_headers(&self, headers: &HeaderMap) -> HeaderMap {
        let mut added = HeaderMap::new();
        if *self != AllowedOrigins::None {
            added.insert(VARY, HeaderValue::from_static("origin"));
        }
        if let Some(origin) = self.allowed(headers) {
            added.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            added.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
        }
        added
    }
}

/// Host names that the server answers to.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum AllowedHosts {
    /// All names: access is controlled elsewhere.
    #[default]
    Any,
    /// `localhost`, names that end in `.localhost`, all IP addresses, and these names.
    Local(Vec<String>),
}

impl AllowedHosts {
    /// Rejects a request for another host.
    ///
    /// # Errors
    /// [`ApiError::WrongHost`], with the name that was found.
    pub fn check(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let AllowedHosts::Local(names) = self else { return Ok(()) };
        // Browsers always send the host; a request without one is not from a browser.
        let Some(host) = headers.get(HOST) else { return Ok(()) };
        let host = String::from_utf8_lossy(host.as_bytes()).trim().to_ascii_lowercase();
        let name = without_port(&host);
        let is_local = name == "localhost"
            || name.ends_with(".localhost")
            || name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
            || names.iter().any(|it| it.eq_ignore_ascii_case(name));
        if is_local { Ok(()) } else { Err(ApiError::WrongHost { found: name.to_owned() }) }
    }
}

fn without_port(host: &str) -> &str {
    if host.parse::<IpAddr>().is_ok() {
        return host;
    }
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|it| it.is_ascii_digit()) => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_answered(hosts: &AllowedHosts, host: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host.parse().unwrap());
        hosts.check(&headers).is_ok()
    }

    #[test]
    fn names_of_others_are_not_answered_to() {
        let hosts = AllowedHosts::Local(vec!["studio.example".to_owned()]);
        for host in [
            "localhost",
            "localhost:8080",
            "LOCALHOST:1",
            "me.localhost",
            "127.0.0.1:80",
            "[::1]:8080",
            "::1",
            "192.168.1.2",
            "studio.example:8080",
        ] {
            assert!(is_answered(&hosts, host), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "x", ""]
        {
            assert!(!is_answered(&hosts, host), "{host}");
            assert!(is_answered(&AllowedHosts::Any, host), "{host}");
        }
    }

    #[test]
    fn origins_are_read_from_a_list() {
        let none: [&str; 1] = [" "];
        assert_eq!(AllowedOrigins::new(none), AllowedOrigins::None);
        assert_eq!(AllowedOrigins::new(["https://a", "*"]), AllowedOrigins::Any);
        let these = AllowedOrigins::These(vec!["https://a".to_owned()]);
        assert_eq!(AllowedOrigins::new([" https://a/ "]), these);
    }
}
