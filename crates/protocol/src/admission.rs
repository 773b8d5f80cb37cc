//! Who may hold a place while it has proved nothing yet: every listener of the cluster bounds its
//! unproven connections by this one rule. Pure: no sockets, no clock.
//!
//! A newcomer is let in and an older connection makes room for it, because whoever belongs here speaks
//! at once, while an attacker's connections are silent. Who makes room: the oldest connection of the
//! source that holds the most. Strangers never take the places in reserve for expected peers, and keep a
//! few of their own, should somebody flood from an expected address.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv6Addr};

/// Addresses that are remembered because somebody there has proved itself; the oldest goes first.
const PROVED_MAX: usize = 256;

/// This share of the places that strangers may take is theirs alone.
const STRANGERS_OWN: usize = 4;

/// How many unproven connections there may be.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AdmissionLimits {
    /// In all.
    pub total: usize,
    /// Of one source that is not expected.
    pub per_source: usize,
    /// Of `total`, places that only expected peers may take.
    pub reserve: usize,
}

/// Names one admitted connection.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct AdmissionId(u64);

/// A newcomer's place.
#[derive(Debug, Eq, PartialEq)]
pub struct Admitted<T> {
    /// Its name.
    pub id: AdmissionId,
    /// Who made room for it.
    pub evicted: Option<T>,
}

/// The unproven connections of a listener.
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
    /// An empty table.
    ///
    /// # Panics
    /// If the limits leave no place for strangers.
    pub fn new(limits: AdmissionLimits, expected: impl IntoIterator<Item = IpAddr>) -> Self {
        assert!(limits.reserve < limits.total && 0 < limits.per_source, "strangers have a place");
        let expected = expected.into_iter().map(canonical).collect();
        let (proved, entries) = (VecDeque::new(), BTreeMap::new());
        Admission { limits, expected, proved, num_admitted: 0, entries }
    }

    /// Remembers that somebody at this address has proved itself: from now on it is expected.
    pub fn proved(&mut self, ip: IpAddr) {
        let ip = canonical(ip);
        self.proved.retain(|it| *it != ip);
        self.proved.push_back(ip);
        if PROVED_MAX < self.proved.len() {
            self.proved.pop_front();
        }
    }

    /// Gives a newcomer a place.
    pub fn admit(&mut self, ip: IpAddr, item: T) -> Admitted<T> {
        let is_expected = self.is_expected(ip);
        let source = if is_expected { canonical(ip) } else { source_of(ip) };
        let evicted = self.loser(source, is_expected).and_then(|id| self.remove(id));
        self.num_admitted += 1;
        let id = AdmissionId(self.num_admitted);
        self.entries.insert(id, Entry { source, is_expected, item });
        Admitted { id, evicted }
    }

    /// Whether a newcomer from there has a place without anybody making room for it.
    pub fn has_room(&self, ip: IpAddr) -> bool {
        let is_expected = self.is_expected(ip);
        let source = if is_expected { canonical(ip) } else { source_of(ip) };
        self.loser(source, is_expected).is_none()
    }

    /// Takes a connection out, if it is still there.
    pub fn remove(&mut self, id: AdmissionId) -> Option<T> {
        self.entries.remove(&id).map(|entry| entry.item)
    }

    /// A connection, if it is still there.
    pub fn get_mut(&mut self, id: AdmissionId) -> Option<&mut T> {
        self.entries.get_mut(&id).map(|entry| &mut entry.item)
    }

    /// All connections, oldest first.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (AdmissionId, &mut T)> {
        self.entries.iter_mut().map(|(id, entry)| (*id, &mut entry.item))
    }

    /// All connections, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (AdmissionId, &T)> {
        self.entries.iter().map(|(id, entry)| (*id, &entry.item))
    }

    /// Number of connections.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn is_expected(&self, ip: IpAddr) -> bool {
        let ip = canonical(ip);
        self.expected.contains(&ip) || self.proved.contains(&ip)
    }

    /// Who has to make room for a newcomer from `source`, if anybody has to.
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
        // Of those who may make room; if these are the newcomer's own kind, they are never none.
        let own_share = ((total - reserve) / STRANGERS_OWN).max(1);
        let lose_strangers =
            if is_expected { own_share < num_strangers } else { own_share <= num_strangers };
        if lose_strangers { oldest_of_most(strangers()) } else { oldest_of_most(expected()) }
    }
}

/// The oldest entry of the source that has most; of several such sources, the oldest of all.
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

/// IPv4 addresses in the clothes of IPv6 are IPv4 addresses.
fn canonical(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
}

/// What counts as one source: an IPv4 address, or a /64 of IPv6, all of which one machine has.
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
