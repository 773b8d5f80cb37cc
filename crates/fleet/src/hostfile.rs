//! The machines of a cluster, as a hostfile lists them.
//!
//! A rank is a position in [`Hostfile::hosts`]. Several entries may name the same machine, which
//! then runs several ranks. Four shapes of file are read and written: that of `mlx.launch` with or
//! without an enclosing object, that of MLX's ring, and that of JACCL. The shape is recognised from
//! the content. Pure: nothing here opens a file.

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
pub use finding::HostfileWarning;
pub use lint::lint;
pub use words::ssh_name;
pub use write::object_text;
pub use write::{ConvertError, Converted, Loss, RingPorts, convert};

use crate::shell::is_here;

/// Maximum length of a hostfile in bytes.
const TEXT_BYTES_MAX: usize = 256 << 10;

/// Maximum number of ranks in a group.
const HOSTS_MAX: usize = 64;

/// Maximum number of errors that are reported for one file.
const ERRORS_MAX: usize = 40;

/// The shapes of hostfiles.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum HostfileShape {
    /// A list of `{ssh, ips, rdma}`.
    #[default]
    Array,
    /// `{backend, envs, hosts}`, where `hosts` is such a list.
    Object,
    /// `"host:port"` for each rank, or a list of these for each rank: the format of MLX's ring.
    Ring,
    /// For each rank, its devices towards every rank: the format of JACCL.
    Matrix,
}

impl HostfileShape {
    /// Every shape.
    pub const ALL: [HostfileShape; 4] =
        [HostfileShape::Array, HostfileShape::Object, HostfileShape::Ring, HostfileShape::Matrix];

    /// Returns the shape's name, as users type it on a command line.
    pub fn name(self) -> &'static str {
        match self {
            HostfileShape::Array => "array",
            HostfileShape::Object => "object",
            HostfileShape::Ring => "ring",
            HostfileShape::Matrix => "matrix",
        }
    }
}

/// The machines of a cluster, with one entry for each rank.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Hostfile {
    /// Transport that the file asks for.
    pub backend: Option<Backend>,
    /// Environment variables of every rank, in the order of the file.
    pub envs: Vec<(String, String)>,
    /// One entry for each rank.
    pub hosts: Vec<Host>,
}

/// The machine of one rank.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Host {
    /// Argument for `ssh`: a name from the user's configuration, an address, or `user@host`. Empty
    /// if the file names only addresses.
    pub ssh: String,
    /// Addresses at which other ranks can reach the machine, the preferred one first.
    pub ips: Vec<IpAddr>,
    /// RDMA devices towards each rank, by rank. An entry is empty for the rank itself and where
    /// there is no cable; the list is empty if the file names no devices.
    pub rdma: Vec<Vec<String>>,
    /// Addresses on which MLX's ring listens, from lists of `host:port`.
    pub listen: Vec<ListenAddr>,
}

impl Host {
    /// Returns the RDMA devices of this host towards the ranks at these positions of the hostfile,
    /// each once.
    pub fn rdma_towards(&self, positions: impl IntoIterator<Item = usize>) -> Vec<String> {
        let mut devices: Vec<String> = Vec::new();
        for device in positions.into_iter().filter_map(|to| self.rdma.get(to)).flatten() {
            if !devices.contains(device) {
                devices.push(device.clone());
            }
        }
        devices
    }
}

/// An address of the form `host:port`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ListenAddr {
    /// IP address or host name.
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
    /// Parses a hostfile. `path` is the file's path, for error messages.
    ///
    /// # Errors
    /// [`HostfileErrors`] with everything that is wrong, each with its line and column.
    pub fn parse(text: &str, path: &Path) -> Result<Hostfile, HostfileErrors> {
        Hostfile::parse_shape(text, path).map(|(hostfile, _)| hostfile)
    }

    /// Like [`Hostfile::parse`], and also returns the shape of the file.
    ///
    /// # Errors
    /// [`HostfileErrors`] with everything that is wrong, each with its line and column.
    pub fn parse_shape(
        text: &str,
        path: &Path,
    ) -> Result<(Hostfile, HostfileShape), HostfileErrors> {
        let mut found = Vec::new();
        let mut shape = HostfileShape::default();
        let mut hostfile = Hostfile::default();
        if text.len() <= TEXT_BYTES_MAX {
            let raw = read::read(text, &mut found);
            shape = raw.shape;
            // Entries that could not be read would only cause further errors.
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

    /// Returns true if every rank runs on the machine that reads the file.
    pub fn is_local(&self) -> bool {
        self.hosts.iter().all(Host::is_local)
    }
}

/// Returns line and column of a byte position, both starting at 1.
fn place(text: &str, at: usize) -> (usize, usize) {
    let before = &text[..at];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

impl Host {
    /// Returns true if this is the machine that reads the file.
    pub fn is_local(&self) -> bool {
        is_here(&self.ssh)
    }

    /// Returns true if both entries name the same machine, judging by their names for `ssh`, or by
    /// their addresses if each has only one.
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

    /// Returns the name of the machine for messages.
    pub fn name(&self) -> String {
        match (self.ssh.is_empty(), self.ips.first(), self.listen.first()) {
            (false, ..) => self.ssh.clone(),
            (true, Some(ip), _) => ip.to_string(),
            (true, None, Some(listen)) => listen.host.clone(),
            (true, None, None) => "?".to_owned(),
        }
    }
}
