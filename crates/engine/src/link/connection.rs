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
/// write timeout, it is reported as gone. If the rank has closed the connection, only the reading
/// thread reports that: the rank's last message, which may still have to be read, says why.
fn write_each(
    id: ConnectionId,
    mut sender: secure::Sender,
    messages: &Receiver<Arc<[u8]>>,
    reporter: &Reporter<LinkReport>,
) {
    let mut is_closed = false;
    for bytes in messages {
        // Messages are still taken, so that queueing one does not fail before the report.
        let Err(err) = (if is_closed { Ok(()) } else { sender.write_all(&bytes) }) else {
            continue;
        };
        let err = match err.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                is_closed = true;
                continue;
            }
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

#[cfg(test)]
pub(super) mod tests {
    use std::net::TcpListener;
    use std::sync::mpsc;

    use jackalope_protocol::secure::{Accepted, HintedKey, PeerPolicy};
    use jackalope_protocol::{FailureKind, Phase, RankFailure, Secret};

    use super::*;
    use crate::command::Message;

    pub(in super::super) const TIMEOUT: Duration = Duration::from_secs(60);

    /// Accepts any peer that holds this ticket.
    struct Ticket(Secret);

    impl PeerPolicy for Ticket {
        fn key_of(&self, _hint: &[u8]) -> Option<Secret> {
            Some(self.0)
        }
    }

    /// Connects a rank; returns the coordinator's end and the rank's.
    pub(in super::super) fn connect() -> (Accepted, (secure::Sender, secure::Receiver)) {
        let ticket = Ticket(Secret([1; 32]));
        let key = HintedKey::of_rank(0, ticket.0);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let dialling = std::thread::spawn(move || secure::dial(addr, &key, TIMEOUT).unwrap());
        let (stream, _) = listener.accept().unwrap();
        let accepted = secure::accept(stream, &ticket, TIMEOUT).unwrap();
        (accepted, dialling.join().unwrap())
    }

    /// A rank sends why it failed and exits while the coordinator still sends it messages.
    #[test]
    fn the_last_message_of_a_rank_is_read_although_writing_to_it_fails() {
        let (Accepted { sender, receiver, .. }, (mut to_coordinator, of_coordinator)) = connect();
        let failure = RankFailure {
            epoch: 1,
            phase: Phase::Loading,
            kind: FailureKind::Model,
            message: "the disk is on fire".into(),
            peers: Vec::new(),
        };
        frame::write(&mut to_coordinator, &FromRank::Failed(failure.clone())).unwrap();
        drop((to_coordinator, of_coordinator));
        let id = ConnectionId { rank: 0, number: 1 };
        let (reports, received) = mpsc::channel();
        let reporter = Reporter::new(reports);
        // The writing thread is the first to notice that the rank is gone.
        let (queue, messages) = sync_channel(WRITE_QUEUE_MAX);
        let writing = {
            let reporter = reporter.clone();
            std::thread::spawn(move || write_each(id, sender, &messages, &reporter))
        };
        let message: Arc<[u8]> = vec![0; 1 << 20].into();
        for _ in 0..2 * WRITE_QUEUE_MAX {
            queue.send(Arc::clone(&message)).unwrap();
        }
        drop(queue);
        writing.join().unwrap();
        read_all(id, receiver, &reporter);
        drop(reporter);
        let reports: Vec<_> = received.into_iter().collect();
        let [
            Message::Report(LinkReport(Report::Message { message, .. })),
            Message::Report(LinkReport(Report::Gone { .. })),
        ] = reports.as_slice()
        else {
            panic!("{} reports", reports.len())
        };
        assert!(matches!(message, FromRank::Failed(it) if *it == failure), "{message:?}");
    }
}
