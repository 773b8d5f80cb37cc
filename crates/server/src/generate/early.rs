//! A stream that begins before its model is there: loading a large one takes minutes, and clients and the
//! proxies before them give up a connection that says nothing for one.
//!
//! ```text
//!  a model that is ready, or soon       status and answer as always
//!  a stream whose model takes longer    200, then ServerLimits::keep_alive after ServerLimits::keep_alive,
//!                                       then the answer's own events, or the error as an event
//!  an answer in one piece               waits
//! ```

use std::convert::Infallible;
use std::pin::pin;

use axum::body::Bytes;
use axum::response::Response;
use futures_util::StreamExt;
use futures_util::stream;
use serde::Deserialize;
use tokio::sync::mpsc::{self, Sender};
use tokio::time::{sleep, timeout};

use crate::ServerState;
use crate::body::{model_of, parse};
use crate::caller::Caller;
use crate::error::ApiError;
use crate::registry::Serving;
use crate::sse;

/// Frames that wait for the client.
const FRAMES_WAITING_MAX: usize = 1;

/// What a protocol tells in a stream before an answer's own format can.
#[derive(Clone, Copy)]
pub(crate) struct EarlyStream {
    pub(crate) push_keep_alive: fn(&mut Vec<u8>),
    pub(crate) push_error: fn(&ApiError, &mut Vec<u8>),
}

impl EarlyStream {
    /// Comments, and the error as the only event.
    pub(crate) const OPENAI: EarlyStream = EarlyStream {
        push_keep_alive: |buffer| buffer.extend_from_slice(sse::KEEP_ALIVE.as_bytes()),
        push_error: |err, buffer| sse::push_event(buffer, &err.to_json()),
    };

    /// Answers with the model that the body names, which is loaded first if it has to be.
    pub(crate) async fn answer<F>(
        self,
        state: &ServerState,
        body: &Bytes,
        answer: impl FnOnce(Serving) -> F + Send + 'static,
    ) -> Result<Response, ApiError>
    where
        F: Future<Output = Result<Response, ApiError>> + Send + 'static,
    {
        let name = model_of(body)?;
        let is_stream = parse::<Wish>(body).is_ok_and(|wish| wish.stream == Some(true));
        let opener = state.clone();
        let mut opening = Box::pin(async move { opener.open(name.as_deref()).await });
        if !is_stream {
            return answer(opening.await?).await;
        }
        if let Ok(serving) = timeout(state.limits().keep_alive, &mut opening).await {
            return answer(serving?).await;
        }
        let caller = Caller::current();
        let (frames, told) = mpsc::channel(FRAMES_WAITING_MAX);
        let telling = Telling { early: self, state: state.clone(), caller: caller.clone(), frames };
        tokio::spawn(caller.scope(telling.tell(async move { answer(opening.await?).await })));
        let frames = stream::unfold(told, |mut told| async {
            let frame = told.recv().await?;
            Some((Ok::<_, Infallible>(frame), told))
        });
        Ok(sse::response(sse::STREAM_TYPE, frames))
    }
}

/// Whether a stream is wished for; whatever else is wrong with the body is said later.
#[derive(Deserialize)]
struct Wish {
    stream: Option<bool>,
}

/// A stream that has begun without an answer.
struct Telling {
    early: EarlyStream,
    state: ServerState,
    caller: Caller,
    frames: Sender<Bytes>,
}

impl Telling {
    /// Keeps the connection alive until there is an answer, then passes on what that says. Ends, and the
    /// answer with it, when the client leaves.
    async fn tell(self, answer: impl Future<Output = Result<Response, ApiError>>) {
        let mut answer = pin!(answer);
        loop {
            let mut frame = Vec::new();
            (self.early.push_keep_alive)(&mut frame);
            if self.frames.send(frame.into()).await.is_err() {
                return;
            }
            tokio::select! {
                answered = &mut answer => return self.pass_on(answered).await,
                () = self.frames.closed() => return,
                () = sleep(self.state.limits().keep_alive) => {}
            }
        }
    }

    async fn pass_on(self, answered: Result<Response, ApiError>) {
        match answered {
            Ok(response) => {
                let mut frames = response.into_body().into_data_stream();
                while let Some(Ok(frame)) = frames.next().await {
                    if self.frames.send(frame).await.is_err() {
                        return;
                    }
                }
            }
            Err(err) => {
                self.state.journal().note_error(&self.caller, &err);
                let mut frame = Vec::new();
                (self.early.push_error)(&err, &mut frame);
                // Whoever has left does not want to know.
                self.frames.send(frame.into()).await.ok();
            }
        }
    }
}
