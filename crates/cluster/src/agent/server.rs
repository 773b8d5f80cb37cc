//! The agent's listener and its end.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use jackalope_protocol::{FrameError, Secret, frame, secure};
use thiserror::Error;
use tracing::{debug, info};

use super::messages::ToAgent;
use super::programs::Programs;
use super::session::{self, End};
use crate::exchange::{self, Library};
use crate::platform;

/// A connection has this long to prove itself.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Connections at most; more are dropped.
const SESSIONS_MAX: usize = 64;
/// Between two looks at the programs.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// How an agent is run.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// What clients prove themselves with.
    pub secret: Secret,
    /// `jackalope-rank`.
    pub rank_program: PathBuf,
    /// Where files for programs are written.
    pub files_dir: PathBuf,
    /// Its machine's models.
    pub library: Library,
    /// How long it stays without a session and without a program; for ever if absent.
    pub linger: Option<Duration>,
    /// Set by others to end it, with all it looks after.
    pub is_over: Arc<AtomicBool>,
}

/// Why there is no agent.
#[derive(Debug, Error)]
pub enum AgentError {
    /// The address cannot be listened on.
    #[error(
        "listening on {addr} failed: {source}\n\
         hint: another program has the port; choose one with `--agent-port`"
    )]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// Why.
        source: io::Error,
    },
}

struct Shared {
    programs: Programs,
    secret: Secret,
    library: Library,
    num_sessions: AtomicUsize,
    is_over: Arc<AtomicBool>,
}

/// Runs an agent on `listener` until it is told to stop or has lingered long enough.
///
/// # Errors
/// [`AgentError::Listen`] if the listener cannot be used.
pub fn serve(listener: &TcpListener, config: AgentConfig) -> Result<(), AgentError> {
    let addr = listener.local_addr().unwrap_or_else(|_| ([0, 0, 0, 0], 0).into());
    listener.set_nonblocking(true).map_err(|source| AgentError::Listen { addr, source })?;
    let shared = Arc::new(Shared {
        programs: Programs::new(config.secret, config.rank_program, &config.files_dir),
        secret: config.secret,
        library: config.library,
        num_sessions: AtomicUsize::new(0),
        is_over: config.is_over,
    });
    let mut idle_since = Instant::now();
    let mut awake = None;
    let mut num_accepted = 0;
    while !shared.is_over.load(Ordering::SeqCst) {
        while let Ok((stream, from)) = listener.accept() {
            num_accepted += 1;
            if SESSIONS_MAX <= shared.num_sessions.load(Ordering::SeqCst) {
                debug!(%from, "too many sessions");
                continue;
            }
            let (counted, shared, session) = (&shared, Arc::clone(&shared), num_accepted);
            shared.num_sessions.fetch_add(1, Ordering::SeqCst);
            let run = move || {
                greet(session, &shared, stream, from);
                shared.num_sessions.fetch_sub(1, Ordering::SeqCst);
            };
            // Not joined: it ends with its connection, and the process does not wait for it.
            if thread::Builder::new().name("session".to_owned()).spawn(run).is_err() {
                counted.num_sessions.fetch_sub(1, Ordering::SeqCst);
            }
        }
        shared.programs.look_after();
        if shared.programs.is_empty() {
            awake = None;
        } else if awake.is_none() {
            awake = Some(platform::current::keep_awake());
        }
        if shared.num_sessions.load(Ordering::SeqCst) != 0 || !shared.programs.is_empty() {
            idle_since = Instant::now();
        }
        if config.linger.is_some_and(|linger| linger <= idle_since.elapsed()) {
            info!("nobody needs this agent any more");
            break;
        }
        thread::sleep(LOOK_INTERVAL);
    }
    shared.programs.end_all();
    Ok(())
}

/// Says what kind of connection it is.
fn first_word(receiver: &mut secure::Receiver) -> Result<ToAgent, FrameError> {
    receiver.stream().set_read_timeout(Some(HANDSHAKE))?;
    frame::read(receiver)
}

fn greet(session: u64, shared: &Shared, stream: std::net::TcpStream, from: SocketAddr) {
    let accepted = stream
        .set_nonblocking(false)
        .map_err(Into::into)
        .and_then(|()| secure::accept(stream, &shared.secret, HANDSHAKE));
    match accepted {
        Ok((sender, mut receiver)) => {
            let first = match first_word(&mut receiver) {
                Ok(ToAgent::Library) => {
                    return exchange::serve(&shared.library, &shared.secret, sender, receiver);
                }
                Ok(first) => first,
                Err(err) => return debug!(%from, %err, "a connection said nothing"),
            };
            info!(session, %from, "session");
            let end = session::run(session, &shared.programs, first, (sender, receiver));
            if end == End::StopAgent {
                shared.is_over.store(true, Ordering::SeqCst);
            }
        }
        Err(err) => debug!(%from, %err, "a connection was refused"),
    }
}
