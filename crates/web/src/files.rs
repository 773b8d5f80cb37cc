//! The files of the web page, embedded in the program.

use std::fmt::Write;
use std::sync::LazyLock;

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderName, IF_NONE_MATCH,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

/// Content security policy of the page: scripts and styles only from this server and never inline,
/// no connection to other origins, no frames, and no text that becomes markup
/// (`require-trusted-types-for`).
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'";

/// Number of hexadecimal digits of a version; the build writes the same into the page
/// (`web/vite.config.ts`).
const VERSION_DIGITS: usize = 16;

/// An embedded file.
struct WebFile {
    name: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
}

const PAGE: WebFile = WebFile {
    name: "index.html",
    content_type: "text/html; charset=utf-8",
    bytes: include_bytes!("../dist/index.html"),
};

const ASSETS: [WebFile; 3] = [
    WebFile {
        name: "app.js",
        content_type: "text/javascript; charset=utf-8",
        bytes: include_bytes!("../dist/assets/app.js"),
    },
    WebFile {
        name: "app.css",
        content_type: "text/css; charset=utf-8",
        bytes: include_bytes!("../dist/assets/app.css"),
    },
    WebFile {
        name: "icon.svg",
        content_type: "image/svg+xml",
        bytes: include_bytes!("../dist/assets/icon.svg"),
    },
];

/// Versions of the page and of the assets, which are their hashes.
static VERSIONS: LazyLock<[String; 4]> = LazyLock::new(|| {
    let [script, style, icon] = &ASSETS;
    [&PAGE, script, style, icon].map(|file| version(file.bytes))
});

fn version(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    let mut digits = digest.iter().fold(String::new(), |mut digits, byte| {
        write!(digits, "{byte:02x}").expect("a string takes everything");
        digits
    });
    digits.truncate(VERSION_DIGITS);
    digits
}

/// The web page. A browser asks each time whether it has changed.
pub fn page(request: &HeaderMap) -> Response {
    let mut response = answer(&PAGE, &VERSIONS[0], false, request);
    let policy = [
        (CONTENT_SECURITY_POLICY, POLICY),
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("permissions-policy"), "camera=(), microphone=(), geolocation=()"),
    ];
    for (name, value) in policy {
        response.headers_mut().insert(name, value.parse().expect("it is a header's value"));
    }
    response
}

/// A file that the page loads; none if there is no such file. `version` is the `v` of its address:
/// with the current one, a browser keeps the file without asking again.
pub fn asset(name: &str, version: Option<&str>, request: &HeaderMap) -> Option<Response> {
    let idx = ASSETS.iter().position(|file| file.name == name)?;
    let current = &VERSIONS[idx + 1];
    Some(answer(&ASSETS[idx], current, version == Some(current), request))
}

fn answer(file: &WebFile, version: &str, is_fixed: bool, request: &HeaderMap) -> Response {
    let tag = format!("\"{version}\"");
    let lifetime = if is_fixed { "public, max-age=31536000, immutable" } else { "no-cache" };
    let headers = [
        (CONTENT_TYPE, file.content_type),
        (ETAG, &tag),
        (CACHE_CONTROL, lifetime),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    let known = request.get(IF_NONE_MATCH).and_then(|it| it.to_str().ok()).unwrap_or_default();
    if known.split(',').any(|it| it.trim().trim_start_matches("W/") == tag) {
        return (StatusCode::NOT_MODIFIED, headers).into_response();
    }
    (headers, file.bytes).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8]) -> &str {
        std::str::from_utf8(bytes).unwrap()
    }

    #[test]
    fn the_page_names_the_current_version_of_each_asset() {
        for (file, version) in ASSETS.iter().zip(&VERSIONS[1..]) {
            let link = format!("/assets/{}?v={version}", file.name);
            assert!(text(PAGE.bytes).contains(&link), "{link}\nhint: npm run build, in web/");
        }
    }

    #[test]
    fn nothing_in_the_page_is_inline_or_elsewhere() {
        let page = text(PAGE.bytes);
        assert!(!page.contains("http://") && !page.contains("https://"), "{page}");
        assert!(!page.contains("<style") && !page.contains(" style=") && !page.contains(" on"));
        for script in page.split("<script").skip(1) {
            assert!(script.contains("src=\"/assets/app.js?v="), "{script}");
            assert!(script.contains("></script>"), "{script}");
        }
    }

    #[test]
    fn a_browser_that_has_a_version_is_not_sent_it_again() {
        let version = &VERSIONS[1];
        let first = asset("app.js", Some(version), &HeaderMap::new()).unwrap();
        assert!(first.headers()[CACHE_CONTROL].to_str().unwrap().contains("immutable"));
        let other = asset("app.js", Some("0"), &HeaderMap::new()).unwrap();
        assert_eq!(other.headers()[CACHE_CONTROL], "no-cache");
        let mut request = HeaderMap::new();
        request.insert(IF_NONE_MATCH, other.headers()[ETAG].clone());
        let again = asset("app.js", None, &request).unwrap();
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
        assert!(asset("../index.html", None, &HeaderMap::new()).is_none());
    }
}
