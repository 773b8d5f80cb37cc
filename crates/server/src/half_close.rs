//! Clients that close their sending side and wait for the answer.
//!
//! A client that has left and one that only sends no more look alike: the end of what it sends
//! arrives. Only a write distinguishes them: the operating system of a client that has left
//! answers it with a reset. While the head of a response is awaited, this socket therefore writes the interim
//! response `100 Continue`, which HTTP/1.1 allows before any response and every client has to skip
//! (RFC 9110, section 15.2). Once the response has begun, its own bytes do the same.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::Version;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Pauses before interim responses. The second one fails if the first one was answered with a
/// reset. Go's client accepts five interim responses, so there are no more than four.
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

/// What came of the last attempt to read the request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum LastRead {
    /// Nobody has tried since the last flush.
    Done,
    Bytes,
    /// The request is still being read, so its end is noticed there.
    Blocked,
}

/// A socket that finds out whether a client that sends no more has left. hyper polls its
/// connection's flush whenever it polls the connection, with nothing left to write.
pub(crate) struct HalfClosable<S> {
    socket: S,
    awaited: Awaited,
    last_read: LastRead,
    /// A byte that was read to find the end of what the client sends.
    ahead: Option<u8>,
    has_ended: bool,
    num_probes: usize,
    pause: Option<Pin<Box<Sleep>>>,
    /// The rest of an interim response that is being written.
    interim: &'static [u8],
}

impl<S: AsyncRead + AsyncWrite + Unpin> HalfClosable<S> {
    pub(crate) fn new(socket: S, awaited: Awaited) -> HalfClosable<S> {
        HalfClosable {
            socket,
            awaited,
            last_read: LastRead::Done,
            ahead: None,
            has_ended: false,
            num_probes: 0,
            pause: None,
            interim: &[],
        }
    }

    /// Looks whether the client sends no more, and if so, whether it is still there.
    fn look(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let state = self.awaited.0.load(Ordering::SeqCst);
        if state == NOTHING || self.ahead.is_some() || self.last_read == LastRead::Blocked {
            return Ok(());
        }
        if self.last_read == LastRead::Bytes {
            // If all of the request has been read, nobody has read when this is polled again.
            self.last_read = LastRead::Done;
            context.waker().wake_by_ref();
            return Ok(());
        }
        if !self.has_ended {
            let mut byte = [0];
            let mut buffer = ReadBuf::new(&mut byte);
            match Pin::new(&mut self.socket).poll_read(context, &mut buffer) {
                Poll::Pending => return Ok(()),
                Poll::Ready(read) => read?,
            }
            self.ahead = buffer.filled().first().copied();
            self.has_ended = self.ahead.is_none();
            // Whoever waited for this byte has to be polled again.
            context.waker().wake_by_ref();
        }
        if !self.has_ended {
            return Ok(());
        }
        if state == HTTP_10 {
            // It does not know interim responses.
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the client has left"));
        }
        self.probe(context)
    }

    /// Writes an interim response when it is time for the next one.
    fn probe(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        while let Some(&pause) = PAUSES.get(self.num_probes) {
            let pause = self.pause.get_or_insert_with(|| Box::pin(sleep(pause)));
            if pause.as_mut().poll(context).is_pending() {
                break;
            }
            self.pause = None;
            self.num_probes += 1;
            if self.interim.is_empty() {
                self.interim = INTERIM;
            }
            if let Poll::Ready(written) = self.write_interim(context) {
                written?;
            }
        }
        Ok(())
    }

    /// Writes what is left of an interim response.
    fn write_interim(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.interim.is_empty() {
            match Pin::new(&mut self.socket).poll_write(context, self.interim) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(written) => self.interim = &self.interim[written?..],
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for HalfClosable<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
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
        let read = Pin::new(&mut self.socket).poll_read(context, buffer);
        self.last_read = if read.is_pending() { LastRead::Blocked } else { LastRead::Bytes };
        read
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for HalfClosable<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        std::task::ready!(self.write_interim(context))?;
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        std::task::ready!(self.write_interim(context))?;
        Pin::new(&mut self.socket).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.look(context)?;
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}
