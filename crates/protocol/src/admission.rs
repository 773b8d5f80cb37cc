//! Bounds the number of unauthenticated connections. Every listener of the cluster applies this
//! policy. Pure: no sockets, no clock.
//!
//! A new connection is always admitted, and an older one is evicted if needed: a legitimate peer
//! sends its opening at once, while an attacker's connections stay silent. The victim is the oldest
//! connection of the source with the most connections. Unexpected sources never use the slots
//! reserved for expected peers. They keep a few slots of their own in case of a flood from an
//! expected address.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv6Addr};

/// Number of addresses remembered as authenticated; the oldest is forgotten first.
const PROVED_MAX: usize = 256;

/// Inverse of the share of the unreserved slots that is guaranteed to unexpected sources.
const STRANGERS_OWN: usize = 4;

/// Limits on the number of unauthenticated connections.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AdmissionLimits {
    /// Maximum number of connections in total.
    pub total: usize,
    /// Maximum number of connections from one unexpected source.
    pub per_source: usize,
    /// Number of connections, out of `total`, that only expected peers may use.
    pub reserve: usize,
}

/// Identifies an admitted connection.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct AdmissionId(u64);

/// Result of admitting a connection.
#[derive(Debug, Eq, PartialEq)]
pub struct Admitted<T> {
    /// Identifies the new connection.
    pub id: AdmissionId,
    /// The connection that was evicted for it.
    pub evicted: Option<T>,
}

/// The unauthenticated connections of a listener.
#[derive(Debug)]
pub struct Admission<T> {
    limits: AdmissionLimits,
    expected: BTreeSet<IpAddr>,
    proved: VecDeque<IpAddr>,
    num_admitted: u64,
    /// Oldest first.
    entries: BTreeMap<AdmissionId, Entry<T>>,
}

#[derive(Debug)]
struct Entry<T> {
    source: IpAddr,
    is_expected: bool,
    item: T,
}

impl<T> Admission<T> {
    /// Creates an empty table.
    ///
    /// # Panics
    /// Panics if the limits leave no slot for unexpected sources.
    pub fn new(limits: AdmissionLimits, expected: impl IntoIterator<Item = IpAddr>) -> Self {
        assert!(limits.reserve < limits.total && 0 < limits.per_source, "strangers have a place");
        let expected = expected.into_iter().map(canonical).collect();
        let (proved, entries) = (VecDeque::new(), BTreeMap::new());
        Admission { limits, expected, proved, num_admitted: 0, entries }
    }

    /// Records that a peer at this address has authenticated; the address is expected from now on.
    pub fn proved(&mut self, ip: IpAddr) {
        let ip = canonical(ip);
        self.proved.retain(|it| *it != ip);
        self.proved.push_back(ip);
        if PROVED_MAX < self.proved.len() {
            self.proved.pop_front();
        }
    }

    /// Admits a connection, evicting another one if needed.
    pub fn admit(&mut self, ip: IpAddr, item: T) -> Admitted<T> {
        let is_expected = self.is_expected(ip);
        let source = if is_expected { canonical(ip) } else { source_of(ip) };
        let evicted = self.loser(source, is_expected).and_then(|id| self.remove(id));
        self.num_admitted += 1;
        let id = AdmissionId(self.num_admitted);
        self.entries.insert(id, Entry { source, is_expected, item });
        Admitted { id, evicted }
    }

    /// Whether a connection from `ip` can be admitted without an eviction.
    pub fn has_room(&self, ip: IpAddr) -> bool {
        let is_expected = self.is_expected(ip);
        let source = if is_expected { canonical(ip) } else { source_of(ip) };
        self.loser(source, is_expected).is_none()
    }

    /// Removes a connection; `None` if it is not in the table.
    pub fn remove(&mut self, id: AdmissionId) -> Option<T> {
        self.entries.remove(&id).map(|entry| entry.item)
    }

    /// Returns a connection; `None` if it is not in the table.
    pub fn get_mut(&mut self, id: AdmissionId) -> Option<&mut T> {
        self.entries.get_mut(&id).map(|entry| &mut entry.item)
    }

    /// Iterates over all connections, oldest first.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (AdmissionId, &mut T)> {
        self.entries.iter_mut().map(|(id, entry)| (*id, &mut entry.item))
    }

    /// Iterates over all connections, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (AdmissionId, &T)> {
        self.entries.iter().map(|(id, entry)| (*id, &entry.item))
    }

    /// Returns the number of connections.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no connections.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn is_expected(&self, ip: IpAddr) -> bool {
        let ip = canonical(ip);
        self.expected.contains(&ip) || self.proved.contains(&ip)
    }

    /// Selects the connection to evict for a new one from `source`, if one has to be evicted.
    fn loser(&self, source: IpAddr, is_expected: bool) -> Option<AdmissionId> {
        let AdmissionLimits { total, per_source, reserve } = self.limits;
        let strangers = || self.entries.iter().filter(|(_, entry)| !entry.is_expected);
        let expected = || self.entries.iter().filter(|(_, entry)| entry.is_expected);
        if !is_expected {
            let mut own = strangers().filter(|(_, entry)| entry.source == source);
            if let Some((oldest, _)) = own.next()
                && per_source <= own.count() + 1
            {
                return Some(*oldest);
            }
        }
        let num_strangers = strangers().count();
        let strangers_are_full = !is_expected && total - reserve <= num_strangers;
        if !strangers_are_full && self.entries.len() < total {
            return None;
        }
        // Only connections of the selected kind are candidates. If it is the kind of the new
        // connection, there is at least one.
        let own_share = ((total - reserve) / STRANGERS_OWN).max(1);
        let lose_strangers =
            if is_expected { own_share < num_strangers } else { own_share <= num_strangers };
        if lose_strangers { oldest_of_most(strangers()) } else { oldest_of_most(expected()) }
    }
}

/// Returns the oldest entry of the source with the most entries; among several such sources, the
/// oldest overall.
fn oldest_of_most<'a, T: 'a>(
    entries: impl Iterator<Item = (&'a AdmissionId, &'a Entry<T>)>,
) -> Option<AdmissionId> {
    let mut by_source: BTreeMap<IpAddr, (usize, AdmissionId)> = BTreeMap::new();
    for (id, entry) in entries {
        by_source.entry(entry.source).or_insert((0, *id)).0 += 1;
    }
    let most = by_source.into_values().max_by_key(|(count, id)| (*count, std::cmp::Reverse(*id)));
    most.map(|(_, id)| id)
}

/// Maps IPv4-mapped IPv6 addresses to IPv4.
fn canonical(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
}

/// Returns the source that limits apply to: an IPv4 address, or a /64 prefix of IPv6, which one
/// machine controls entirely.
pub fn source_of(ip: IpAddr) -> IpAddr {
    match canonical(ip) {
        IpAddr::V6(ip) if !ip.is_loopback() => {
            Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into()
        }
        ip => ip,
    }
}

#[cfg(test)]
mod tests;
