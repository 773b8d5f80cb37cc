//! Notes about fields that were ignored although they could have mattered. They are sent in the
//! header `x-jackalope-note`, with whole answers and streams alike.

use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;

const NOTE: HeaderName = HeaderName::from_static("x-jackalope-note");

/// Appends a note built at run time to an answer.
pub fn append(response: &mut Response, note: &str) {
    let value = HeaderValue::from_str(note).expect("notes are plain text without line breaks");
    response.headers_mut().append(NOTE, value);
}

/// Notes about one request, in the order of its checks.
#[derive(Debug, Default)]
pub struct Notes(Vec<&'static str>);

impl Notes {
    /// Adds a note, which must be plain text without line breaks.
    pub fn add(&mut self, note: &'static str) {
        self.0.push(note);
    }

    /// Adds a note if a field that is ignored was sent.
    pub fn add_if(&mut self, was_sent: bool, note: &'static str) {
        if was_sent {
            self.add(note);
        }
    }

    /// Adds the notes to an answer, one header each.
    pub fn add_to(&self, mut response: Response) -> Response {
        for note in &self.0 {
            response.headers_mut().append(NOTE, HeaderValue::from_static(note));
        }
        response
    }
}
