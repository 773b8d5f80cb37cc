//! Which machines this one trusts: `trust.json` in jackalope's folder.
//!
//! *Coordinators* may command this machine's agent. *Machines* are those that this one commands,
//! each with the key that was pinned when it was first reached over a trusted path. A refused peer
//! is *pending* until a person accepts it. The file is read for every decision and changed under a
//! lock, so a running agent follows the changes that `jackalope trust` makes.

use std::fmt;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use jackalope_protocol::secure::{Coordinator, Peer};
use jackalope_protocol::{FrameError, Identity, PublicKey, Secret};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::home::{Home, HomeError};

const FILE: &str = "trust.json";
const LOCK: &str = "trust.lock";

/// Maximum number of pending entries; the oldest is dropped first.
pub const PENDING_MAX: usize = 32;
/// Maximum number of pending entries from one address, so that one address cannot evict all others.
const PENDING_OF_ADDR_MAX: usize = 4;
/// How long to wait for the lock, and the pause between two attempts.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of the file; a larger one is rejected.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Access to the file, which other processes read and write as well. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TrustStore {
    home: Home,
}

/// Content of the file.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct TrustList {
    /// Coordinators whose orders this machine's agent accepts, besides this machine itself.
    #[serde(default)]
    pub coordinators: Vec<Trusted>,
    /// Machines that this one commands, by the names that are used for them here.
    #[serde(default)]
    pub machines: Vec<Trusted>,
    /// Refused peers that wait for a person's decision, oldest first.
    #[serde(default)]
    pub pending: Vec<Pending>,
}

/// A trusted machine.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Trusted {
    /// Name of the machine: a coordinator's own name, or the name that this machine uses for
    /// another one.
    pub name: String,
    /// Key of the machine.
    pub key: PublicKey,
    /// When the machine was trusted, in seconds since 1970.
    pub since: u64,
}

/// A refused machine.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Pending {
    /// The role in which the machine was refused.
    pub role: Role,
    /// Name of the machine, as in [`Trusted`].
    pub name: String,
    /// Key of the machine.
    pub key: PublicKey,
    /// Address or name at which the machine was seen.
    pub addr: String,
    /// When the machine was first refused, in seconds since 1970.
    pub since: u64,
}

/// Direction of the orders between a peer and this machine.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The peer tried to command this machine.
    Coordinator,
    /// This machine tried to command the peer.
    Machine,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Coordinator => "coordinator",
            Role::Machine => "machine",
        })
    }
}

/// Reason why the list cannot be used or changed.
#[derive(Debug, Error)]
pub enum TrustError {
    /// A file or folder cannot be used.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// The file cannot be read.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file is not a valid list.
    #[error(
        "{} is not a valid list of trusted machines: {reason}\n\
         hint: no machine is trusted until the file is corrected or removed; `jackalope bootstrap` writes a new one",
        .path.display()
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with the file.
        reason: String,
    },
    /// A machine proved another key than the pinned one.
    #[error(transparent)]
    Changed(FrameError),
    /// No entry matches.
    #[error("nothing is called `{word}`\nhint: `jackalope trust list` shows names and keys")]
    Unknown {
        /// The name or key that was given.
        word: String,
    },
    /// More than one entry matches.
    #[error(
        "`{word}` means more than one: {claims}\n\
         hint: accept a machine by its name and a coordinator by its key, one at a time"
    )]
    Ambiguous {
        /// The name or key that was given.
        word: String,
        /// Key, role and name of each match.
        claims: String,
    },
    /// No accepted machine has this name or address, but one that tried to command this machine claims it.
    #[error(
        "a machine with the key {key} calls itself or is at `{word}`, and wants to command this one\n\
         hint: compare the key with `jackalope trust list` on that machine, then run \
         `jackalope trust accept {key}`"
    )]
    OnlyClaimed {
        /// The name that was given.
        word: String,
        /// Key of the machine that wants to command this one.
        key: PublicKey,
    },
}

impl TrustStore {
    /// Opens the list of this home. The file is created with the first change.
    pub fn new(home: &Home) -> TrustStore {
        TrustStore { home: home.clone() }
    }

