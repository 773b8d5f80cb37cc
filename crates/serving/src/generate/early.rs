//! Starts a stream before its model is loaded: loading a large model takes minutes, and clients and
//! their proxies drop a connection that stays silent for a minute.
//!
//! ```text
//!  model ready within keep_alive        status and answer as usual
//!  stream whose model takes longer      200, then a keep-alive every ServerLimits::keep_alive,
//!                                       then the answer's own events, or the error as an event
//!  answer that is not streamed          waits
//! ```

use std::convert::Infallible;
use std::pin::pin;

use axum::body::Bytes;
use axum::response::Response;
use futures_util::StreamExt;
use futures_util::stream;
use tokio::sync::mpsc::{self, Sender};
use tokio::time::{sleep, timeout};

use crate::body::JsonBody;
use crate::caller::ApiCaller;
use crate::error::ApiError;
use crate::sse;
use crate::state::{Serving, ServingState};

/// Number of frames buffered for the client.
const FRAMES_WAITING_MAX: usize = 1;

/// How a protocol writes keep-alives and errors before the answer's own format exists.
#[derive(Clone, Copy, Debug)]
pub struct EarlyStream {
    /// Appends a frame that keeps the connection alive.
    pub push_keep_alive: fn(&mut Vec<u8>),
    /// Appends the error that ends the stream.
    pub push_error: fn(&ApiError, &mut Vec<u8>),
    /// Prefix of names that stand for the default model: see [`ServingState::open_for`].
    pub foreign_names: Option<&'static str>,
}

impl EarlyStream {
    /// Answers with the model that the body names, which is loaded first if necessary.
    pub async fn answer<F>(
        self,
        state: &ServingState,
        body: JsonBody,
        answer: impl FnOnce(JsonBody, Serving) -> F + Send + 'static,
    ) -> Result<Response, ApiError>
    where
        F: Future<Output = Result<Response, ApiError>> + Send + 'static,
    {
        let name = body.model()?;
        let is_stream = body.asks_for_stream();
        let opener = state.clone();
        let mut opening =
            Box::pin(async move { opener.open_for(name.as_deref(), self.foreign_names).await });
        if !is_stream {
            return answer(body, opening.await?).await;
        }
        if let Ok(serving) = timeout(state.limits().keep_alive, &mut opening).await {
            return answer(body, serving?).await;
        }
        let caller = ApiCaller::current();
        let (frames, received) = mpsc::channel(FRAMES_WAITING_MAX);
        let bridge =
            BridgedStream { early: self, state: state.clone(), caller: caller.clone(), frames };
        tokio::spawn(caller.scope(bridge.run(async move { answer(body, opening.await?).await })));
        let frames = stream::unfold(received, |mut received| async {
            let frame = received.recv().await?;
            Some((Ok::<_, Infallible>(frame), received))
        });
        Ok(sse::response(sse::STREAM_TYPE, frames))
    }
}

/// A stream that has begun before its answer exists.
struct BridgedStream {
    early: EarlyStream,
    state: ServingState,
    caller: ApiCaller,
    frames: Sender<Bytes>,
}

impl BridgedStream {
    /// Keeps the connection alive until the answer exists, then forwards its frames. Stops, and
    /// drops the answer, when the client disconnects.
    async fn run(self, answer: impl Future<Output = Result<Response, ApiError>>) {
        let mut answer = pin!(answer);
        loop {
            let mut frame = Vec::new();
            (self.early.push_keep_alive)(&mut frame);
            if self.frames.send(frame.into()).await.is_err() {
                return;
            }
            tokio::select! {
                answered = &mut answer => return self.forward(answered).await,
                () = self.frames.closed() => return,
                () = sleep(self.state.limits().keep_alive) => {}
            }
        }
    }

    async fn forward(self, answered: Result<Response, ApiError>) {
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
                // An error here means that the client has disconnected.
                self.frames.send(frame.into()).await.ok();
            }
        }
    }
}
