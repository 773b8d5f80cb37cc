//! The keys that identify machines.
//!
//! Every machine has one static X25519 key. The Noise handshake proves that a peer holds it
//! ([`crate::secure`]); authorisation is decided elsewhere. Further keys are derived from it, so
//! that a process started later computes the same ones and nothing has to be stored.

use std::fmt::{self, Write};
use std::io;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use snow::params::DHChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::Dh;

use crate::secret::Secret;

/// Maximum length of a machine name that is sent or accepted.
pub const NAME_BYTES_MAX: usize = 63;

/// Characters of a fingerprint: 100 bits, so that finding a second key for one is infeasible.
const FINGERPRINT_CHARS: usize = 20;
const FINGERPRINT_GROUP: usize = 4;
/// Crockford's base 32, which has no letters that resemble digits.
const FINGERPRINT_ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// The public half of a machine's key. Displayed as its fingerprint.
#[derive(Clone, Copy, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(into = "String", try_from = "String")]
pub struct PublicKey(pub [u8; 32]);

impl PublicKey {
    /// Reads 64 hexadecimal digits, as [`PublicKey::to_hex`] writes them.
    pub fn from_hex(text: &str) -> Option<PublicKey> {
        Secret::from_hex(text).map(|bytes| PublicKey(bytes.0))
    }

    /// Formats the key as 64 hexadecimal digits.
    pub fn to_hex(&self) -> String {
        Secret(self.0).to_hex()
    }

    /// Returns a short form for display: five groups of four characters.
    pub fn fingerprint(&self) -> String {
        let hash = Sha256::new().chain_update(b"jackalope machine key\0").chain_update(self.0);
        let hash = hash.finalize();
        let mut text = String::new();
        for idx in 0..FINGERPRINT_CHARS {
            if idx != 0 && idx % FINGERPRINT_GROUP == 0 {
                text.push('-');
            }
            let bit = idx * 5;
            let word = u16::from_be_bytes([hash[bit / 8], hash[bit / 8 + 1]]);
            let value = usize::from(word >> (11 - bit % 8) & 31);
            text.push(char::from(FINGERPRINT_ALPHABET[value]));
        }
        text
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.fingerprint())
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

impl From<PublicKey> for String {
    fn from(key: PublicKey) -> String {
        key.to_hex()
    }
}

impl TryFrom<String> for PublicKey {
    type Error = &'static str;

    fn try_from(text: String) -> Result<PublicKey, &'static str> {
        PublicKey::from_hex(&text).ok_or("a key has 64 hexadecimal digits")
    }
}

/// A machine's own key and its name. Cheap to clone.
#[derive(Clone)]
pub struct Identity {
    private: Arc<Secret>,
    public: PublicKey,
    name: String,
}

impl Identity {
    /// Generates a key from the system's source of randomness.
    ///
    /// # Errors
    /// Fails if the system has no such source.
    pub fn generate(name: &str) -> io::Result<Identity> {
        Ok(Identity::from_private(Secret::random()?, name))
    }

    /// Creates the identity of this private key. Characters of the name other than letters, digits,
    /// `-`, `.` and `_` are removed.
    pub fn from_private(private: Secret, name: &str) -> Identity {
        let mut key = curve();
        key.set(&private.0);
        let mut public = [0; 32];
        public.copy_from_slice(key.pubkey());
        let (public, name) = (PublicKey(public), clean_name(name));
        Identity { private: Arc::new(private), public, name }
    }

    /// Returns the private key, to be stored where only this machine's user can read it.
    pub fn private(&self) -> &Secret {
        &self.private
    }

    /// Returns the public key.
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// Returns the name that the machine gives itself; not authenticated.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Derives a secret for one purpose that only the holder of this identity can compute.
    pub fn derive(&self, purpose: &str, parts: &[&[u8]]) -> Secret {
        self.private.derive(purpose, parts)
    }

    /// Derives a secret for one purpose that only the holders of this identity and of `peer` can
    /// compute. `None` if `peer` is not a valid public key.
    pub fn derive_shared(
        &self,
        peer: &PublicKey,
        purpose: &str,
        parts: &[&[u8]],
    ) -> Option<Secret> {
        let mut key = curve();
        key.set(&self.private.0);
        let mut shared = [0; 32];
        key.dh(&peer.0, &mut shared).ok()?;
        // A point of low order yields zeros, which everyone can compute.
        (shared != [0; 32]).then(|| Secret(shared).derive(purpose, parts))
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("public", &self.public).finish_non_exhaustive()
    }
}

impl Secret {
    /// Derives a secret for one purpose, from which this one cannot be computed.
    pub fn derive(&self, purpose: &str, parts: &[&[u8]]) -> Secret {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).expect("keys of any length are taken");
        for part in [purpose.as_bytes()].iter().chain(parts) {
            // The lengths keep the boundaries between parts unambiguous.
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        Secret(mac.finalize().into_bytes().into())
    }
}

fn curve() -> Box<dyn Dh> {
    DefaultResolver.resolve_dh(&DHChoice::Curve25519).expect("the library was built with it")
}

/// Reduces a received name to characters that can be printed and typed.
pub(crate) fn clean_name(name: &str) -> String {
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    let mut clean = String::new();
    for c in name.chars().filter(is_plain).take(NAME_BYTES_MAX) {
        clean.write_char(c).expect("a string takes all");
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_depends_on_the_key_alone_and_can_be_typed() {
        let print = PublicKey([7; 32]).fingerprint();
        assert_eq!(print.len(), 24);
        assert!(print.split('-').all(|group| group.len() == 4), "{print}");
        assert_eq!(print, PublicKey([7; 32]).fingerprint());
        let mut all: Vec<String> =
            (0..64).map(|byte| PublicKey([byte; 32]).fingerprint()).collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 64);
        let key = PublicKey([9; 32]);
        assert_eq!(PublicKey::from_hex(&key.to_hex()), Some(key));
    }

    #[test]
    fn two_machines_derive_the_same_secret_and_a_third_one_another() {
        let [a, b, c] =
            ["a", "b", "c"].map(|name| Identity::generate(name).expect("randomness is there"));
        let of = |one: &Identity, other: &Identity, purpose: &str| {
            one.derive_shared(&other.public(), purpose, &[b"x"]).expect("a real key").to_hex()
        };
        assert_eq!(of(&a, &b, "p"), of(&b, &a, "p"));
        assert_ne!(of(&a, &b, "p"), of(&a, &b, "q"));
        assert_ne!(of(&a, &b, "p"), of(&c, &b, "p"));
        assert_eq!(a.derive_shared(&PublicKey([0; 32]), "p", &[]), None, "a point of low order");
        assert_ne!(a.derive("p", &[b"ab", b"c"]).0, a.derive("p", &[b"a", b"bc"]).0);
        let again = Identity::from_private(*a.private(), "a");
        assert_eq!((again.public(), again.derive("p", &[])), (a.public(), a.derive("p", &[])));
        assert_eq!(Identity::from_private(*a.private(), "x\u{7}\n y/z").name(), "xyz");
    }
}
