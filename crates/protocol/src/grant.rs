//! A grant lets its holder read one model of a library for a limited time.
//!
//! A coordinator makes grants for its ranks and for machines that copy. Grants are not stored: the
//! secret of a grant is derived from the keys of the coordinator and of the library's machine, the
//! cluster's secret, the model and the expiry time. A library accepts a grant while it trusts the
//! coordinator that made it.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};

use crate::secure::{self, Coordinator, HintedKey};
use crate::{Identity, PublicKey, Secret};

/// Lifetime of a grant; longer than any model takes to load or to copy.
pub const GRANT_LIFE: Duration = Duration::from_secs(24 * 3600);

const PURPOSE: &str = "jackalope: reading a model";
const MODEL_BYTES: usize = 32;
const UNTIL_BYTES: usize = 8;
const HINT_BYTES: usize = MODEL_BYTES + UNTIL_BYTES + 32;

/// Makes grants for one model of one library.
#[derive(Clone, Debug)]
pub struct Granter {
    secret: Secret,
    identity: Identity,
    library: PublicKey,
    model: String,
}

impl Granter {
    /// Creates grants for `model`, a name or a path, in the library of the machine with the key
    /// `library`.
    pub fn new(ours: &dyn Coordinator, library: PublicKey, model: &str) -> Granter {
        let (secret, identity) = (*ours.secret(), ours.identity().clone());
        Granter { secret, identity, library, model: model.to_owned() }
    }

    /// Creates a grant that expires after [`GRANT_LIFE`].
    ///
    /// # Panics
    /// If the library's key is invalid; the handshake admits no such key.
    pub fn grant(&self) -> HintedKey {
        self.grant_until(now() + GRANT_LIFE.as_secs())
    }

    fn grant_until(&self, until: u64) -> HintedKey {
        let mut hint = model_hash(&self.model).to_vec();
        hint.extend(until.to_le_bytes());
        hint.extend(self.identity.public().0);
        let parts = [&self.secret.0[..], &hint];
        let secret = self.identity.derive_shared(&self.library, PURPOSE, &parts);
        HintedKey { hint, secret: secret.expect("a machine that was met has a real key") }
    }
}

/// The content of a hint. It is authentic if the other side proves the matching secret.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Grant {
    model: [u8; MODEL_BYTES],
    until: u64,
    /// Key of the coordinator that made the grant.
    pub coordinator: PublicKey,
}

impl Grant {
    /// Parses a hint; returns `None` if it is not the hint of a grant.
    pub fn read(hint: &[u8]) -> Option<Grant> {
        let hint: &[u8; HINT_BYTES] = hint.try_into().ok()?;
        let (model, rest) = hint.split_at(MODEL_BYTES);
        let (until, coordinator) = rest.split_at(UNTIL_BYTES);
        Some(Grant {
            model: model.try_into().ok()?,
            until: u64::from_le_bytes(until.try_into().ok()?),
            coordinator: PublicKey(coordinator.try_into().ok()?),
        })
    }

    /// Derives the secret of a hint on the library's machine; `None` if the grant has expired.
    pub fn secret(&self, own: &Identity, cluster: &Secret, hint: &[u8]) -> Option<Secret> {
        if self.until <= now() {
            return None;
        }
        own.derive_shared(&self.coordinator, PURPOSE, &[&cluster.0, hint])
    }

    /// Whether the grant is for the model with this name or path.
    pub fn is_for(&self, model: &str) -> bool {
        self.model == model_hash(model)
    }
}

/// What the peer of a library may do with it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LibraryAccess {
    /// Everything, copying models included.
    All,
    /// Read the model that this grant is for.
    Read(Grant),
}

/// Serves one connection to a machine's library, until it ends.
pub type LibraryService =
    Arc<dyn Fn(LibraryAccess, secure::Sender, secure::Receiver) + Send + Sync>;

fn model_hash(model: &str) -> [u8; MODEL_BYTES] {
    Sha256::digest(model.as_bytes()).into()
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FrameError;

    /// A machine that accepts every key.
    #[derive(Clone)]
    struct Credentials {
        secret: Secret,
        identity: Identity,
    }

    impl Coordinator for Credentials {
        fn secret(&self) -> &Secret {
            &self.secret
        }

        fn identity(&self) -> &Identity {
            &self.identity
        }

        fn check(&self, _host: &str, _found: &PublicKey) -> Result<(), FrameError> {
            Ok(())
        }
    }

    fn credentials(secret: u8) -> Credentials {
        Credentials { secret: Secret([secret; 32]), identity: Identity::generate("x").unwrap() }
    }

    #[test]
    fn a_grant_is_for_one_model_of_one_library_until_its_end() {
        let (ours, other, library) = (credentials(1), credentials(1), credentials(1));
        let granter = Granter::new(&ours, library.identity.public(), "org/big");
        let HintedKey { hint, secret } = granter.grant();
        let grant = Grant::read(&hint).unwrap();
        let of = |own: &Credentials, hint: &[u8]| {
            Grant::read(hint).unwrap().secret(&own.identity, &own.secret, hint)
        };
        assert_eq!(of(&library, &hint), Some(secret));
        assert!(grant.is_for("org/big") && !grant.is_for("org/small"));
        assert_eq!(grant.coordinator, ours.identity.public());
        assert_ne!(of(&other, &hint), Some(secret), "another library");
        let outsider = Credentials { secret: Secret([2; 32]), ..library.clone() };
        assert_ne!(of(&outsider, &hint), Some(secret), "another cluster");
        // A change in any byte of the hint changes the secret.
        for at in 0..HINT_BYTES {
            let mut changed = hint.clone();
            changed[at] ^= 1;
            assert_ne!(of(&library, &changed), Some(secret), "byte {at}");
        }
        let over = granter.grant_until(now() - 1);
        assert_eq!(of(&library, &over.hint), None);
        assert_eq!(Grant::read(b"x"), None);
    }
}
