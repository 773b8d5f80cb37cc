//! Reads a hostfile from text: recognises its shape and reads its entries. The requirements between
//! entries are checked by [`super::check`].

use std::collections::BTreeSet;
use std::net::IpAddr;

use jackalope_protocol::Backend;

use super::error::Fault;
use super::json::{self, Key, Node, Value};
use super::words::{is_variable, listen_addr, nearest, ssh_name};
use super::{HOSTS_MAX, HostfileShape, ListenAddr};

/// `jaccl-ring` is read as JACCL with this variable, as MLX does.
const JACCL_RING: &str = "jaccl-ring";
const JACCL_RING_ENV: (&str, &str) = ("MLX_JACCL_RING", "1");

const FILE_KEYS: &[&str] = &["backend", "envs", "hosts"];
const HOST_KEYS: &[&str] = &["ssh", "ips", "rdma"];

/// A fault and its place.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) at: usize,
    pub(super) entry: String,
    pub(super) fault: Fault,
}

/// A value and its place in the text.
#[derive(Clone, Debug)]
pub(super) struct Placed<T> {
    pub(super) at: usize,
    pub(super) it: T,
}

/// The content of a hostfile. Each of its parts is legal by itself; the requirements between them
/// have not been checked.
#[derive(Debug, Default)]
pub(super) struct RawFile {
    pub(super) shape: HostfileShape,
    pub(super) backend: Option<Backend>,
    pub(super) envs: Vec<(String, String)>,
    pub(super) hosts: Vec<RawHost>,
}

/// One rank's entry.
#[derive(Debug, Default)]
pub(super) struct RawHost {
    pub(super) at: usize,
    pub(super) entry: String,
    pub(super) ssh: String,
    pub(super) ips: Vec<IpAddr>,
    /// The row of devices.
    pub(super) rdma: Option<Row>,
    pub(super) rdma_entry: String,
    pub(super) listen: Vec<Placed<ListenAddr>>,
}

/// A rank's devices towards each rank.
pub(super) type Row = Placed<Vec<Placed<Vec<String>>>>;

/// Reads as much as possible; collects faults in `found`.
pub(super) fn read(text: &str, found: &mut Vec<Found>) -> RawFile {
    let node = match json::parse(text) {
        Ok(node) => node,
        Err(json::SyntaxError { at, expected, found: character }) => {
            let fault = Fault::Syntax { expected, found: character };
            found.push(Found { at, entry: String::new(), fault });
            return RawFile::default();
        }
    };
    let mut reader = Reader { found };
    match node.value {
        Value::Object(entries) => reader.object(node.at, entries),
        Value::Array(nodes) => reader.list(node.at, nodes),
        other => {
            reader.wrong_kind(node.at, "", "a list or an object", &other);
            RawFile::default()
        }
    }
}

struct Reader<'a> {
    found: &'a mut Vec<Found>,
}

