//! Errors in hostfiles, and hints for correcting them.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use jackalope_protocol::{Backend, counted};
use thiserror::Error;

/// Everything that is wrong with a hostfile.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub struct HostfileErrors {
    /// Path of the file.
    pub path: PathBuf,
    /// The errors in the order of the text; never empty.
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

/// One error in a hostfile.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HostfileError {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Part of the file, such as `hosts[1].rdma[0]`; empty for the whole file.
    pub entry: String,
    /// What is wrong with this part.
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

/// The ways in which a part of a hostfile can be wrong.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum Fault {
    /// The file is larger than any hostfile.
    #[error("the file has {found} bytes, a hostfile at most {max}")]
    TooLarge {
        /// Size of the file in bytes.
        found: usize,
        /// Maximum size in bytes.
        max: usize,
    },
    /// Invalid JSON.
    #[error("expected {expected}, found {}", found.map_or("the end of the file".to_owned(), |c| format!("{c:?}")))]
    Syntax {
        /// What is allowed at this position.
        expected: &'static str,
        /// Character that was found; `None` at the end of the file.
        found: Option<char>,
    },
    /// A value of the wrong type.
    #[error("expected {expected}, found {found}")]
    Kind {
        /// Type that is expected.
        expected: &'static str,
        /// What was found.
        found: String,
    },
    /// An unknown key.
    #[error("unknown key {found:?}")]
    UnknownKey {
        /// The key.
        found: String,
        /// The most similar known key, if one is similar.
        nearest: Option<&'static str>,
        /// All known keys.
        known: &'static [&'static str],
    },
    /// A key that occurs twice in one object.
    #[error("the key {key:?} occurs twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A required key that is missing.
    #[error("the key {key:?} is missing")]
    MissingKey {
        /// The key.
        key: &'static str,
    },
    /// The file lists no machines.
    #[error("there are no hosts")]
    NoHosts,
    /// The file lists more machines than a group can have.
    #[error("{found} hosts, at most {max}")]
    TooManyHosts {
        /// Number of hosts in the file.
        found: usize,
        /// Maximum number of hosts.
        max: usize,
    },
    /// `ssh` is empty.
    #[error("the name for ssh is empty")]
    EmptySsh,
    /// `ssh` would take the value as an option, or the value contains blanks.
    #[error("{found:?} is not a valid name for ssh")]
    BadSsh {
        /// The text.
        found: String,
    },
    /// Not the name of a machine.
    #[error("{found:?} is not a valid name of a machine")]
    BadHost {
        /// The text.
        found: String,
    },
    /// Not an IP address.
    #[error("{found:?} is not a valid IP address")]
    BadIp {
        /// The text.
        found: String,
    },
    /// An address that occurs twice in one list.
    #[error("{ip} occurs twice in this list")]
    DuplicateIp {
        /// The address.
        ip: IpAddr,
    },
    /// Not of the form `host:port`.
    #[error("{found:?} is not a valid address with a port")]
    BadListen {
        /// The text.
        found: String,
    },
    /// Not a port number.
    #[error("{found} is not a valid port")]
    BadPort {
        /// The text after the last colon.
        found: String,
    },
    /// Two connections listen on the same address and port.
    #[error("{listen} is taken by {first}")]
    DuplicateListen {
        /// The address and port.
        listen: String,
        /// The entry that already has this address and port.
        first: String,
    },
    /// The lists of connections differ in length.
    #[error("{}, but {expected} at {first}", counted(found, "connection"))]
    ConnectionCount {
        /// Length of this list.
        found: usize,
        /// Length of the first list.
        expected: usize,
        /// The first list.
        first: String,
    },
    /// An unknown transport.
    #[error("unknown backend {found:?}")]
    UnknownBackend {
        /// The text.
        found: String,
    },
    /// Not of the form `NAME=value`.
    #[error("{found:?} has no `=`")]
    EnvWithoutValue {
        /// The text.
        found: String,
    },
    /// Not a valid name for an environment variable.
    #[error("{found:?} cannot name a variable")]
    BadEnvName {
        /// The text before `=`.
        found: String,
    },
    /// A row of devices whose length is not the number of hosts.
    #[error("{} for {}", counted(found, "device"), counted(expected, "host"))]
    DeviceCount {
        /// Length of the row.
        found: usize,
        /// Number of hosts.
        expected: usize,
    },
    /// No devices are named here, although other hosts name theirs or the backend needs them.
    #[error("no devices are named here, but {needed_by}")]
    DevicesMissing {
        /// Reason why devices are needed.
        needed_by: DevicesNeededBy,
    },
    /// A rank names a device towards itself.
    #[error("a device towards itself: {found:?}, expected null")]
    OwnDevice {
        /// The device.
        found: String,
    },
    /// A device name that is empty or contains blanks.
    #[error("{found:?} is not a valid device")]
    BadDevice {
        /// The text.
        found: String,
    },
    /// A rank names fewer devices towards another rank than that one names in return, although a
    /// cable has two ends.
    #[error("{here} of {} towards rank {to}: the way back is at {back}", counted(there, "device"))]
    OneWay {
        /// The other rank.
        to: usize,
        /// Number of devices in this entry.
        here: usize,
        /// Number of devices in the entry `back`.
        there: usize,
        /// Entry with the other rank's devices.
        back: String,
    },
    /// The other ranks have no address of rank 0.
    #[error("rank 0 has no address that the other machines can reach")]
    RankZeroUnreachable,
}

/// Why a row of devices is required.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DevicesNeededBy {
    /// The file's backend requires it.
    Backend(Backend),
    /// Other hosts have rows.
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
    /// Returns a hint for correcting the fault.
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

    /// Returns the hint for a fault for which there is only one hint, whatever the file contains.
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
            Fault::BadHost { .. } => "write a name such as \"mac2.local\", or an address",
            Fault::BadIp { .. } => {
                "write a numeric address such as \"10.254.0.1\", without port, mask or zone; each of \
                 its four numbers is at most 255"
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

/// Returns an example of a key and its value.
fn example(key: &str) -> &'static str {
    match key {
        "ssh" => "\"ssh\": \"mac2\", what you type after `ssh`",
        _ => "\"hosts\": [{\"ssh\": \"mac1\", \"ips\": [\"10.0.0.1\"]}]",
    }
}
