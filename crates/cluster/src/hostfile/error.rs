//! What is wrong with a hostfile, and what to do about it.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use jackalope_protocol::Backend;
use thiserror::Error;

/// Everything that is wrong with a hostfile.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub struct HostfileErrors {
    /// The file.
    pub path: PathBuf,
    /// In the order of the text; never empty.
    pub errors: Vec<HostfileError>,
}

impl fmt::Display for HostfileErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (idx, error) in self.errors.iter().enumerate() {
            let break_ = if idx == 0 { "" } else { "\n" };
            write!(f, "{break_}{}:{error}\nhint: {}", self.path.display(), error.fault.hint())?;
        }
        Ok(())
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HostfileError {
    /// Line, from 1.
    pub line: usize,
    /// Character in the line, from 1.
    pub column: usize,
    /// Which part of the file: `hosts[1].rdma[0]`; empty for the whole.
    pub entry: String,
    /// What is wrong there.
    pub fault: Fault,
}

impl fmt::Display for HostfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HostfileError { line, column, entry, fault } = self;
        write!(f, "{line}:{column}: ")?;
        if !entry.is_empty() {
            write!(f, "{entry}: ")?;
        }
        write!(f, "{fault}")
    }
}

/// What can be wrong with a part of a hostfile.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum Fault {
    /// The file is far larger than a hostfile can be.
    #[error("the file has {found} bytes, a hostfile at most {max}")]
    TooLarge {
        /// Bytes of the file.
        found: usize,
        /// Bytes that are read.
        max: usize,
    },
    /// No JSON.
    #[error("expected {expected}, found {}", found.map_or("the end of the file".to_owned(), |c| format!("{c:?}")))]
    Syntax {
        /// What could stand there.
        expected: &'static str,
        /// What stands there.
        found: Option<char>,
    },
    /// A value of another kind than belongs there.
    #[error("expected {expected}, found {found}")]
    Kind {
        /// What belongs there.
        expected: &'static str,
        /// What stands there.
        found: String,
    },
    /// A name that means nothing.
    #[error("unknown key {found:?}")]
    UnknownKey {
        /// The name.
        found: String,
        /// The known name that is nearest, if one is near.
        nearest: Option<&'static str>,
        /// All known names.
        known: &'static [&'static str],
    },
    /// A name that stands twice in one object.
    #[error("the key {key:?} stands here twice")]
    DuplicateKey {
        /// The name.
        key: String,
    },
    /// A name that must be there and is not.
    #[error("the key {key:?} is missing")]
    MissingKey {
        /// The name.
        key: &'static str,
    },
    /// No machine at all.
    #[error("there are no hosts")]
    NoHosts,
    /// More machines than a group can have.
    #[error("{found} hosts, at most {max}")]
    TooManyHosts {
        /// Hosts of the file.
        found: usize,
        /// Hosts of a group.
        max: usize,
    },
    /// `ssh` is empty.
    #[error("the name for ssh is empty")]
    EmptySsh,
    /// `ssh` would be read as an option, or holds blanks.
    #[error("{found:?} is no name for ssh")]
    BadSsh {
        /// The text.
        found: String,
    },
    /// No IP address.
    #[error("{found:?} is no IP address")]
    BadIp {
        /// The text.
        found: String,
    },
    /// The same address twice in one list.
    #[error("{ip} stands twice in this list")]
    DuplicateIp {
        /// The address.
        ip: IpAddr,
    },
    /// No `host:port`.
    #[error("{found:?} is no address with a port")]
    BadListen {
        /// The text.
        found: String,
    },
    /// A port that is none.
    #[error("{found} is no port")]
    BadPort {
        /// The text after the last colon.
        found: String,
    },
    /// Two connections listen at one place.
    #[error("{listen} is taken by {first}")]
    DuplicateListen {
        /// The address and port.
        listen: String,
        /// The entry that has it first.
        first: String,
    },
    /// Lists of connections that differ in length.
    #[error("{found} connections, but {expected} at {first}")]
    ConnectionCount {
        /// Length of this list.
        found: usize,
        /// Length of the first list.
        expected: usize,
        /// The first list.
        first: String,
    },
    /// A transport nobody knows.
    #[error("unknown backend {found:?}")]
    UnknownBackend {
        /// The text.
        found: String,
    },
    /// No `NAME=value`.
    #[error("{found:?} has no `=`")]
    EnvWithoutValue {
        /// The text.
        found: String,
    },
    /// A variable that no shell accepts.
    #[error("{found:?} cannot name a variable")]
    BadEnvName {
        /// The text before `=`.
        found: String,
    },
    /// A row of devices that is not as long as there are hosts.
    #[error("{found} devices for {expected} hosts")]
    DeviceCount {
        /// Length of the row.
        found: usize,
        /// Number of hosts.
        expected: usize,
    },
    /// Devices are named elsewhere, or the backend needs them, and here there are none.
    #[error("no devices are named here, but {needed_by}")]
    DevicesMissing {
        /// Who needs them.
        needed_by: DevicesNeededBy,
    },
    /// A device towards oneself.
    #[error("a device towards itself: {found:?}, expected null")]
    OwnDevice {
        /// The device.
        found: String,
    },
    /// An empty device name, or one with blanks.
    #[error("{found:?} is no device")]
    BadDevice {
        /// The text.
        found: String,
    },
    /// A cable has two ends, and the file names fewer here than at the other rank.
    #[error("{here} of {there} devices towards rank {to}: the way back is at {back}")]
    OneWay {
        /// The other rank.
        to: usize,
        /// Devices named here.
        here: usize,
        /// Devices named there.
        there: usize,
        /// Where the way back stands.
        back: String,
    },
    /// Rank 0 cannot be found by the others.
    #[error("rank 0 has no address that the other machines can reach")]
    RankZeroUnreachable,
}