impl Reader<'_> {
    fn fault(&mut self, at: usize, entry: &str, fault: Fault) {
        self.found.push(Found { at, entry: entry.to_owned(), fault });
    }

    fn wrong_kind(&mut self, at: usize, entry: &str, expected: &'static str, found: &Value) {
        self.fault(at, entry, Fault::Kind { expected, found: found.describe() });
    }

    fn object(&mut self, at: usize, entries: Vec<(Key, Node)>) -> RawFile {
        let mut file = RawFile { shape: HostfileShape::Object, ..RawFile::default() };
        self.keys(&entries, "", FILE_KEYS);
        let mut has_hosts = false;
        for (key, node) in entries {
            match key.name.as_str() {
                "backend" => self.backend(node, &mut file),
                "envs" => self.envs(node, &mut file.envs),
                "hosts" => {
                    has_hosts = true;
                    file.hosts = self.hosts(node, "hosts");
                }
                _ => {}
            }
        }
        if !has_hosts {
            self.fault(at, "", Fault::MissingKey { key: "hosts" });
        }
        file
    }

    /// Reads a hostfile whose outermost value is a list: an array of hosts, a ring or a matrix.
    fn list(&mut self, at: usize, nodes: Vec<Node>) -> RawFile {
        let shape = shape_of(&nodes);
        let hosts = match shape {
            HostfileShape::Array | HostfileShape::Object => {
                self.hosts(Node { at, value: Value::Array(nodes) }, "")
            }
            HostfileShape::Ring => self.indexed(at, nodes, "", Self::ring_host),
            HostfileShape::Matrix => self.indexed(at, nodes, "", Self::matrix_host),
        };
        RawFile { shape, hosts, ..RawFile::default() }
    }

    fn hosts(&mut self, node: Node, entry: &str) -> Vec<RawHost> {
        match node.value {
            Value::Array(nodes) => self.indexed(node.at, nodes, entry, Self::host),
            other => {
                self.wrong_kind(node.at, entry, "a list of hosts", &other);
                Vec::new()
            }
        }
    }

    fn indexed(
        &mut self,
        at: usize,
        nodes: Vec<Node>,
        entry: &str,
        read: fn(&mut Self, Node, String) -> RawHost,
    ) -> Vec<RawHost> {
        if nodes.is_empty() {
            self.fault(at, entry, Fault::NoHosts);
        }
        if HOSTS_MAX < nodes.len() {
            let fault = Fault::TooManyHosts { found: nodes.len(), max: HOSTS_MAX };
            self.fault(at, entry, fault);
            return Vec::new();
        }
        let nodes = nodes.into_iter().enumerate();
        nodes.map(|(rank, node)| read(self, node, format!("{entry}[{rank}]"))).collect()
    }

    /// Reports unknown and duplicate keys.
    fn keys(&mut self, entries: &[(Key, Node)], entry: &str, known: &'static [&'static str]) {
        let mut seen = BTreeSet::new();
        for (key, _) in entries {
            if !known.contains(&key.name.as_str()) {
                let (found, nearest) = (key.name.clone(), nearest(&key.name, known));
                self.fault(key.at, entry, Fault::UnknownKey { found, nearest, known });
            } else if !seen.insert(&key.name) {
                self.fault(key.at, entry, Fault::DuplicateKey { key: key.name.clone() });
            }
        }
    }

    fn backend(&mut self, node: Node, file: &mut RawFile) {
        let (at, entry) = (node.at, "backend");
        match node.value {
            Value::Null => {}
            Value::String(name) if name.is_empty() => {}
            Value::String(name) if name == JACCL_RING => {
                file.backend = Some(Backend::Jaccl);
                let (name, value) = JACCL_RING_ENV;
                file.envs.insert(0, (name.to_owned(), value.to_owned()));
            }
            Value::String(name) => {
                file.backend = Backend::ALL.into_iter().find(|backend| backend.name() == name);
                if file.backend.is_none() {
                    self.fault(at, entry, Fault::UnknownBackend { found: name });
                }
            }
            other => self.wrong_kind(at, entry, "a string", &other),
        }
    }

    fn envs(&mut self, node: Node, envs: &mut Vec<(String, String)>) {
        for (idx, Placed { at, it }) in self.strings(node, "envs").into_iter().enumerate() {
            let entry = format!("envs[{idx}]");
            match it.split_once('=') {
                None => self.fault(at, &entry, Fault::EnvWithoutValue { found: it }),
                Some((name, _)) if !is_variable(name) => {
                    self.fault(at, &entry, Fault::BadEnvName { found: name.to_owned() });
                }
                Some((name, value)) => envs.push((name.to_owned(), value.to_owned())),
            }
        }
    }

    /// Reads a list of strings.
    fn strings(&mut self, node: Node, entry: &str) -> Vec<Placed<String>> {
        let Value::Array(nodes) = node.value else {
            self.wrong_kind(node.at, entry, "a list of strings", &node.value);
            return Vec::new();
        };
        let mut strings = Vec::new();
        for (idx, Node { at, value }) in nodes.into_iter().enumerate() {
            match value {
                Value::String(it) => strings.push(Placed { at, it }),
                other => self.wrong_kind(at, &format!("{entry}[{idx}]"), "a string", &other),
            }
        }
        strings
    }

    fn host(&mut self, node: Node, entry: String) -> RawHost {
        let rdma_entry = format!("{entry}.rdma");
        let mut host = RawHost { at: node.at, entry, rdma_entry, ..RawHost::default() };
        let Value::Object(entries) = node.value else {
            self.wrong_kind(node.at, &host.entry, "an object for a host", &node.value);
            return host;
        };
        self.keys(&entries, &host.entry, HOST_KEYS);
        if !entries.iter().any(|(key, _)| key.name == "ssh") {
            self.fault(node.at, &host.entry, Fault::MissingKey { key: "ssh" });
        }
        for (key, node) in entries {
            let entry = format!("{}.{}", host.entry, key.name);
            match key.name.as_str() {
                "ssh" => host.ssh = self.ssh(node, &entry),
                "ips" => host.ips = self.ips(node, &entry),
                "rdma" => host.rdma = self.devices(node, &entry),
                _ => {}
            }
        }
        host
    }

    fn ssh(&mut self, node: Node, entry: &str) -> String {
        let at = node.at;
        match node.value {
            Value::String(name) if name.trim().is_empty() => self.fault(at, entry, Fault::EmptySsh),
            Value::String(name)
                if name.starts_with('-') || name.contains(|c: char| c.is_whitespace()) =>
            {
                self.fault(at, entry, Fault::BadSsh { found: name });
            }
            Value::String(name) => match ssh_name(&name) {
                Ok(name) => return name,
                Err(fault) => self.fault(at, entry, fault),
            },
            other => self.wrong_kind(at, entry, "a string", &other),
        }
        String::new()
    }

    fn ips(&mut self, node: Node, entry: &str) -> Vec<IpAddr> {
        let mut ips = Vec::new();
        for (idx, Placed { at, it }) in self.strings(node, entry).into_iter().enumerate() {
            let entry = format!("{entry}[{idx}]");
            match it.parse() {
                Ok(ip) if ips.contains(&ip) => {
                    self.fault(at, &entry, Fault::DuplicateIp { ip });
                }
                Ok(ip) => ips.push(ip),
                Err(_) => self.fault(at, &entry, Fault::BadIp { found: it }),
            }
        }
        ips
    }

    /// Reads a row of devices. An empty row means no entry, as in the files that MLX's tools write.
    fn devices(&mut self, node: Node, entry: &str) -> Option<Row> {
        let at = node.at;
        let cells = match node.value {
            Value::Null => return None,
            Value::Array(cells) => cells,
            other => {
                self.wrong_kind(at, entry, "a list of devices", &other);
                return None;
            }
        };
        let cells = cells.into_iter().enumerate();
        let row: Vec<_> =
            cells.map(|(rank, cell)| self.cell(cell, &format!("{entry}[{rank}]"))).collect();
        Some(Placed { at, it: row }).filter(|row| !row.it.is_empty())
    }

    /// Reads `null`, a device, or a list of devices.
    fn cell(&mut self, node: Node, entry: &str) -> Placed<Vec<String>> {
        let at = node.at;
        let names = match node.value {
            Value::Null => Vec::new(),
            Value::String(it) => vec![Placed { at, it }],
            Value::Array(_) => self.strings(node, entry),
            other => {
                self.wrong_kind(at, entry, "null, a device or a list of devices", &other);
                Vec::new()
            }
        };
        for Placed { at, it } in &names {
            if it.is_empty() || it.contains(|c: char| c.is_whitespace() || c == ':') {
                self.fault(*at, entry, Fault::BadDevice { found: it.clone() });
            }
        }
        Placed { at, it: names.into_iter().map(|name| name.it).collect() }
    }

    fn matrix_host(&mut self, node: Node, entry: String) -> RawHost {
        let at = node.at;
        let rdma = self.devices(node, &entry).or(Some(Placed { at, it: Vec::new() }));
        RawHost { at, rdma_entry: entry.clone(), entry, rdma, ..RawHost::default() }
    }

    fn ring_host(&mut self, node: Node, entry: String) -> RawHost {
        let at = node.at;
        let (texts, is_nested) = match node.value {
            Value::String(it) => (vec![Placed { at, it }], false),
            Value::Array(_) => (self.strings(node, &entry), true),
            other => {
                self.wrong_kind(at, &entry, "an address or a list of addresses", &other);
                (Vec::new(), false)
            }
        };
        let mut host = RawHost { at, entry, ..RawHost::default() };
        for (idx, Placed { at, it }) in texts.into_iter().enumerate() {
            let entry =
                if is_nested { format!("{}[{idx}]", host.entry) } else { host.entry.clone() };
            match listen_addr(&it) {
                Ok(listen) => host.listen.push(Placed { at, it: listen }),
                Err(fault) => self.fault(at, &entry, fault),
            }
        }
        for ip in host.listen.iter().filter_map(|listen| listen.it.host.parse().ok()) {
            if !host.ips.contains(&ip) {
                host.ips.push(ip);
            }
        }
        host
    }
}

/// Determines the shape of a list.
fn shape_of(nodes: &[Node]) -> HostfileShape {
    let is_address = |node: &Node| matches!(&node.value, Value::String(it) if it.contains(':'));
    let mut lists = nodes.iter().filter_map(|node| match &node.value {
        Value::Array(cells) => Some(cells),
        _ => None,
    });
    if nodes.iter().any(|node| matches!(node.value, Value::Object(_))) {
        return HostfileShape::Array;
    }
    if nodes.iter().any(|node| matches!(node.value, Value::String(_))) {
        return HostfileShape::Ring;
    }
    match lists.clone().count() {
        0 => HostfileShape::Array,
        _ if lists.any(|cells| cells.iter().any(is_address)) => HostfileShape::Ring,
        _ => HostfileShape::Matrix,
    }
}