    /// Path of the file.
    pub fn path(&self) -> PathBuf {
        self.home.join(FILE)
    }

    /// Reads the list; empty if there is no file.
    ///
    /// # Errors
    /// [`TrustError`] if the list cannot be read.
    pub fn load(&self) -> Result<TrustList, TrustError> {
        let path = self.path();
        let length = match fs::metadata(&path) {
            Ok(found) => found.len(),
            Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(TrustList::default()),
            Err(source) => return Err(TrustError::Io { path, source }),
        };
        if FILE_BYTES_MAX < length {
            let reason = format!("it has {length} bytes");
            return Err(TrustError::Malformed { path, reason });
        }
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|err| TrustError::Malformed { path, reason: err.to_string() }),
            Err(source) => Err(TrustError::Io { path, source }),
        }
    }

    /// Changes the list under the lock. Writes nothing if nothing changed.
    ///
    /// # Errors
    /// [`TrustError`] if the list cannot be read or written, or the error of `change`.
    pub fn update<T>(
        &self,
        change: impl FnOnce(&mut TrustList) -> Result<T, TrustError>,
    ) -> Result<T, TrustError> {
        // The holder of the lock only reads and writes one small file.
        let _lock = self.home.lock(LOCK, Instant::now() + LOCK_TIMEOUT, || ())?;
        let before = self.load()?;
        let mut list = before.clone();
        let changed = change(&mut list);
        if list != before {
            let mut bytes = serde_json::to_vec_pretty(&list).expect("a list of plain values");
            bytes.push(b'\n');
            self.home.write(FILE, &bytes)?;
        }
        changed
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl TrustList {
    /// Whether this machine's agent accepts orders from the holder of this key.
    pub fn takes_orders_from(&self, key: &PublicKey) -> bool {
        self.coordinators.iter().any(|it| it.key == *key)
    }

    /// Returns the pinned key of the machine with this name.
    pub fn pinned(&self, name: &str) -> Option<PublicKey> {
        self.machines.iter().find(|it| it.name == name).map(|it| it.key)
    }

    /// Whether any machine that this one commands has this key.
    pub fn knows(&self, key: &PublicKey) -> bool {
        self.machines.iter().any(|it| it.key == *key)
    }

    /// Adds a coordinator whose orders are accepted, or updates its name.
    pub fn trust_coordinator(&mut self, peer: &Peer) {
        self.forget_pending(Role::Coordinator, &peer.key);
        match self.coordinators.iter_mut().find(|it| it.key == peer.key) {
            Some(known) => known.name.clone_from(&peer.name),
            None => {
                let Peer { key, name } = peer.clone();
                self.coordinators.push(Trusted { name, key, since: now() });
            }
        }
    }

    /// Pins a machine's key that was learned over a trusted path.
    ///
    /// # Errors
    /// [`TrustError::Changed`] if another key is pinned; the new one becomes pending.
    pub fn pin(&mut self, name: &str, key: PublicKey) -> Result<(), TrustError> {
        match self.pinned(name) {
            Some(pinned) if pinned != key => {
                self.note(Role::Machine, &Peer { key, name: name.to_owned() }, name);
                let (host, pinned) = (name.to_owned(), Box::new(pinned));
                Err(TrustError::Changed(FrameError::ChangedKey { host, found: key, pinned }))
            }
            Some(_) => Ok(()),
            None => {
                self.pin_anew(name, key);
                Ok(())
            }
        }
    }

    fn pin_anew(&mut self, name: &str, key: PublicKey) {
        self.machines.retain(|it| it.name != name);
        self.pending.retain(|it| it.role != Role::Machine || it.name != name);
        self.machines.push(Trusted { name: name.to_owned(), key, since: now() });
    }

    /// Removes the machine with this name, whatever its key, and its pending entries.
    pub fn forget_machine(&mut self, name: &str) {
        self.machines.retain(|it| it.name != name);
        self.pending.retain(|it| it.role != Role::Machine || it.name != name);
    }

    /// Adds a refused peer at `addr` to the pending entries, if it is new.
    pub fn note(&mut self, role: Role, peer: &Peer, addr: &str) {
        let is_same = |it: &Pending| it.role == role && it.key == peer.key && it.name == peer.name;
        if self.pending.iter().any(is_same) {
            return;
        }
        let from_there = |it: &Pending| it.role == role && it.addr == addr;
        if PENDING_OF_ADDR_MAX <= self.pending.iter().filter(|it| from_there(it)).count() {
            let oldest = self.pending.iter().position(from_there);
            oldest.map(|at| self.pending.remove(at));
        } else if PENDING_MAX <= self.pending.len() {
            self.pending.remove(0);
        }
        let Peer { key, name } = peer.clone();
        self.pending.push(Pending { role, name, key, addr: addr.to_owned(), since: now() });
    }

    fn forget_pending(&mut self, role: Role, key: &PublicKey) {
        self.pending.retain(|it| it.role != role || it.key != *key);
    }

    /// Accepts the pending entries that match `word`, and returns them. A machine matches by its
    /// key, or by the name or address that this machine uses for it; a coordinator only by its key,
    /// because it chooses its own name.
    ///
    /// # Errors
    /// [`TrustError`] if nothing matches, or more than one peer does.
    pub fn accept(&mut self, word: &str) -> Result<Vec<Pending>, TrustError> {
        let meant = |it: &&Pending| {
            let is_named = it.role == Role::Machine && (it.name == word || it.addr == word);
            is_named || is_key(&it.key, word)
        };
        let meant: Vec<Pending> = self.pending.iter().filter(meant).cloned().collect();
        let first = meant.first().ok_or_else(|| self.not_accepted(word))?;
        if meant.iter().any(|it| (it.role, it.key) != (first.role, first.key)) {
            let claims = meant.iter().map(|it| format!("{} as {} {}", it.key, it.role, it.name));
            let claims = claims.collect::<Vec<_>>().join(", ");
            return Err(TrustError::Ambiguous { word: word.to_owned(), claims });
        }
        for it in &meant {
            match it.role {
                Role::Coordinator => {
                    self.trust_coordinator(&Peer { key: it.key, name: it.name.clone() });
                }
                Role::Machine => self.pin_anew(&it.name, it.key),
            }
        }
        Ok(meant)
    }

    fn not_accepted(&self, word: &str) -> TrustError {
        let word = word.to_owned();
        let mut claims = self.pending.iter().filter(|it| it.name == word || it.addr == word);
        match claims.next() {
            Some(first) => TrustError::OnlyClaimed { word, key: first.key },
            None => TrustError::Unknown { word },
        }
    }

    /// Removes all entries with this name or fingerprint; returns their number.
    ///
    /// # Errors
    /// [`TrustError::Unknown`] if nothing matches.
    pub fn revoke(&mut self, word: &str) -> Result<usize, TrustError> {
        let num_before = self.coordinators.len() + self.machines.len() + self.pending.len();
        let is_other = |name: &str, key: &PublicKey| name != word && !is_key(key, word);
        self.coordinators.retain(|it| is_other(&it.name, &it.key));
        self.machines.retain(|it| is_other(&it.name, &it.key));
        self.pending.retain(|it| is_other(&it.name, &it.key));
        let num_after = self.coordinators.len() + self.machines.len() + self.pending.len();
        match num_before - num_after {
            0 => Err(TrustError::Unknown { word: word.to_owned() }),
            num_gone => Ok(num_gone),
        }
    }
}

fn is_key(key: &PublicKey, word: &str) -> bool {
    key.fingerprint() == word.to_ascii_lowercase() || key.to_hex() == word.to_ascii_lowercase()
}

/// What a machine presents to the agents that it commands, and the keys it expects of them.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// Secret of the cluster; peers without it are refused.
    pub secret: Secret,
    /// This machine's key.
    pub identity: Identity,
    /// Which agents are trusted.
    pub expected: Expected,
}

