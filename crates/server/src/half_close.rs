//! Clients that close their sending side and wait for the answer.
//!
//! When the client's data ends, it has either disconnected or only closed its sending side. Only a
//! write shows which: the system of a client that has disconnected answers it with a reset. While a
//! client waits for the head of a response, this socket therefore writes the interim response
//! `100 Continue`, which HTTP/1.1 allows before any response and every client must skip (RFC 9110,
//! section 15.2). Once the response has begun, its own bytes serve the same purpose. HTTP/2
//! has frames for this: `PING` (RFC 9113, section 6.7).

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::Version;
use futures_util::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// A `PING` frame of 8 zero bytes: length, type, flags, stream, payload.
const PING: &[u8] = b"\0\0\x08\x06\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// Pauses before probes. The second one fails if the first one was answered with a reset. Go's
/// client accepts five interim responses, so there are no more than four.
const PAUSES: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(100), Duration::from_secs(1), Duration::from_secs(10)];

const NOTHING: u8 = 0;
const HTTP_10: u8 = 1;
const HTTP_11: u8 = 2;

/// The response that a connection's client waits for, if any.
#[derive(Clone, Debug, Default)]
pub(crate) struct Awaited(Arc<AtomicU8>);

/// Marks the head of a response as awaited until it is dropped.
pub(crate) struct AwaitedHead(Awaited);

impl Awaited {
    pub(crate) fn begin(&self, version: Version) -> AwaitedHead {
        let state = if version == Version::HTTP_11 { HTTP_11 } else { HTTP_10 };
        self.0.store(state, Ordering::SeqCst);
        AwaitedHead(self.clone())
    }
}

impl Drop for AwaitedHead {
    fn drop(&mut self) {
        self.0.0.store(NOTHING, Ordering::SeqCst);
    }
}

/// Bytes that are written until one write shows that the client has disconnected.
pub(crate) struct Probe {
    message: &'static [u8],
    num_sent: usize,
    pause: Option<Pin<Box<Sleep>>>,
    /// The bytes of a message that have not been written yet.
    rest: &'static [u8],
}

impl Probe {
    fn new(message: &'static [u8]) -> Probe {
        Probe { message, num_sent: 0, pause: None, rest: &[] }
    }

    /// Writes the messages that are due.
    fn advance<S: AsyncWrite + Unpin>(
        &mut self,
        socket: &mut S,
        context: &mut Context<'_>,
    ) -> io::Result<()> {
        while let Some(&pause) = PAUSES.get(self.num_sent) {
            let pause = self.pause.get_or_insert_with(|| Box::pin(sleep(pause)));
            if pause.as_mut().poll(context).is_pending() {
                break;
            }
            self.pause = None;
            self.num_sent += 1;
            if self.rest.is_empty() {
                self.rest = self.message;
            }
            if let Poll::Ready(written) = self.write_rest(socket, context) {
                written?;
            }
        }
        Ok(())
    }

    /// Writes `rest` until nothing is left of it or the socket accepts no more.
    fn write_rest<S: AsyncWrite + Unpin>(
        &mut self,
        socket: &mut S,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.rest.is_empty() {
            match Pin::new(&mut *socket).poll_write(context, self.rest) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(written) => self.rest = &self.rest[written?..],
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// Result of the last attempt to read the request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum LastRead {
    /// Nothing was read since the last flush.
    Done,
    Bytes,
    /// The request is still being read, so its end is noticed there.
    Blocked,
}

/// How one version of HTTP handles the end of the client's data.
pub(crate) trait EndOfData<S>: Unpin {
    /// Reads for the HTTP implementation.
    fn poll_read(
        &mut self,
        socket: &mut S,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>>;

    /// Called before each flush. Checks whether a client whose data has ended is still connected.
    fn flushing(
        &mut self,
        socket: &mut S,
        probe: &mut Probe,
        context: &mut Context<'_>,
    ) -> io::Result<()>;

    /// Called after each flush that wrote everything.
    fn flushed(&mut self, _context: &mut Context<'_>) {}
}

/// A socket that detects whether a client that has closed its sending side has disconnected. hyper
/// flushes the socket whenever it polls the connection, even with nothing left to write.
pub(crate) struct HalfClosable<S, E> {
    socket: S,
    probe: Probe,
    end: E,
}

impl<S> HalfClosable<S, AwaitedRequest> {
    pub(crate) fn http1(socket: S, awaited: Awaited) -> Self {
        let end =
            AwaitedRequest { awaited, last_read: LastRead::Done, ahead: None, has_ended: false };
        HalfClosable { socket, probe: Probe::new(INTERIM), end }
    }
}

impl<S> HalfClosable<S, CallsInProgress> {
    pub(crate) fn http2(socket: S, calls: OpenCalls) -> Self {
        let end = CallsInProgress { calls, sending: Sending::Open };
        HalfClosable { socket, probe: Probe::new(PING), end }
    }
}

impl<S: AsyncRead + Unpin, E: EndOfData<S>> AsyncRead for HalfClosable<S, E> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.end.poll_read(&mut this.socket, context, buffer)
    }
}

impl<S: AsyncWrite + Unpin, E: EndOfData<S>> AsyncWrite for HalfClosable<S, E> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.probe.write_rest(&mut this.socket, context))?;
        Pin::new(&mut this.socket).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.probe.write_rest(&mut this.socket, context))?;
        Pin::new(&mut this.socket).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.end.flushing(&mut this.socket, &mut this.probe, context)?;
        ready!(Pin::new(&mut this.socket).poll_flush(context))?;
        this.end.flushed(context);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

