//! Single words of a hostfile: addresses with ports, names of variables, misspelt keys.

use super::ListenAddr;
use super::error::Fault;

/// Names that people write instead of the known keys.
const ALIASES: &[(&str, &str)] = &[
    ("host", "ssh"),
    ("hostname", "ssh"),
    ("name", "ssh"),
    ("address", "ips"),
    ("addresses", "ips"),
    ("device", "rdma"),
    ("devices", "rdma"),
    ("environment", "envs"),
    ("nodes", "hosts"),
    ("machines", "hosts"),
];

/// Returns a host name or address as other parts of the program write it: without the dot with
/// which mDNS tools end a name (`mac2.local.`).
pub(super) fn host(text: &str) -> Result<&str, Fault> {
    let name = text.strip_suffix('.').unwrap_or(text);
    let is_number = name.contains('.') && name.bytes().all(|it| it == b'.' || it.is_ascii_digit());
    if is_number && name.parse::<std::net::Ipv4Addr>().is_err() {
        return Err(Fault::BadIp { found: name.to_owned() });
    }
    let bad =
        name.is_empty() || name.starts_with('.') || name.contains("..") || name.ends_with('.');
    if bad { Err(Fault::BadHost { found: text.to_owned() }) } else { Ok(name) }
}

/// Returns an argument for `ssh`, `user@host` or `host`, without a dot at the end of the host.
///
/// # Errors
/// If the host is neither a name nor an address.
pub fn ssh_name(text: &str) -> Result<String, Fault> {
    let (user, name) = match text.rsplit_once('@') {
        Some((user, name)) => (Some(user), name),
        None => (None, text),
    };
    let name = host(name)?;
    Ok(user.map_or_else(|| name.to_owned(), |user| format!("{user}@{name}")))
}

/// Parses `host:port` or `[address]:port`.
pub(super) fn listen_addr(text: &str) -> Result<ListenAddr, Fault> {
    let bad = || Fault::BadListen { found: text.to_owned() };
    let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
    let host = match host.strip_prefix('[') {
        Some(inner) => {
            let inner = inner.strip_suffix(']').ok_or_else(bad)?;
            inner.parse::<std::net::Ipv6Addr>().map_err(|_| bad())?;
            inner
        }
        None => host,
    };
    let is_v6 = text.starts_with('[');
    let is_name = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_');
    if host.is_empty() || (!is_v6 && !host.chars().all(is_name)) {
        return Err(bad());
    }
    let host = if is_v6 { host } else { self::host(host)? };
    let bad_port = || Fault::BadPort { found: port.to_owned() };
    let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let number = port.parse().ok().filter(|&number: &u16| is_number && number != 0);
    Ok(ListenAddr { host: host.to_owned(), port: number.ok_or_else(bad_port)? })
}

/// Returns true for names of variables that every shell accepts.
pub(super) fn is_variable(name: &str) -> bool {
    let is_part = |byte: u8| byte == b'_' || byte.is_ascii_alphanumeric();
    !name.is_empty() && name.bytes().all(is_part) && !name.as_bytes()[0].is_ascii_digit()
}

/// Returns the known key that was probably meant.
pub(super) fn nearest(found: &str, known: &[&'static str]) -> Option<&'static str> {
    let lower = found.to_lowercase();
    let alias = ALIASES.iter().find(|(alias, name)| *alias == lower && known.contains(name));
    let near = || known.iter().find(|name| distance(&lower, name) <= name.len() / 3 + 1).copied();
    alias.map(|(_, name)| *name).or_else(near)
}

/// Returns the number of letters to insert, remove or replace (Levenshtein 1966).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
