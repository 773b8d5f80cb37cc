//! Writes a hostfile as text in any of the shapes. Every output can be read again.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use jackalope_protocol::counted;
use serde_json::json;
use thiserror::Error;

use super::{Host, Hostfile, HostfileErrors, HostfileShape, ListenAddr};

/// Port numbers of a ring, assigned as by `mlx.launch`: ascending over ranks, their addresses, and
/// the connections of each address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RingPorts {
    /// The first port.
    pub first: u16,
    /// Number of connections over each address; at least 1.
    pub connections: u16,
}

impl Default for RingPorts {
    fn default() -> RingPorts {
        RingPorts { first: 32_323, connections: 1 }
    }
}

/// A hostfile converted to text.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Converted {
    /// The text, with a newline at the end.
    pub text: String,
    /// Parts of the hostfile that the shape cannot represent.
    pub lost: Vec<Loss>,
}

/// A part of a hostfile that is lost in a conversion.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Loss {
    /// Names for `ssh`.
    Names,
    /// Addresses.
    Addresses,
    /// RDMA devices.
    Devices,
    /// The backend.
    Backend,
    /// Environment variables.
    Envs,
    /// Ports on which the ring listens.
    Ports,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Loss::Names => "names for ssh",
            Loss::Addresses => "addresses",
            Loss::Devices => "RDMA devices",
            Loss::Backend => "the backend",
            Loss::Envs => "variables",
            Loss::Ports => "ports",
        })
    }
}

/// Reason why a hostfile cannot be written in a shape.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum ConvertError {
    /// A rank has neither a name for `ssh` nor an address.
    #[error("rank {rank} has neither a name nor an address")]
    NoName {
        /// The rank.
        rank: usize,
    },
    /// A rank has no address, which a ring needs.
    #[error("rank {rank} ({name}) has no address")]
    NoAddress {
        /// The rank.
        rank: usize,
        /// Name of the rank's machine.
        name: String,
    },
    /// The ranks of a ring must have the same number of addresses.
    #[error("rank {rank} ({name}) has {}, rank 0 has {expected}", counted(found, "address"))]
    UnevenAddresses {
        /// The rank.
        rank: usize,
        /// Name of the rank's machine.
        name: String,
        /// Number of the rank's addresses.
        found: usize,
        /// Number of addresses of rank 0.
        expected: usize,
    },
    /// The ring needs more ports than there are.
    #[error("{} from {first} on would exceed 65535", counted(needed, "port"))]
    OutOfPorts {
        /// Number of ports needed.
        needed: usize,
        /// First port.
        first: u16,
    },
    /// A rank has no devices, which a device matrix needs.
    #[error("rank {rank} ({name}) has no RDMA devices")]
    NoDevices {
        /// The rank.
        rank: usize,
        /// Name of the rank's machine.
        name: String,
    },
    /// The result would be an invalid hostfile.
    #[error("the result would not be valid: {0}")]
    Illegal(HostfileErrors),
}

impl ConvertError {
    /// Returns a hint for avoiding the error.
    pub fn hint(&self) -> String {
        match self {
            ConvertError::NoName { .. } => {
                "a device matrix names no machines: start from a file that does".to_owned()
            }
            ConvertError::NoAddress { .. } => "add its addresses to \"ips\"".to_owned(),
            ConvertError::UnevenAddresses { expected, .. } => {
                let addresses = counted(expected, "address");
                format!("list {addresses} for every host, one for each connection")
            }
            ConvertError::OutOfPorts { .. } => {
                "begin with a lower port, or use fewer connections".to_owned()
            }
            ConvertError::NoDevices { .. } => {
                "add \"rdma\" to every host: null for itself, a device for each other rank"
                    .to_owned()
            }
            ConvertError::Illegal(errors) => errors.errors[0].fault.hint(),
        }
    }
}

/// Writes `hostfile` in `shape`. `ports` assigns the ports of a ring; without it, the hostfile's
/// own ports are kept, or MLX's default ones are used.
///
/// # Errors
/// [`ConvertError`] if the shape needs something that the hostfile does not contain.
pub fn convert(
    hostfile: &Hostfile,
    shape: HostfileShape,
    ports: Option<RingPorts>,
) -> Result<Converted, ConvertError> {
    let text = match shape {
        HostfileShape::Array => format!("{}\n", hosts_text(hostfile, "")?),
        HostfileShape::Object => object_text(hostfile)?,
        HostfileShape::Ring => ring_text(hostfile, ports)?,
        HostfileShape::Matrix => matrix_text(hostfile)?,
    };
    Hostfile::parse(&text, Path::new("result")).map_err(ConvertError::Illegal)?;
    Ok(Converted { text, lost: lost(hostfile, shape) })
}

/// Returns the parts of a hostfile that `shape` cannot represent.
fn lost(hostfile: &Hostfile, shape: HostfileShape) -> Vec<Loss> {
    let any = |is_there: fn(&Host) -> bool| hostfile.hosts.iter().any(is_there);
    let said = [
        (Loss::Names, any(|host| !host.ssh.is_empty())),
        (Loss::Addresses, any(|host| !host.ips.is_empty())),
        (Loss::Devices, any(|host| !host.rdma.is_empty())),
        (Loss::Backend, hostfile.backend.is_some()),
        (Loss::Envs, !hostfile.envs.is_empty()),
        (Loss::Ports, any(|host| !host.listen.is_empty())),
    ];
    let has_place: &[Loss] = match shape {
        HostfileShape::Array => &[Loss::Names, Loss::Addresses, Loss::Devices],
        HostfileShape::Object => {
            &[Loss::Names, Loss::Addresses, Loss::Devices, Loss::Backend, Loss::Envs]
        }
        HostfileShape::Ring => &[Loss::Addresses, Loss::Ports],
        HostfileShape::Matrix => &[Loss::Devices],
    };
    let lost = said.into_iter().filter(|(loss, is_said)| *is_said && !has_place.contains(loss));
    lost.map(|(loss, _)| loss).collect()
}

