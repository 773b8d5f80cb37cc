//! What is wrong with the machines that a command names.

use std::io;
use std::net::AddrParseError;

use jackalope_fleet::discovery::DiscoverError;
use jackalope_fleet::hostfile::{Fault, HostfileErrors};
use jackalope_protocol::counted;
use thiserror::Error;

/// Instructions for making a machine answer.
pub const HOW_TO_ANSWER: &str = "on each machine run `jackalope agent --announce`, which \
needs this machine's secret and must trust it (`jackalope bootstrap HOST` sets up both); on macOS \
allow jackalope under System \
     Settings, Privacy & Security, Local Network";

/// What is wrong with the machines that a command names.
#[derive(Debug, Error)]
pub enum HostsError {
    /// There is no such file.
    #[error("there is no hostfile {path}\nhint: `jackalope hosts new` makes one")]
    NoHostfile {
        /// Path of the file.
        path: String,
    },
    /// The file is too long.
    #[error("{path} has {num_bytes} bytes, which is too long for a hostfile")]
    TooLong {
        /// Path of the file.
        path: String,
        /// Length of the file in bytes.
        num_bytes: u64,
    },
    /// The file cannot be read.
    #[error("reading {path}: {source}")]
    Read {
        /// Path of the file.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// The file is malformed.
    #[error(transparent)]
    Hostfile(#[from] HostfileErrors),
    /// The list has an empty entry.
    #[error("`{list}` names an empty host\nhint: separate names by single commas")]
    EmptyName {
        /// The list.
        list: String,
    },
    /// No machine can have this name.
    #[error("{0}\nhint: write what you type after `ssh`: `mac2`, `user@10.0.0.2`")]
    Name(Fault),
    /// An address is malformed.
    #[error("{text:?} of `{host}` is not a valid IP address: {source}")]
    Address {
        /// The address.
        text: String,
        /// The machine.
        host: String,
        /// The cause.
        source: AddrParseError,
    },
    /// This machine cannot look for others.
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    /// Fewer machines answered than requested.
    #[error(
        "found only {}, including this one{}\nhint: {HOW_TO_ANSWER}",
        counted(*num_found, "machine"), strangers(*num_strangers)
    )]
    TooFew {
        /// Number of machines that answered, with this one.
        num_found: usize,
        /// Number of machines that answered with another secret.
        num_strangers: usize,
    },
}

fn strangers(num_strangers: usize) -> String {
    match num_strangers {
        0 => String::new(),
        num => format!(", {num} with another secret (`jackalope discover` lists them)"),
    }
}