/// Which agents are trusted.
#[derive(Clone, Debug)]
pub enum Expected {
    /// Agents whose keys are pinned, by name.
    Pinned(TrustStore),
    /// Every holder of the secret. The secret is then a token that people hand out for this
    /// purpose.
    TokenHolders,
}

impl Credentials {
    /// Returns what a machine's program reads on standard input: the secret, then the key and name
    /// of the coordinator that may command its agent. A login on the machine is enough to grant
    /// that.
    pub fn introduction(&self) -> String {
        let (secret, identity) = (self.secret.to_hex(), &self.identity);
        format!("{secret}\n{} {}\n", identity.public().to_hex(), identity.name())
    }

    /// Like [`Credentials::check`], for a machine of which only an address is known: accepts the
    /// key of any pinned machine.
    ///
    /// # Errors
    /// [`FrameError::UnknownKey`].
    pub fn check_any(&self, addr: &str, found: &PublicKey) -> Result<(), FrameError> {
        let Some((store, list)) = self.list(found)? else { return Ok(()) };
        if list.knows(found) {
            return Ok(());
        }
        refuse(&store, addr, found);
        Err(FrameError::UnknownKey { host: addr.to_owned(), found: *found })
    }

    /// Returns the list to check the key against, or `None` if no check is needed: for this
    /// machine's own key, and where the token decides.
    fn list(&self, found: &PublicKey) -> Result<Option<(TrustStore, TrustList)>, FrameError> {
        let Expected::Pinned(store) = &self.expected else { return Ok(None) };
        if *found == self.identity.public() {
            return Ok(None);
        }
        let list = store.load().map_err(|err| FrameError::Io(io::Error::other(err.to_string())))?;
        Ok(Some((store.clone(), list)))
    }
}

