//! `/docs`: Swagger UI, which needs no access to other servers.

use std::sync::Arc;

use axum::http::header::{
    CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::{IntoResponse, Response};
use utoipa_swagger_ui::Config;

/// Content security policy of the documentation page. Swagger UI uses inline styles, and has its
/// icons in the style sheet.
const DOCS_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; \
    connect-src 'self'; img-src 'self' data:; font-src 'self' data:; base-uri 'none'; \
    form-action 'none'; frame-ancestors 'none'";

/// Scales the documentation page to narrow screens, and makes its tables scroll within it.
const NARROW: &str = "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
    <style>@media (max-width: 640px) {\
    .swagger-ui .wrapper { padding: 0 8px; }\
    .swagger-ui .opblock .opblock-summary-path { max-width: 100%; word-break: break-all; }\
    .swagger-ui .opblock .opblock-summary-description { display: none; }\
    .swagger-ui table { display: block; overflow-x: auto; }\
    }</style>";

/// The file of Swagger UI with this path below `/docs/`; none if there is no such file.
pub fn documentation(path: &str) -> Option<Response> {
    let config = Config::from("/openapi.json").doc_expansion("none").validator_url("none");
    let file = utoipa_swagger_ui::serve(path, Arc::new(config)).ok().flatten()?;
    let is_page = file.content_type.starts_with("text/html");
    let bytes = if is_page { for_phones(&file.bytes) } else { file.bytes.into_owned() };
    let headers = [
        (CONTENT_TYPE, file.content_type.as_str()),
        (CONTENT_SECURITY_POLICY, DOCS_POLICY),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    Some((headers, bytes).into_response())
}

/// Adds what Swagger UI's page lacks for narrow screens.
fn for_phones(page: &[u8]) -> Vec<u8> {
    String::from_utf8_lossy(page).replacen("</head>", &format!("{NARROW}</head>"), 1).into_bytes()
}
