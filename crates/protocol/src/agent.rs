//! The messages between agents and their clients.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::Secret;
use crate::machine::{MachineReadings, NodeFacts};

/// A message to an agent.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum ToAgent {
    /// First message of a session: identifies the client. A client that reconnects keeps the
    /// programs that it owned over its earlier connection, whether or not the agent has noticed
    /// that the earlier connection ended.
    Hello {
        /// Random number that the client chose once.
        client: u64,
    },
    /// Start this program, or take it over if the same order already runs.
    Start {
        /// Returned in all messages about this program, which distinguishes them from those about
        /// an earlier one of the same name.
        tag: u64,
        /// The program.
        order: Order,
    },
    /// Take over a program that this client owned; if it no longer runs, report how it ended.
    Resume {
        /// Name of the program.
        name: String,
        /// Process id of the program.
        pid: u32,
        /// As in [`ToAgent::Start`].
        tag: u64,
        /// Start time of that process, from [`FromAgent::Started`]. An agent that replaced another
        /// one takes the program over if the process with this pid has this start time.
        began: Option<String>,
        /// The original order.
        order: Order,
    },
    /// Send a signal to a program.
    Signal {
        /// Name of the program.
        name: String,
        /// Number of the signal, as for `kill`.
        signal: i32,
    },
    /// Write to a program's standard input.
    Input {
        /// Name of the program.
        name: String,
        /// Bytes to write. If empty, the input is closed.
        bytes: Vec<u8>,
    },
    /// Kill a program.
    Kill {
        /// Name of the program.
        name: String,
    },
    /// Report the machine's facts.
    Facts,
    /// Report the state of the programs.
    Status,
    /// Sent instead of `Hello`, as the first message: use this connection for the machine's
    /// library.
    Library,
    /// Heartbeat, sent once a second.
    Heartbeat,
    /// The session ends on purpose; its programs end with it.
    Bye,
    /// Stop the agent and all its programs.
    Stop,
    /// Report the machine's memory, temperature, power and GPU load.
    Readings,
    /// Kill a process that an earlier agent of this machine started, if the process with this pid
    /// has this start time.
    KillProcess {
        /// Pid of the process.
        pid: u32,
        /// Start time of the process, as in [`FromAgent::Started`].
        began: String,
    },
    /// Try to connect to these addresses and report whether any of them answers.
    Probe {
        /// Returned in [`FromAgent::Probed`].
        tag: u64,
        /// Addresses to connect to, at most four; a refused connection counts as an answer.
        targets: Vec<SocketAddr>,
        /// How long an answer may take, in milliseconds.
        deadline_ms: u64,
    },
}

/// Maximum number of addresses in one [`ToAgent::Probe`].
pub const PROBE_TARGETS_MAX: usize = 4;

/// A message from an agent.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum FromAgent {
    /// A program runs.
    Started {
        /// Name of the program.
        name: String,
        /// As in [`ToAgent::Start`].
        tag: u64,
        /// Process id of the program.
        pid: u32,
        /// Start time of the process, as its system reports it.
        began: Option<String>,
    },
    /// A program wrote a line.
    Line {
        /// Name of the program.
        name: String,
        /// Stream to which the program wrote.
        stream: Stream,
        /// The line without its newline.
        text: String,
    },
    /// A program ended, or could not be started.
    Ended {
        /// Name of the program.
        name: String,
        /// As in [`ToAgent::Start`].
        tag: u64,
        /// How the program ended, in words: `exit status 1`, `killed by signal 9 (…)`.
        exit: String,
        /// Exit code as shells report it: 128 plus the number for a signal.
        code: i32,
        /// The last lines of the program's standard error.
        last_words: String,
    },
    /// Facts of the machine.
    Facts(NodeFacts),
    /// State of the agent's programs.
    Status(Vec<ProgramStatus>),
    /// Heartbeat, sent once a second.
    Heartbeat,
    /// The machine's memory, temperature, power and GPU load.
    Readings(MachineReadings),
    /// The result of a [`ToAgent::Probe`].
    Probed {
        /// Tag of the probe.
        tag: u64,
        /// Why none of the targets can be reached; absent if one answers.
        failure: Option<String>,
    },
}

/// A program to run.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Order {
    /// Name of the program; unique on the machine.
    pub name: String,
    /// The program to run.
    pub program: OrderedProgram,
    /// Arguments.
    pub args: Vec<String>,
    /// Variables that are added to the agent's environment.
    pub env: Vec<(String, String)>,
    /// Files to write; each variable is set to the path of its file.
    pub files: Vec<EnvFile>,
    /// Working directory, if it exists there; otherwise the agent's own.
    pub cwd: Option<String>,
    /// How long the program outlives a session that ends without a goodbye, in milliseconds.
    pub lease_ms: u64,
    /// Ticket that a rank proves to its coordinator; the first line of its standard input.
    pub ticket: Option<Secret>,
}

/// The program to run.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum OrderedProgram {
    /// `jackalope-rank` of the agent's own installation, with its ticket.
    Rank,
    /// A program of the machine, looked up in `PATH`.
    Other(String),
}

/// A file that is written for a program and removed with it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct EnvFile {
    /// Variable that holds the file's path.
    pub variable: String,
    /// Content of the file.
    pub content: String,
}

/// State of a program that an agent supervises.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct ProgramStatus {
    /// Name of the program.
    pub name: String,
    /// Process id of the program.
    pub pid: u32,
    /// Whether a session owns the program now.
    pub is_owned: bool,
    /// Time since the program's start, in milliseconds.
    pub age_ms: u64,
}

/// An output stream of a program.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}
