//! The agent's listener, and the end of the agent.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use jackalope_protocol::agent::ToAgent;
use jackalope_protocol::gate::{Gate, GateConfig, HANDSHAKE};
use jackalope_protocol::grant::{Grant, LibraryAccess, LibraryService};
use jackalope_protocol::secure::{self, Accepted, Caller, Proof};
use jackalope_protocol::{FrameError, Identity, PublicKey, Secret, frame};
use thiserror::Error;
use tracing::{debug, info};

use super::programs::Programs;
use super::session::{self, Client, End};
use super::trust::{AgentAdmission, REREAD_INTERVAL, Trust};
use crate::platform;

/// Maximum number of authenticated clients; further ones are dropped.
const SESSIONS_MAX: usize = 64;
/// How often to look for new addresses to listen on.
const LISTEN_INTERVAL: Duration = Duration::from_secs(1);
/// Pause between two checks of the programs.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Returns the service of a machine without models: closes every connection.
pub fn no_library() -> LibraryService {
    Arc::new(|_, _, _| ())
}

/// The configuration of an agent.
#[derive(Clone)]
pub struct AgentConfig {
    /// Secret of the cluster; peers without it are refused.
    pub secret: Secret,
    /// This machine's key.
    pub identity: Identity,
    /// Whose orders the agent accepts.
    pub trust: Trust,
    /// Path of `jackalope-rank`.
    pub rank_program: PathBuf,
    /// Directory for files that programs need.
    pub files_dir: PathBuf,
    /// Serves the models of this machine.
    pub library: LibraryService,
    /// How long the agent keeps running without a session and without a program; for ever if
    /// absent.
    pub linger: Option<Duration>,
    /// Set by the caller to stop the agent and all its programs.
    pub is_over: Arc<AtomicBool>,
}

impl fmt::Debug for AgentConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentConfig").field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// Reason why no agent runs.
#[derive(Debug, Error)]
pub enum AgentError {
    /// Listening on the address failed.
    #[error(
        "listening on {addr} failed: {source}\n\
         hint: another program has the port; choose one with `--agent-port`"
    )]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// The cause.
        source: io::Error,
    },
}

struct Shared {
    programs: Programs,
    admission: AgentAdmission,
    library: LibraryService,
    num_sessions: AtomicUsize,
    num_accepted: AtomicU64,
    is_over: Arc<AtomicBool>,
}

/// Returns the listeners of an agent: called once at the start, then repeatedly for listeners on
/// addresses that have appeared since.
pub type NewListeners = Box<dyn FnMut() -> Vec<TcpListener> + Send>;

/// Runs an agent on `listener` until it is stopped or has been idle for [`AgentConfig::linger`].
///
/// # Errors
/// [`AgentError::Listen`] if the listener cannot be used.
pub fn serve(listener: &TcpListener, config: AgentConfig) -> Result<(), AgentError> {
    let failed = |source| AgentError::Listen { addr: address_of(listener), source };
    let mut first = Some(listener.try_clone().map_err(failed)?);
    serve_on(Box::new(move || first.take().into_iter().collect()), config)
}

