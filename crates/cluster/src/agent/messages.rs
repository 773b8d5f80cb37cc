//! What agents and their clients say.

use std::net::SocketAddr;

use jackalope_protocol::Secret;
use serde::{Deserialize, Serialize};

use crate::facts::NodeFacts;
use crate::platform::MemoryPressure;

/// To an agent.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum ToAgent {
    /// The first word of a session: who speaks. A client that connects again owns what it owned over
    /// its earlier connection, whether the agent has noticed the end of that one or not.
    Hello {
        /// Drawn by the client, once.
        client: u64,
    },
    /// Run this, or take over the program that runs so already.
    Start {
        /// Given back with all news of this program, so that those of an earlier one of the same
        /// name are told apart.
        tag: u64,
        /// The program.
        order: Order,
    },
    /// Take over a program that was ours; if it does not run any more, say how it ended.
    Resume {
        /// Its name.
        name: String,
        /// Its process.
        pid: u32,
        /// As in [`ToAgent::Start`].
        tag: u64,
        /// Start time of that process, from [`FromAgent::Started`]. An agent that replaced another
        /// one takes the program over if the process with this pid has this start time.
        began: Option<String>,
        /// The original order.
        order: Order,
    },
    /// Send it a signal, by number.
    Signal {
        /// Its name.
        name: String,
        /// As in `kill`.
        signal: i32,
    },
    /// Write to its standard input.
    Input {
        /// Its name.
        name: String,
        /// What to write; nothing closes the input.
        bytes: Vec<u8>,
    },
    /// End it at once.
    Kill {
        /// Its name.
        name: String,
    },
    /// Tell about the machine.
    Facts,
    /// Tell about the programs.
    Status,
    /// As the first word: this connection speaks to the library, see [`crate::exchange`].
    Library,
    /// Sent once a second.
    Beat,
    /// The session ends on purpose: its programs end with it.
    Bye,
    /// End the agent and everything it looks after.
    Stop,
    /// Tell how the machine's memory is.
    Memory,
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
        /// At most four addresses; a refused connection counts as an answer.
        targets: Vec<SocketAddr>,
        /// How long an answer may take, in milliseconds.
        deadline_ms: u64,
    },
}

/// Maximum number of addresses in one [`ToAgent::Probe`].
pub(super) const PROBE_TARGETS_MAX: usize = 4;

/// From an agent.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum FromAgent {
    /// It runs.
    Started {
        /// Its name.
        name: String,
        /// As in [`ToAgent::Start`].
        tag: u64,
        /// Its process.
        pid: u32,
        /// Start time of the process, as its system reports it.
        began: Option<String>,
    },
    /// It wrote a line.
    Line {
        /// Its name.
        name: String,
        /// Where to.
        stream: Stream,
        /// Without its end.
        text: String,
    },
    /// It ended, or could not be started.
    Ended {
        /// Its name.
        name: String,
        /// As in [`ToAgent::Start`].
        tag: u64,
        /// In words: `exit status 1`, `killed by signal 9 (…)`.
        exit: String,
        /// As shells count: 128 and the signal.
        code: i32,
        /// The end of what it wrote to its standard error.
        last_words: String,
    },
    /// The machine.
    Facts(NodeFacts),
    /// Its programs.
    Status(Vec<ProgramStatus>),
    /// Sent once a second.
    Beat,
    /// How its memory is, if it tells.
    Memory(Option<MemoryPressure>),
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
    /// Unique on the machine.
    pub name: String,
    /// What to run.
    pub program: OrderedProgram,
    /// Its arguments.
    pub args: Vec<String>,
    /// Added to the agent's environment.
    pub env: Vec<(String, String)>,
    /// Files that variables name.
    pub files: Vec<EnvFile>,
    /// Where to run it, if that is there; the agent's own folder otherwise.
    pub cwd: Option<String>,
    /// How long it outlives a session that ends without a word, in milliseconds.
    pub lease_ms: u64,
    /// Ticket that a rank proves to its coordinator; the first line of its standard input.
    pub ticket: Option<Secret>,
}

/// What to run.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum OrderedProgram {
    /// `jackalope-rank` of the agent's own installation, with its ticket.
    Rank,
    /// A program of the machine, looked for as a shell does.
    Other(String),
}

/// A file that is written for a program and removed with it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct EnvFile {
    /// The variable that holds its path.
    pub variable: String,
    /// What is in it.
    pub content: String,
}

/// A program an agent looks after.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct ProgramStatus {
    /// Its name.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// Whether a session holds it now.
    pub is_owned: bool,
    /// How long it has run, in milliseconds.
    pub age_ms: u64,
}

/// Where a program writes.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}