impl Coordinator for Credentials {
    fn secret(&self) -> &Secret {
        &self.secret
    }

    fn identity(&self) -> &Identity {
        &self.identity
    }

    /// A refused key becomes pending.
    fn check(&self, host: &str, found: &PublicKey) -> Result<(), FrameError> {
        let Some((store, list)) = self.list(found)? else { return Ok(()) };
        match list.pinned(host) {
            Some(pinned) if pinned == *found => Ok(()),
            Some(pinned) => {
                refuse(&store, host, found);
                let (host, pinned) = (host.to_owned(), Box::new(pinned));
                Err(FrameError::ChangedKey { host, found: *found, pinned })
            }
            None => {
                refuse(&store, host, found);
                Err(FrameError::UnknownKey { host: host.to_owned(), found: *found })
            }
        }
    }
}

/// Records a refused machine as pending. A failure to write the list is only logged.
fn refuse(store: &TrustStore, host: &str, found: &PublicKey) {
    let peer = Peer { key: *found, name: host.to_owned() };
    let noted = store.update(|list| {
        list.note(Role::Machine, &peer, host);
        Ok(())
    });
    if let Err(err) = noted {
        tracing::warn!(%err, "a refused machine was not written down");
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use jackalope_testing::Scratch;

    use super::*;

    fn peer(byte: u8, name: &str) -> Peer {
        Peer { key: PublicKey([byte; 32]), name: name.to_owned() }
    }

    #[test]
    fn what_is_refused_waits_for_a_person_and_can_be_accepted_and_revoked() {
        let scratch = Scratch::new();
        let store = TrustStore::new(&Home::new(scratch.path().join("home")));
        assert_eq!(store.load().unwrap(), TrustList::default());
        let one = peer(1, "studio");
        let note = |list: &mut TrustList| {
            list.note(Role::Coordinator, &one, "10.0.0.1");
            Ok(())
        };
        store.update(note).unwrap();
        store.update(note).unwrap();
        let list = store.load().unwrap();
        assert_eq!((list.pending.len(), list.takes_orders_from(&one.key)), (1, false));
        let mode = fs::metadata(store.path()).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
        let unknown = store.update(|list| list.accept("nobody")).unwrap_err().to_string();
        assert!(unknown.contains("hint: `jackalope trust list`"), "{unknown}");
        let claimed = store.update(|list| list.accept("studio")).unwrap_err().to_string();
        assert!(claimed.contains("wants to command this one\nhint: compare the key"), "{claimed}");
        store.update(|list| list.accept(&one.key.fingerprint())).unwrap();
        let list = store.load().unwrap();
        assert!(list.takes_orders_from(&one.key) && list.pending.is_empty());
        // Revoked by its key, in any letter case.
        let word = one.key.fingerprint().to_uppercase();
        assert_eq!(store.update(|list| list.revoke(&word)).unwrap(), 1);
        assert!(!store.load().unwrap().takes_orders_from(&one.key));
        fs::write(store.path(), "{\"coordinators\": 5}").unwrap();
        assert!(matches!(store.load(), Err(TrustError::Malformed { .. })));
    }

    /// A hostile worker presents a new key under its name, and also asks to be a coordinator.
    #[test]
    fn accepting_a_machine_does_not_make_it_a_coordinator() {
        let mut list = TrustList::default();
        let (old, hostile) = (PublicKey([1; 32]), peer(2, "mac2"));
        list.pin("mac2", old).unwrap();
        list.note(Role::Coordinator, &hostile, "mac2");
        for word in ["mac2", "studio"] {
            assert!(list.accept(word).is_err(), "nothing of that name is to be commanded");
        }
        list.note(Role::Machine, &hostile, "mac2");
        let by_key = list.accept(&hostile.key.fingerprint()).unwrap_err();
        assert!(matches!(&by_key, TrustError::Ambiguous { .. }), "{by_key}");
        list.accept("mac2").unwrap();
        assert_eq!((list.pinned("mac2"), list.coordinators.len()), (Some(hostile.key), 0));
        assert!(!list.takes_orders_from(&hostile.key));
        // Two machines answered under one name, one after the other.
        list.note(Role::Machine, &peer(3, "mac3"), "mac3");
        list.note(Role::Machine, &peer(4, "mac3"), "mac3");
        assert!(matches!(list.accept("mac3"), Err(TrustError::Ambiguous { .. })));
        list.accept(&PublicKey([4; 32]).fingerprint()).unwrap();
        assert_eq!(list.pinned("mac3"), Some(PublicKey([4; 32])));
    }

    #[test]
    fn a_changed_key_is_refused_until_it_is_accepted() {
        let scratch = Scratch::new();
        let store = TrustStore::new(&Home::new(scratch.path().join("home")));
        let (one, two) = (PublicKey([1; 32]), PublicKey([2; 32]));
        let identity = Identity::generate("here").unwrap();
        let own = identity.public();
        let expected = Expected::Pinned(store.clone());
        let ours = Credentials { secret: Secret([1; 32]), identity, expected };
        assert!(matches!(ours.check("mac2", &one), Err(FrameError::UnknownKey { .. })));
        store.update(|list| list.pin("mac2", one)).unwrap();
        assert!(store.load().unwrap().pending.is_empty());
        assert!(ours.check("mac2", &one).is_ok() && ours.check("mac2", &own).is_ok());
        let err = ours.check("mac2", &two).unwrap_err();
        assert!(matches!(err, FrameError::ChangedKey { .. }), "{err}");
        assert!(store.update(|list| list.pin("mac2", two)).is_err());
        // A key that is pinned for another machine is not accepted for this one.
        store.update(|list| list.pin("mac3", two)).unwrap();
        assert!(ours.check("mac2", &two).is_err());
        assert!(ours.check_any("10.0.0.3", &two).is_ok());
        store.update(|list| list.accept("mac2")).unwrap();
        assert!(ours.check("mac2", &two).is_ok() && ours.check("mac2", &one).is_err());
    }

    #[test]
    fn a_flood_of_keys_from_one_address_leaves_the_others_in_place() {
        let mut list = TrustList::default();
        list.note(Role::Coordinator, &peer(255, "studio"), "10.0.0.1");
        for byte in 0..200 {
            list.note(Role::Coordinator, &peer(byte, "x"), "10.0.0.66");
        }
        assert_eq!(list.pending.len(), 1 + PENDING_OF_ADDR_MAX);
        assert!(list.pending.iter().any(|it| it.name == "studio"));
        for byte in 0..200 {
            list.note(Role::Coordinator, &peer(byte, "y"), &format!("10.0.1.{byte}"));
        }
        assert_eq!(list.pending.len(), PENDING_MAX);
    }
}