/// Writes the object form, even if hosts lack addresses or devices.
///
/// # Errors
/// If a host has neither a name nor an address.
pub fn object_text(hostfile: &Hostfile) -> Result<String, ConvertError> {
    let mut lines = Vec::new();
    if let Some(backend) = hostfile.backend {
        lines.push(format!("  \"backend\": {}", json!(backend.name())));
    }
    if !hostfile.envs.is_empty() {
        let envs = hostfile.envs.iter().map(|(name, value)| format!("{name}={value}"));
        lines.push(format!("  \"envs\": {}", list(envs.map(|env| json!(env).to_string()))));
    }
    lines.push(format!("  \"hosts\": {}", hosts_text(hostfile, "  ")?));
    Ok(format!("{{\n{}\n}}\n", lines.join(",\n")))
}

/// Writes the list of host objects, one per line.
fn hosts_text(hostfile: &Hostfile, indent: &str) -> Result<String, ConvertError> {
    let mut lines = Vec::new();
    for (rank, host) in hostfile.hosts.iter().enumerate() {
        if host.ssh.is_empty() && host.ips.is_empty() && host.listen.is_empty() {
            return Err(ConvertError::NoName { rank });
        }
        let ips = list(host.ips.iter().map(|ip| json!(ip).to_string()));
        let mut line = format!("{indent}  {{\"ssh\": {}, \"ips\": {ips}", json!(host.name()));
        if !host.rdma.is_empty() {
            line += &format!(", \"rdma\": {}", row_text(host));
        }
        lines.push(line + "}");
    }
    Ok(format!("[\n{}\n{indent}]", lines.join(",\n")))
}

fn row_text(host: &Host) -> String {
    let cells = host.rdma.iter().map(|devices| match devices.as_slice() {
        [] => "null".to_owned(),
        [device] => json!(device).to_string(),
        devices => list(devices.iter().map(|device| json!(device).to_string())),
    });
    list(cells)
}

fn matrix_text(hostfile: &Hostfile) -> Result<String, ConvertError> {
    let rows = hostfile.hosts.iter().enumerate().map(|(rank, host)| {
        if host.rdma.is_empty() {
            Err(ConvertError::NoDevices { rank, name: host.name() })
        } else {
            Ok(format!("  {}", row_text(host)))
        }
    });
    Ok(lines(&rows.collect::<Result<Vec<_>, _>>()?))
}

fn ring_text(hostfile: &Hostfile, ports: Option<RingPorts>) -> Result<String, ConvertError> {
    let is_numbered = hostfile.hosts.iter().all(|host| !host.listen.is_empty());
    let rows = match ports {
        None if is_numbered => hostfile.hosts.iter().map(|host| host.listen.clone()).collect(),
        ports => number(hostfile, ports.unwrap_or_default())?,
    };
    let rows: Vec<String> = rows
        .into_iter()
        .map(|row| list(row.iter().map(|listen| json!(listen.to_string()).to_string())))
        .map(|row| format!("  {row}"))
        .collect();
    Ok(lines(&rows))
}

/// Returns the addresses and ports on which each rank listens.
fn number(hostfile: &Hostfile, ports: RingPorts) -> Result<Vec<Vec<ListenAddr>>, ConvertError> {
    let addresses: Vec<Vec<String>> =
        hostfile.hosts.iter().map(|host| addresses(host, hostfile.is_local())).collect();
    let expected = addresses.first().map_or(0, Vec::len);
    for (rank, (host, own)) in hostfile.hosts.iter().zip(&addresses).enumerate() {
        let (name, found) = (host.name(), own.len());
        if found == 0 {
            return Err(ConvertError::NoAddress { rank, name });
        }
        if found != expected {
            return Err(ConvertError::UnevenAddresses { rank, name, found, expected });
        }
    }
    let connections = usize::from(ports.connections.max(1));
    let needed = addresses.len() * expected * connections;
    if 65_536 < usize::from(ports.first) + needed {
        return Err(ConvertError::OutOfPorts { needed, first: ports.first });
    }
    let mut next = u32::from(ports.first);
    let mut listen = |host: &String| {
        let port = u16::try_from(next).expect("the last port was checked");
        next += 1;
        ListenAddr { host: host.clone(), port }
    };
    Ok(addresses
        .iter()
        .map(|own| {
            let each = own.iter().flat_map(|host| std::iter::repeat_n(host, connections));
            each.map(&mut listen).collect()
        })
        .collect())
}

/// Returns the addresses of a rank. If all ranks run on this machine, a rank without one gets
/// loopback.
fn addresses(host: &Host, is_local: bool) -> Vec<String> {
    let mut own: Vec<String> = host.ips.iter().map(IpAddr::to_string).collect();
    for listen in &host.listen {
        if !own.contains(&listen.host) {
            own.push(listen.host.clone());
        }
    }
    if own.is_empty() && is_local {
        own.push(Ipv4Addr::LOCALHOST.to_string());
    }
    own
}

fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(", "))
}

fn lines(rows: &[String]) -> String {
    format!("[\n{}\n]\n", rows.join(",\n"))
}
