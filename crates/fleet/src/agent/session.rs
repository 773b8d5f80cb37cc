//! One client's connection to an agent.

use std::net::Shutdown;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use jackalope_protocol::agent::{FromAgent, ToAgent};
use jackalope_protocol::{FrameError, PublicKey, frame, secure};
use tracing::{debug, info};

use super::probe;
use super::process::Adopted;
use super::programs::{Owner, Programs, Started};
use super::trust::Powers;

/// Interval between two heartbeats, in both directions.
pub(super) const BEAT: Duration = Duration::from_secs(1);

/// Duration of silence after which the other side counts as gone.
pub(super) const SILENCE: Duration = Duration::from_secs(5);

/// Maximum number of queued messages for a slow client.
const OUTBOX_LEN: usize = 1024;

/// What the agent does after a session has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum End {
    GoOn,
    StopAgent,
}

/// An authenticated client and its permissions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client {
    pub(super) session: u64,
    pub(super) key: PublicKey,
    pub(super) powers: Powers,
}

/// Serves a client until it disconnects. `first` is its first message.
pub(super) fn run(
    client: Client,
    programs: &Programs,
    first: ToAgent,
    sender: secure::Sender,
    mut receiver: secure::Receiver,
) -> End {
    let Client { session, key, powers } = client;
    let (outbox, messages) = sync_channel(OUTBOX_LEN);
    let client = match first {
        ToAgent::Hello { client } => Some(client),
        _ => None,
    };
    let owner = Owner { session, key, client, outbox };
    let started = receiver.stream().set_read_timeout(Some(SILENCE)).and_then(|()| {
        sender.stream().set_write_timeout(Some(SILENCE))?;
        thread::Builder::new().name("to client".to_owned()).spawn(move || write(sender, &messages))
    });
    let writer = match started {
        Ok(writer) => writer,
        Err(err) => {
            debug!(%err, "a session could not be started");
            return End::GoOn;
        }
    };
    let end = read(first, &mut receiver, programs, powers, &owner);
    let (on_purpose, end) = match end {
        Ok(end) => (true, end),
        Err(err) => {
            info!(session, %err, "session lost");
            (false, End::GoOn)
        }
    };
    programs.leave(session, on_purpose);
    drop(owner);
    // Wakes the writer; an error means that the connection is gone already.
    let _ = receiver.stream().shutdown(Shutdown::Both);
    let _ = writer.join();
    end
}

fn read(
    first: ToAgent,
    receiver: &mut secure::Receiver,
    programs: &Programs,
    powers: Powers,
    owner: &Owner,
) -> Result<End, FrameError> {
    // The writer disconnects a client that does not read its messages, which ends this thread too.
    let send = |message| owner.outbox.send(message).map_err(|_| FrameError::Closed);
    let mut next = first;
    loop {
        match next {
            ToAgent::Start { tag, order } => {
                let name = order.name.clone();
                let allowed = powers.check(&order);
                send(match allowed.and_then(|()| programs.start(tag, order, owner)) {
                    Ok(Started { pid, began }) => FromAgent::Started { name, tag, pid, began },
                    Err(exit) => {
                        let last_words = String::new();
                        FromAgent::Ended { name, tag, exit, code: 127, last_words }
                    }
                })?;
            }
            ToAgent::Resume { name, pid, tag, began, order } => {
                let known = Started { pid, began };
                let is_resumed = programs.resume(tag, &name, &known, owner)
                    // Adoption claims any process by its pid, so it needs full powers.
                    || powers == Powers::All && programs.adopt(tag, order, &known, owner);
                send(if is_resumed {
                    FromAgent::Started { name, tag, pid, began: known.began }
                } else {
                    let exit = "gone when its machine could be reached again".to_owned();
                    FromAgent::Ended { name, tag, exit, code: 137, last_words: String::new() }
                })?
            }
            ToAgent::Signal { name, signal } => programs.signal(&name, signal),
            ToAgent::Input { name, bytes } => programs.input(&name, &bytes),
            ToAgent::Kill { name } => programs.kill(&name),
            ToAgent::Facts => send(FromAgent::Facts(crate::facts::facts_here()))?,
            ToAgent::Readings => send(FromAgent::Readings(crate::heat::readings_here()))?,
            ToAgent::Status => send(FromAgent::Status(programs.status()))?,
            ToAgent::KillProcess { .. } if powers != Powers::All => {}
            ToAgent::KillProcess { pid, began } => {
                if let Some(mut process) = Adopted::find(pid, &began) {
                    info!(pid, "killed: an earlier agent started it");
                    process.kill();
                }
            }
            ToAgent::Probe { tag, targets, deadline_ms } => {
                let outbox = owner.outbox.clone();
                probe::start(targets, Duration::from_millis(deadline_ms), move |failure| {
                    // If the outbox is full, the session is about to be dropped.
                    outbox.try_send(FromAgent::Probed { tag, failure }).ok();
                });
            }
            // These messages matter only as the first one.
            ToAgent::Heartbeat | ToAgent::Library | ToAgent::Hello { .. } => {}
            ToAgent::Bye => return Ok(End::GoOn),
            ToAgent::Stop if powers == Powers::All => return Ok(End::StopAgent),
            // A client with limited powers cannot stop the agent; only its own session ends.
            ToAgent::Stop => return Ok(End::GoOn),
        }
        next = frame::read(receiver)?;
    }
}

fn write(mut sender: secure::Sender, messages: &Receiver<FromAgent>) {
    loop {
        let message = match messages.recv_timeout(BEAT) {
            Ok(message) => message,
            Err(RecvTimeoutError::Timeout) => FromAgent::Heartbeat,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        if frame::write(&mut sender, &message).is_err() {
            break;
        }
    }
    // Wakes the reader if this side closed the connection.
    let _ = sender.stream().shutdown(Shutdown::Both);
}