/// Why a row of devices is missed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DevicesNeededBy {
    /// The file's backend.
    Backend(Backend),
    /// Rows of other hosts.
    OtherHosts,
}

impl fmt::Display for DevicesNeededBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DevicesNeededBy::Backend(backend) => write!(f, "{} needs them", backend.name()),
            DevicesNeededBy::OtherHosts => f.write_str("other hosts have them"),
        }
    }
}

impl Fault {
    /// What to do.
    pub fn hint(&self) -> String {
        match self {
            Fault::UnknownKey { nearest: Some(nearest), .. } => format!("write {nearest:?}"),
            Fault::UnknownKey { known, .. } => format!("known keys: {}", known.join(", ")),
            Fault::MissingKey { key } => format!("add {}", example(key)),
            Fault::BadPort { .. } => "a port is a number from 1 to 65535".to_owned(),
            Fault::DeviceCount { expected, .. } => {
                format!("list {expected}: one for each rank, null for itself")
            }
            Fault::OneWay { to, back, .. } => format!(
                "a cable has two ends: name this one, towards rank {to}, or remove it at {back}"
            ),
            other => other.fixed_hint().to_owned(),
        }
    }

    /// Hints without anything of the file in them.
    fn fixed_hint(&self) -> &'static str {
        match self {
            Fault::TooLarge { .. } | Fault::TooManyHosts { .. } => "is this the right file?",
            Fault::Syntax { .. } | Fault::Kind { .. } => {
                "`jackalope hosts new --hosts a,b` prints a file to start from"
            }
            Fault::DuplicateKey { .. } => "remove one of them",
            Fault::NoHosts => "list at least one, for this machine {\"ssh\": \"127.0.0.1\"}",
            Fault::EmptySsh => "write what you type after `ssh`, or \"127.0.0.1\" for this machine",
            Fault::BadSsh { .. } => "write what you type after `ssh`: `mac2`, `user@10.0.0.2`",
            Fault::BadIp { .. } => {
                "write a numeric address such as \"10.254.0.1\", without port, mask or zone"
            }
            Fault::DuplicateIp { .. } => "list each address once",
            Fault::BadListen { .. } => {
                "write \"10.0.0.1:5555\", \"mac2:5555\" or \"[fd00::1]:5555\""
            }
            Fault::DuplicateListen { .. } => "give each connection a port of its own",
            Fault::ConnectionCount { .. } => "list as many connections for every rank",
            Fault::UnknownBackend { .. } => "tcp, ring, jaccl, jaccl-ring or nccl",
            Fault::EnvWithoutValue { .. } => "write \"NAME=value\"",
            Fault::BadEnvName { .. } => "letters, digits and `_`, and no digit in front",
            Fault::DevicesMissing { needed_by: DevicesNeededBy::Backend(_) } => {
                "add \"rdma\": [null, \"rdma_en5\"], one entry for each rank, null for itself"
            }
            Fault::DevicesMissing { .. } => "name devices for every host or for none",
            Fault::OwnDevice { .. } => "entry i of a host is its device towards rank i",
            Fault::BadDevice { .. } => "write a device such as \"rdma_en5\", or null",
            Fault::RankZeroUnreachable => {
                "give the first host its address in \"ips\", best its Ethernet address"
            }
            Fault::UnknownKey { .. }
            | Fault::MissingKey { .. }
            | Fault::BadPort { .. }
            | Fault::DeviceCount { .. }
            | Fault::OneWay { .. } => "see docs/hosts.md",
        }
    }
}

/// How a key looks in a file.
fn example(key: &str) -> &'static str {
    match key {
        "ssh" => "\"ssh\": \"mac2\", what you type after `ssh`",
        _ => "\"hosts\": [{\"ssh\": \"mac1\", \"ips\": [\"10.0.0.1\"]}]",
    }
}