/// Like [`serve`], on addresses that may appear and disappear.
///
/// # Errors
/// [`AgentError::Listen`] if a listener cannot be used.
pub fn serve_on(mut new_listeners: NewListeners, config: AgentConfig) -> Result<(), AgentError> {
    let shared = Arc::new(Shared {
        programs: Programs::new(config.rank_program, &config.files_dir),
        admission: AgentAdmission::new(config.secret, config.identity, config.trust),
        library: config.library,
        num_sessions: AtomicUsize::new(0),
        num_accepted: AtomicU64::new(0),
        is_over: config.is_over,
    });
    let gate = open_gate(&shared, new_listeners())?;
    let mut idle_since = Instant::now();
    let mut listened_at = Instant::now();
    let mut awake = None;
    let mut swept_at = Instant::now();
    while !shared.is_over.load(Ordering::SeqCst) {
        if LISTEN_INTERVAL <= listened_at.elapsed() {
            for listener in new_listeners() {
                let addr = address_of(&listener);
                gate.listen_also(listener).map_err(|source| AgentError::Listen { addr, source })?;
            }
            listened_at = Instant::now();
        }
        if REREAD_INTERVAL <= swept_at.elapsed() {
            swept_at = Instant::now();
            shared.admission.sweep();
            shared.programs.end_untrusted(&|key| shared.admission.powers(key).is_some());
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
    drop(gate);
    shared.programs.end_all();
    Ok(())
}

fn address_of(listener: &TcpListener) -> SocketAddr {
    listener.local_addr().unwrap_or_else(|_| (Ipv4Addr::UNSPECIFIED, 0).into())
}

fn open_gate(shared: &Arc<Shared>, listeners: Vec<TcpListener>) -> Result<Gate, AgentError> {
    let addr = listeners.first().map_or_else(|| (Ipv4Addr::UNSPECIFIED, 0).into(), address_of);
    let shared = Arc::clone(shared);
    let prove = move |caller: Caller| greet(&shared, caller);
    // Clients may connect from anywhere; the gate adds the address of each client that has proved
    // itself.
    let expected = vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    let config = GateConfig { listeners, expected, purpose: "agent" };
    Gate::start(config, Box::new(prove)).map_err(|source| AgentError::Listen { addr, source })
}

/// Reads the first message, which says what kind of connection it is.
fn first_word(receiver: &mut secure::Receiver) -> Result<ToAgent, FrameError> {
    receiver.stream().set_read_timeout(Some(HANDSHAKE))?;
    frame::read(receiver)
}

/// Authenticates a client and starts its session.
fn greet(shared: &Arc<Shared>, caller: Caller) -> Result<(), FrameError> {
    let from = caller.from;
    let accepted = secure::accept_caller(caller, &shared.admission.door(from))?;
    let (key, grant) = match &accepted.proof {
        Proof::Machine(peer) => (peer.key, None),
        Proof::Key(hint) => {
            let grant = Grant::read(hint).ok_or(FrameError::Ticket)?;
            (grant.coordinator, Some(grant))
        }
    };
    let Accepted { sender, mut receiver, .. } = accepted;
    let first = first_word(&mut receiver)?;
    if SESSIONS_MAX <= shared.num_sessions.fetch_add(1, Ordering::SeqCst) {
        shared.num_sessions.fetch_sub(1, Ordering::SeqCst);
        return Err(io::Error::other(format!("{SESSIONS_MAX} clients are here already")).into());
    }
    let counted = Arc::clone(shared);
    let visit = Visit { from, key, grant, first, sender, receiver };
    let run = move || {
        let session = 1 + counted.num_accepted.fetch_add(1, Ordering::SeqCst);
        counted.admission.enter(session, visit.key, visit.receiver.stream());
        serve_client(session, &counted, visit);
        counted.admission.leave(session);
        counted.num_sessions.fetch_sub(1, Ordering::SeqCst);
    };
    // Not joined: the thread ends with its connection, and the process does not wait for it.
    thread::Builder::new().name("session".to_owned()).spawn(run).map(drop).map_err(|err| {
        shared.num_sessions.fetch_sub(1, Ordering::SeqCst);
        err.into()
    })
}

/// An authenticated connection.
struct Visit {
    from: SocketAddr,
    /// Key of the machine whose trust admits the connection: the client's own key, or that of the
    /// coordinator that made its grant.
    key: PublicKey,
    /// The grant that the client proved, unless it proved a machine's key.
    grant: Option<Grant>,
    first: ToAgent,
    sender: secure::Sender,
    receiver: secure::Receiver,
}

/// Serves an authenticated client until its connection ends.
fn serve_client(session: u64, shared: &Shared, visit: Visit) {
    let Visit { from, key, grant, first, sender, receiver } = visit;
    let access = match (&first, grant) {
        (ToAgent::Library, Some(grant)) => Some(LibraryAccess::Read(grant)),
        (ToAgent::Library, None) => Some(LibraryAccess::All),
        (_, Some(_)) => return debug!(%from, "a reader asked for something else"),
        (_, None) => None,
    };
    if let Some(access) = access {
        return (shared.library)(access, sender, receiver);
    }
    // The trust may have been revoked since the handshake.
    let Some(powers) = shared.admission.powers(&key) else { return };
    info!(session, %from, %key, "session");
    let client = Client { session, key, powers };
    let end = session::run(client, &shared.programs, first, sender, receiver);
    if end == End::StopAgent {
        shared.is_over.store(true, Ordering::SeqCst);
    }
}
