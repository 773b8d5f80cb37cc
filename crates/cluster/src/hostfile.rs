//! The machines of a cluster, as a hostfile names them.
//!
//! A rank is a position in [`Hostfile::hosts`]. Several entries may name the same machine, which then
//! runs several ranks. Four shapes of file are read and written, told apart by what is in them: those
//! of `mlx.launch`, of MLX's ring and of JACCL. Pure: nothing here opens a file.

mod check;
mod error;
mod finding;
mod json;
mod lint;
mod read;
#[cfg(test)]
mod tests;
mod words;
mod write;

use std::fmt;
use std::net::IpAddr;
use std::path::Path;

use jackalope_protocol::Backend;

pub use error::{DevicesNeededBy, Fault, HostfileError, HostfileErrors};
pub use finding::Finding;
pub use lint::lint;
pub(crate) use write::object_text;
pub use write::{ConvertError, Converted, Loss, RingPorts, convert};

use crate::shell::is_here;

/// Longest text that is read as a hostfile.
const TEXT_BYTES_MAX: usize = 256 << 10;

/// Most ranks of a group.
const HOSTS_MAX: usize = 64;

/// Most errors that are told of one file.
const ERRORS_MAX: usize = 40;

/// The shapes of hostfiles.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Shape {
    /// A list of `{ssh, ips, rdma}`.
    #[default]
    Array,
    /// `{backend, envs, hosts}` around such a list.
    Object,
    /// `"host:port"` for each rank, or a list of them for each: what MLX's ring reads.
    Ring,
    /// The device of each rank towards each rank: what JACCL reads.
    Matrix,
}

impl Shape {
    /// Every shape.
    pub const ALL: [Shape; 4] = [Shape::Array, Shape::Object, Shape::Ring, Shape::Matrix];

    /// The word people type.
    pub fn name(self) -> &'static str {
        match self {
            Shape::Array => "array",
            Shape::Object => "object",
            Shape::Ring => "ring",
            Shape::Matrix => "matrix",
        }
    }
}

/// A cluster's machines, one entry for each rank.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Hostfile {
    /// The transport the file asks for.
    pub backend: Option<Backend>,
    /// Set for every rank, in the order of the file.
    pub envs: Vec<(String, String)>,
    /// One for each rank.
    pub hosts: Vec<Host>,
}

/// One rank's machine.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Host {
    /// What `ssh` is given: a name of the user's configuration, an address, `user@host`. Empty where
    /// the file names addresses only.
    pub ssh: String,
    /// Addresses that other ranks may reach it at, the preferred one first.
    pub ips: Vec<IpAddr>,
    /// RDMA devices towards each rank, by rank; empty towards itself and where there is no cable.
    /// No entries at all where the file names no devices.
    pub rdma: Vec<Vec<String>>,
    /// Where MLX's ring listens, from lists of `host:port`.
    pub listen: Vec<ListenAddr>,
}

/// `host:port`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ListenAddr {
    /// An address or a name.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ListenAddr { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

impl Hostfile {
    /// Reads a hostfile's text. `path` is where it came from, for errors.
    ///
    /// # Errors
    /// Everything that is wrong with it, each with its place.
    pub fn parse(text: &str, path: &Path) -> Result<Hostfile, HostfileErrors> {
        Hostfile::parse_shape(text, path).map(|(hostfile, _)| hostfile)
    }

    /// The same, and which shape it has.
    ///
    /// # Errors
    /// Everything that is wrong with it, each with its place.
    pub fn parse_shape(text: &str, path: &Path) -> Result<(Hostfile, Shape), HostfileErrors> {
        let mut found = Vec::new();
        let mut shape = Shape::default();
        let mut hostfile = Hostfile::default();
        if text.len() <= TEXT_BYTES_MAX {
            let raw = read::read(text, &mut found);
            shape = raw.shape;
            // Entries that could not be read would only make more faults.
            if found.is_empty() {
                hostfile = check::check(raw, &mut found);
            }
        } else {
            let fault = Fault::TooLarge { found: text.len(), max: TEXT_BYTES_MAX };
            found.push(read::Found { at: 0, entry: String::new(), fault });
        }
        if found.is_empty() {
            return Ok((hostfile, shape));
        }
        found.sort_by_key(|it| it.at);
        found.truncate(ERRORS_MAX);
        let errors = found.into_iter().map(|read::Found { at, entry, fault }| {
            let (line, column) = place(text, at);
            HostfileError { line, column, entry, fault }
        });
        Err(HostfileErrors { path: path.to_path_buf(), errors: errors.collect() })
    }

    /// True if every rank runs on the machine that reads the file.
    pub fn is_local(&self) -> bool {
        self.hosts.iter().all(Host::is_local)
    }
}

/// Line and character of a byte position, from 1.
fn place(text: &str, at: usize) -> (usize, usize) {
    let before = &text[..at];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

impl Host {
    /// True if this is the machine that reads the file.
    pub fn is_local(&self) -> bool {
        is_here(&self.ssh)
    }

    /// True if both are the same machine, as far as their names for `ssh` tell, or the only addresses
    /// that they have.
    pub fn is_same_machine(&self, other: &Host) -> bool {
        let machine = |host: &Host| -> Option<String> {
            let only = host.ips.first().filter(|_| host.ips.len() == 1);
            let named = (!host.ssh.is_empty()).then(|| host.ssh.clone());
            let name = named.or_else(|| only.map(ToString::to_string))?;
            let name = name.rsplit_once('@').map_or(name.as_str(), |(_, name)| name);
            Some(if is_here(name) { String::new() } else { name.to_lowercase() })
        };
        machine(self).is_some_and(|it| machine(other) == Some(it))
    }

    /// What people call it.
    pub fn name(&self) -> String {
        match (self.ssh.is_empty(), self.ips.first(), self.listen.first()) {
            (false, ..) => self.ssh.clone(),
            (true, Some(ip), _) => ip.to_string(),
            (true, None, Some(listen)) => listen.host.clone(),
            (true, None, None) => "?".to_owned(),
        }
    }
}
