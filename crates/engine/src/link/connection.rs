//! The connection of a rank. One thread reads from it and one writes to it, so that no rank blocks
//! the engine's thread.

use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use jackalope_protocol::{FrameError, FromRank, frame, secure};

use super::{LinkReport, Report};
use crate::Reporter;

/// Capacity of a rank's queue of outgoing messages. A rank is at most a few plans behind and is
/// sent one heartbeat per second.
pub(super) const WRITE_QUEUE_MAX: usize = 64;

/// Names a connection in reports.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct ConnectionId {
    pub(super) rank: usize,
    /// Counts the connections of all ranks.
    pub(super) number: u64,
}

/// A connection with one thread that reads and one that writes. Both end with the connection and
/// are not joined.
pub(super) struct Connection {
    id: ConnectionId,
    stream: TcpStream,
    queue: SyncSender<Arc<[u8]>>,
}

impl Connection {
    /// Starts both threads.
    pub(super) fn start(
        id: ConnectionId,
        sender: secure::Sender,
        receiver: secure::Receiver,
        write_timeout: Duration,
        reporter: Reporter<LinkReport>,
    ) -> Result<Connection, FrameError> {
        sender.stream().set_write_timeout(Some(write_timeout))?;
        let stream = sender.stream().try_clone()?;
        let (queue, messages) = sync_channel(WRITE_QUEUE_MAX);
        let start = |name: &str, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(format!("{name} rank {}", id.rank)).spawn(work)
        };
        let writing = reporter.clone();
        start("to", Box::new(move || write_each(id, sender, &messages, &writing)))?;
        start("from", Box::new(move || read_all(id, receiver, &reporter)))?;
        Ok(Connection { id, stream, queue })
    }

    pub(super) fn is_number(&self, number: u64) -> bool {
        self.id.number == number
    }

    /// Queues a message without blocking.
    pub(super) fn write(&self, bytes: &Arc<[u8]>) -> Result<(), FrameError> {
        self.queue.try_send(Arc::clone(bytes)).map_err(|err| match err {
            TrySendError::Full(_) => {
                let full = format!("it has not read {WRITE_QUEUE_MAX} messages");
                FrameError::Io(io::Error::new(io::ErrorKind::TimedOut, full))
            }
            TrySendError::Disconnected(_) => FrameError::Closed,
        })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Wakes both threads; an error means that they have ended already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Writes queued messages until the connection ends. If the rank does not read within the stream's
/// write timeout, it is reported as gone.
fn write_each(
    id: ConnectionId,
    mut sender: secure::Sender,
    messages: &Receiver<Arc<[u8]>>,
    reporter: &Reporter<LinkReport>,
) {
    for bytes in messages {
        if let Err(err) = sender.write_all(&bytes) {
            let err = match err.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                    io::Error::new(io::ErrorKind::TimedOut, "it does not read what it is sent")
                }
                _ => err,
            };
            let report =
                Report::Gone { rank: id.rank, connection: id.number, err: FrameError::Io(err) };
            reporter.report(LinkReport(report));
            return;
        }
    }
}

fn read_all(id: ConnectionId, mut stream: secure::Receiver, reporter: &Reporter<LinkReport>) {
    loop {
        let report = match frame::read::<FromRank>(&mut stream) {
            Ok(message) => Report::Message { rank: id.rank, connection: id.number, message },
            Err(err) => Report::Gone { rank: id.rank, connection: id.number, err },
        };
        let is_gone = matches!(report, Report::Gone { .. });
        if !reporter.report(LinkReport(report)) || is_gone {
            return;
        }
    }
}
