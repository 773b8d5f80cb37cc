//! Why a deployment fails, and how errors are formatted for people: the causes in one line, each once,
//! then the hints.

mod hosts;
mod models;
mod split;

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use jackalope_engine::EngineError;
use jackalope_engine::link::LinkError;
use jackalope_fleet::agent::AgentError;
use jackalope_fleet::discovery::DISCOVERY_PORT;
use jackalope_fleet::home::HomeError;
use jackalope_fleet::local::LocalError;
use jackalope_fleet::nodes::NodesError;
use jackalope_fleet::routes::NoRoutes;
use jackalope_fleet::trust::TrustError;
use jackalope_placement::{CheckpointError, PlacementRefusal};
use jackalope_protocol::Backend;
use jackalope_server::ModelLoadError;
use jackalope_store::content::ContentError;
use jackalope_store::files::ListError;
use jackalope_store::pull::PullError;
use jackalope_text::{TextLoadError, UnknownFormat};
use thiserror::Error;
use tokio::task::JoinError;

pub use hosts::{HOW_TO_ANSWER, HostsError};
pub use models::{CopyError, LocateError, MODELS_MAX, ServedModelsError, SourceError, and_more};
pub use split::SplitError;

/// Why a model is not served, or a rank or agent not started.
#[derive(Debug, Error)]
pub enum DeployError {
    /// There is no directory for jackalope's own files.
    #[error("neither HOME nor JACKALOPE_HOME is set")]
    NoHome,
    /// There is no directory for models.
    #[error("there is no home directory to put models into\nhint: pass `--to DIR`")]
    NoModelsDir,
    /// Jackalope's directory cannot be used.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// This machine cannot prove that it belongs to the cluster.
    #[error(
        "this machine has no secret of the cluster\n\
         hint: `jackalope bootstrap` copies it, or copy ~/.jackalope/secret of the machine that \
         serves (chmod 600)"
    )]
    NoSecret,
    /// The list of trusted machines cannot be used.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// A model cannot be fetched.
    #[error(transparent)]
    Pull(#[from] PullError),
    /// A model cannot be located.
    #[error(transparent)]
    Locate(#[from] LocateError),
    /// The models that a server is to offer cannot be determined.
    #[error(transparent)]
    ServedModels(#[from] ServedModelsError),
    /// The ranks of a machine have no copy of the model to read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A model cannot be copied to other machines.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// The server cannot load the model.
    #[error(transparent)]
    Load(#[from] ModelLoadError),
    /// There is no checkpoint.
    #[error("no checkpoint at {}: {source}\nhint: `--model` takes a directory", .dir.display())]
    NoCheckpoint {
        /// The path.
        dir: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A directory does not hold a checkpoint.
    #[error(
        "{} holds no config.json\nhint: `--model` takes the directory of an MLX checkpoint: \
         config.json, model.safetensors, tokenizer.json",
        .dir.display()
    )]
    NoConfig {
        /// The directory.
        dir: PathBuf,
    },
    /// The path of the model cannot be sent to ranks.
    #[error("the model's path is not UTF-8")]
    ModelPath,
    /// The tokenizer or the template cannot be read.
    #[error("reading the text files of {}: {source}", .dir.display())]
    Text {
        /// Directory of the model.
        dir: PathBuf,
        /// The cause.
        source: Box<TextLoadError>,
    },
    /// There is no such parser of reasoning or tool calls.
    #[error(transparent)]
    Format(#[from] UnknownFormat),
    /// The model's weights cannot be described.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The model's files cannot be hashed.
    #[error(transparent)]
    Content(#[from] ContentError),
    /// The model's files cannot be listed.
    #[error(transparent)]
    Files(#[from] ListError),
    /// The split is impossible.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// The model does not fit.
    #[error(transparent)]
    Placement(#[from] PlacementRefusal),
    /// The ranks cannot be placed on the machines.
    #[error("placing ranks: {reason}")]
    Places {
        /// The cause.
        reason: String,
    },
    /// The machines that a command names cannot be determined.
    #[error(transparent)]
    Hosts(#[from] HostsError),
    /// Machines cannot be used.
    #[error(transparent)]
    Nodes(#[from] NodesError),
    /// Machines do not reach each other.
    #[error(transparent)]
    Routes(#[from] NoRoutes),
    /// The transport does not encrypt.
    #[error(
        "`--encrypt-data on` is impossible with {}: MLX's own transports do not encrypt\n\
         hint: use `--backend tcp`, or `--encrypt-data off` on a network without other machines",
        .backend.name()
    )]
    ClearTransport {
        /// The transport.
        backend: Backend,
    },
    /// There is no port for another model.
    #[error("no port is left for model {slot}\nhint: pass a lower `--control-port`")]
    NoPort {
        /// Position of the model.
        slot: u16,
    },
    /// Ranks that are started by hand cannot compute several models.
    #[error(
        "`--by-hand` serves one model\nhint: leave it out: agents start the ranks of each model"
    )]
    ByHand,
    /// A budget is for a machine that does not take part.
    #[error("`--memory-budget` names {host}\nhint: there are {}", .known.join(", "))]
    BudgetHost {
        /// The machine.
        host: String,
        /// The machines that take part.
        known: Vec<String>,
    },
    /// The memory of a machine is unknown.
    #[error("the memory of {machine} is unknown\nhint: pass `--memory-budget 48GiB`")]
    UnknownMemory {
        /// The machine.
        machine: String,
    },
    /// The rank program is missing.
    #[error(transparent)]
    Rank(#[from] LocalError),
    /// The system provides no randomness.
    #[error("generating a ticket: {0}")]
    Ticket(io::Error),
    /// The path of this program is unknown.
    #[error("finding this program: {0}")]
    OwnProgram(io::Error),
    /// The name of the coordinator's machine cannot be resolved.
    #[error("looking up {host}: {source}")]
    Lookup {
        /// Name of the coordinator's machine.
        host: String,
        /// The cause.
        source: io::Error,
    },
    /// The name of the coordinator's machine resolves to no address.
    #[error("{host} has no address")]
    NoAddress {
        /// Name of the coordinator's machine.
        host: String,
    },
    /// The coordinator cannot listen for ranks.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// This machine cannot serve its models to others.
    #[error(
        "listening on {addr} for machines that copy models: {source}\n\
         hint: another program has the port; `--copy-port` names another one, 0 any free port"
    )]
    Library {
        /// The address.
        addr: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The address of a listener is unknown.
    #[error("reading the address of a listener: {0}")]
    Listener(#[from] io::Error),
    /// The agent cannot listen.
    #[error("cannot listen on {addr}: {source}\nhint: {}", listen_hint(.source))]
    AgentAddress {
        /// The address.
        addr: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The agent cannot be found by others.
    #[error("listening for queries on UDP port {DISCOVERY_PORT}: {0}")]
    Discovery(io::Error),
    /// The agent has failed.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// The engine has failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The engine was stopped while its ranks were loading.
    #[error("the engine ended before its ranks were ready")]
    NotReady,
    /// The engine has a bug.
    #[error("the engine panicked; the messages above say where")]
    EnginePanic,
    /// Work on another thread was cancelled, or panicked.
    #[error(transparent)]
    Thread(#[from] JoinError),
}

fn listen_hint(err: &io::Error) -> &'static str {
    match err.kind() {
        io::ErrorKind::AddrNotAvailable => {
            "this machine has none of the addresses of `--listen`; pass other ones"
        }
        _ => {
            "another agent or program uses the port; `jackalope agent status` shows whether an agent \
             does, `--port` selects another port"
        }
    }
}

/// Returns the causes of an error, outermost first, followed by all hints on lines of their own. If there
/// is no hint, but a file could not be used, the hint says what to do about that.
pub fn text(err: &(dyn Error + 'static)) -> String {
    let mut said = String::new();
    let mut below: Vec<String> = Vec::new();
    let mut file_hint = None;
    let mut next = Some(err);
    while let Some(cause) = next {
        next = cause.source();
        file_hint = cause.downcast_ref().and_then(hint_for_file).or(file_hint);
        let message = cause.to_string();
        // Errors of the system become a clause without their number.
        if let Some((text, _)) = message.split_once(" (os error ").filter(|_| is_of_system(cause)) {
            let clause = text[..1].to_lowercase() + &text[1..];
            said = said.replace(&message, &clause);
            add_cause(&mut said, &clause);
            continue;
        }
        let (head, rest) = message.split_once('\n').unwrap_or((&message, ""));
        add_cause(&mut said, head);
        for line in rest.lines().filter(|it| !it.is_empty()) {
            if !below.iter().any(|it| it == line) {
                below.push(line.to_owned());
            }
        }
    }
    // A stable sort: hints come last, and everything else stays in its order.
    below.sort_by_key(|line| line.starts_with("hint: "));
    if let Some(hint) = file_hint.filter(|_| !said_hint(&below)) {
        below.push(format!("hint: {hint}"));
    }
    below.insert(0, said);
    below.join("\n")
}

/// Appends `cause`, unless the text so far contains it already.
fn add_cause(said: &mut String, cause: &str) {
    if !said.contains(cause) {
        said.push_str(if said.is_empty() { "" } else { ": " });
        said.push_str(cause);
    }
}

fn said_hint(lines: &[String]) -> bool {
    lines.iter().any(|it| it.starts_with("hint: "))
}

/// Returns what to do if a file or program cannot be used for this reason.
fn hint_for_file(err: &io::Error) -> Option<&'static str> {
    use io::ErrorKind as K;
    Some(match err.kind() {
        K::NotFound => "nothing has this name; relative paths begin in the current folder",
        K::PermissionDenied => "let this user use it, or run the command as a user who may",
        K::IsADirectory => "name a file instead of a folder",
        K::NotADirectory => "name a folder instead of a file",
        K::AlreadyExists => "choose a name that is not in use",
        K::StorageFull | K::QuotaExceeded => "free space on this disk, or choose another one",
        K::ReadOnlyFilesystem => "choose a folder that can be written to",
        K::InvalidData => "the file is damaged or of another kind; replace it",
        K::UnexpectedEof => "the file is incomplete; replace it",
        _ => return None,
    })
}

fn is_of_system(err: &(dyn Error + 'static)) -> bool {
    err.downcast_ref::<io::Error>().is_some_and(|it| it.raw_os_error().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_model_of_another_kind_is_to_be_converted() {
        let reason = "missing field `hidden_size`".to_owned();
        let invalid = jackalope_store::SpecError::Malformed { reason };
        assert!(invalid.hint().contains("fetch config.json again"));
        let (found, supported) = ("hyena".to_owned(), vec!["llama"]);
        let other = jackalope_store::SpecError::Architecture { found, supported };
        assert!(other.hint().contains("mlx_lm.convert"));
    }

    /// An error with a message and a cause.
    #[derive(Debug, Error)]
    #[error("{message}")]
    struct Failed {
        message: &'static str,
        source: Option<Box<Failed>>,
    }

    fn failed(messages: &[&'static str]) -> Failed {
        let source = (1 < messages.len()).then(|| Box::new(failed(&messages[1..])));
        Failed { message: messages[0], source }
    }

    #[test]
    fn causes_come_before_hints_and_each_once() {
        let source = io::Error::from(rustix::io::Errno::ADDRINUSE);
        let err = DeployError::AgentAddress { addr: ([1, 2, 3, 4], 5).into(), source };
        let said = text(&err);
        let head = "cannot listen on 1.2.3.4:5: address already in use\nhint: another agent";
        assert!(said.starts_with(head), "{said}");
        assert_eq!(said.lines().count(), 2, "{said}");
        let inner = "no such file\nhint: pull it\nits log:\n  a line";
        let err = failed(&["starting", "reading x: no such file\nhint: pull it", inner]);
        assert_eq!(
            text(&err),
            "starting: reading x: no such file\nits log:\n  a line\nhint: pull it"
        );
        assert_eq!(text(&failed(&["plain"])), "plain");
    }

    #[test]
    fn a_file_that_cannot_be_used_comes_with_a_hint_unless_there_is_another() {
        let missing = || io::Error::from(rustix::io::Errno::NOENT);
        let said = text(&missing());
        assert!(said.ends_with(
            "\nhint: nothing has this name; relative paths begin in the current folder"
        ));
        let addr = ([1, 2, 3, 4], 5).into();
        let said = text(&DeployError::AgentAddress { addr, source: missing() });
        assert_eq!(said.matches("hint: ").count(), 1, "{said}");
        let refused = io::Error::from(rustix::io::Errno::CONNREFUSED);
        assert!(!text(&refused).contains("hint: "));
    }
}
