//! Detects the end of a response: its last byte was sent, or it was dropped.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};

/// A body that drops a value when it has ended, in whatever way.
pub(crate) struct Tail<T> {
    body: Body,
    held: Option<T>,
    /// Whether the value is dropped at the end of the body, even if the body is kept.
    ends_with_body: bool,
}

impl<T> fmt::Debug for Tail<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tail").finish_non_exhaustive()
    }
}

/// Keeps `held` until `body` has ended.
pub(crate) fn until_end<T: Send + Unpin + 'static>(body: Body, held: T) -> Body {
    Body::new(Tail { body, held: Some(held), ends_with_body: true })
}

/// Keeps `held` until the connection has taken all of `body` and drops it.
pub(crate) fn until_dropped<T: Send + Unpin + 'static>(body: Body, held: T) -> Body {
    Body::new(Tail { body, held: Some(held), ends_with_body: false })
}

impl<T: Unpin> HttpBody for Tail<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        let has_ended = matches!(frame, Poll::Ready(None | Some(Err(_))));
        if self.ends_with_body && (has_ended || self.body.is_end_stream()) {
            self.held = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