/// Handles the end of the data of an HTTP/1 client, which can have one request open.
pub(crate) struct AwaitedRequest {
    awaited: Awaited,
    last_read: LastRead,
    /// A byte that was read while looking for the end of the client's data.
    ahead: Option<u8>,
    has_ended: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> EndOfData<S> for AwaitedRequest {
    fn poll_read(
        &mut self,
        socket: &mut S,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() > 0
            && let Some(byte) = self.ahead.take()
        {
            buffer.put_slice(&[byte]);
            self.last_read = LastRead::Bytes;
            return Poll::Ready(Ok(()));
        }
        if self.has_ended {
            return Poll::Ready(Ok(()));
        }
        let read = Pin::new(socket).poll_read(context, buffer);
        self.last_read = if read.is_pending() { LastRead::Blocked } else { LastRead::Bytes };
        read
    }

    fn flushing(
        &mut self,
        socket: &mut S,
        probe: &mut Probe,
        context: &mut Context<'_>,
    ) -> io::Result<()> {
        let state = self.awaited.0.load(Ordering::SeqCst);
        if state == NOTHING || self.ahead.is_some() || self.last_read == LastRead::Blocked {
            return Ok(());
        }
        if self.last_read == LastRead::Bytes {
            // If the request is complete, nothing is read until the next poll.
            self.last_read = LastRead::Done;
            context.waker().wake_by_ref();
            return Ok(());
        }
        if !self.has_ended {
            let mut byte = [0];
            let mut buffer = ReadBuf::new(&mut byte);
            match Pin::new(&mut *socket).poll_read(context, &mut buffer) {
                Poll::Pending => return Ok(()),
                Poll::Ready(read) => read?,
            }
            self.ahead = buffer.filled().first().copied();
            self.has_ended = self.ahead.is_none();
            // The reader that waits for this byte must be polled again.
            context.waker().wake_by_ref();
        }
        if !self.has_ended {
            return Ok(());
        }
        if state == HTTP_10 {
            // HTTP/1.0 has no interim responses.
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the client has disconnected",
            ));
        }
        probe.advance(socket, context)
    }
}

/// The calls of an HTTP/2 connection whose responses are not complete.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenCalls(Arc<CallCount>);

#[derive(Debug, Default)]
struct CallCount {
    num_open: AtomicUsize,
    /// Wakes the connection when the last call ends.
    waker: AtomicWaker,
}

/// Marks a call as open until it is dropped.
pub(crate) struct OpenCall(OpenCalls);

impl OpenCalls {
    pub(crate) fn begin(&self) -> OpenCall {
        self.0.num_open.fetch_add(1, Ordering::SeqCst);
        OpenCall(self.clone())
    }

    fn are_none(&self) -> bool {
        self.0.num_open.load(Ordering::SeqCst) == 0
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        let OpenCalls(calls) = &self.0;
        if calls.num_open.fetch_sub(1, Ordering::SeqCst) == 1 {
            calls.waker.wake();
        }
    }
}

/// Whether the client of an HTTP/2 connection has closed its sending side.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Sending {
    Open,
    /// The client has closed its side, and this is not reported yet.
    Closed,
    /// As `Closed`, and no call is open. Frames may still have to be written, and requests
    /// accepted.
    Idle,
    /// All frames are written: the end is reported.
    Over,
}

/// Handles the end of the data of an HTTP/2 client. The end is not reported while calls are open,
/// because HTTP/2 would end all of them. The client no longer answers pings, so its calls have to
/// end before the server considers it gone.
pub(crate) struct CallsInProgress {
    calls: OpenCalls,
    sending: Sending,
}

impl<S: AsyncRead + AsyncWrite + Unpin> EndOfData<S> for CallsInProgress {
    fn poll_read(
        &mut self,
        socket: &mut S,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.sending == Sending::Open {
            let num_before = buffer.filled().len();
            ready!(Pin::new(socket).poll_read(context, buffer))?;
            if num_before < buffer.filled().len() || buffer.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            self.sending = Sending::Closed;
        }
        self.calls.0.waker.register(context.waker());
        if !self.calls.are_none() {
            self.sending = Sending::Closed;
        } else if self.sending == Sending::Over {
            return Poll::Ready(Ok(()));
        } else if self.sending == Sending::Closed {
            self.sending = Sending::Idle;
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// The HTTP/2 implementation has written whole frames when it flushes, so another frame can
    /// follow.
    fn flushing(
        &mut self,
        socket: &mut S,
        probe: &mut Probe,
        context: &mut Context<'_>,
    ) -> io::Result<()> {
        if self.sending == Sending::Closed { probe.advance(socket, context) } else { Ok(()) }
    }

    fn flushed(&mut self, context: &mut Context<'_>) {
        if self.sending == Sending::Idle && self.calls.are_none() {
            self.sending = Sending::Over;
            context.waker().wake_by_ref();
        }
    }
}
