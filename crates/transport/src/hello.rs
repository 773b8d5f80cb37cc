//! The messages of the handshake, and the proof of the group's key.
//!
//! ```text
//! dialling rank                         accepting rank
//!   Hello { epoch, ranks, settings, encrypt, aes, nonce } ──▶
//!               ◀── Reply { verdict, epoch, aes, nonce, proof over both }
//!   Proof over both ──────────────────────────▶
//! ```
//!
//! Each proof is HMAC-SHA256 (RFC 2104) with the group's key over the label of its side, the hello
//! and the reply. It covers both nonces, so a recorded handshake cannot be replayed. Both ends are
//! configured whether to encrypt; the hello repeats it, so that a mismatch is reported, and the
//! proofs detect any modification.

use std::io;

use ring::hmac;

use crate::config::GroupConfig;
use crate::error::AbsenceReason;
use crate::seal::{self, Cipher, Opener, Sealer};

pub(crate) const HELLO_BYTES: usize = 76;
pub(crate) const REPLY_BYTES: usize = 92;
pub(crate) const PROOF_BYTES: usize = 32;

/// Where the accepting side's proof starts in its reply.
const REPLY_PROOF_AT: usize = REPLY_BYTES - PROOF_BYTES;
const HELLO_MAGIC: [u8; 8] = *b"JKLPDIAL";
const REPLY_MAGIC: [u8; 8] = *b"JKLPTAKE";
const VERSION: u32 = 2;
/// Bits of the settings in a hello and in a reply.
const CHECKSUMS: u32 = 1;
const ENCRYPT: u32 = 2;
const AES: u32 = 4;

/// 32 random bytes that are used only once.
pub(crate) type Nonce = [u8; 32];

/// Returns a nonce from the operating system's random number generator.
pub(crate) fn nonce() -> io::Result<Nonce> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}

/// First message of the rank that dials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) epoch: u64,
    /// The rank that dials.
    pub(crate) rank: u32,
    /// The rank that the dialling rank means to reach.
    pub(crate) peer: u32,
    pub(crate) size: u32,
    /// Index of this socket among those between the two ranks.
    pub(crate) socket: u32,
    pub(crate) sockets_per_peer: u32,
    pub(crate) checksums: bool,
    /// Whether the connection is to be encrypted.
    pub(crate) encrypt: bool,
    /// Whether the dialling rank's processor has AES instructions.
    pub(crate) has_aes: bool,
    pub(crate) nonce: Nonce,
}

impl Hello {
    pub(crate) fn new(config: &GroupConfig, peer: usize, socket: usize, nonce: Nonce) -> Hello {
        Hello {
            epoch: config.epoch,
            rank: config.rank as u32,
            peer: peer as u32,
            size: config.size() as u32,
            socket: socket as u32,
            sockets_per_peer: config.sockets_per_peer as u32,
            checksums: config.checksums,
            encrypt: config.encrypt[peer],
            has_aes: seal::has_aes(),
            nonce,
        }
    }

    pub(crate) fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&HELLO_MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.epoch.to_le_bytes());
        let words = [
            self.rank,
            self.peer,
            self.size,
            self.socket,
            self.sockets_per_peer,
            bit(CHECKSUMS, self.checksums) | bit(ENCRYPT, self.encrypt) | bit(AES, self.has_aes),
        ];
        for (at, word) in (20..).step_by(4).zip(words) {
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        bytes[44..].copy_from_slice(&self.nonce);
        bytes
    }

    /// # Errors
    /// [`AbsenceReason::Foreign`] or [`AbsenceReason::Version`].
    pub(crate) fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Hello, AbsenceReason> {
        if bytes[..8] != HELLO_MAGIC {
            return Err(AbsenceReason::Foreign);
        }
        let version = u32_at(bytes, 8);
        if version != VERSION {
            return Err(AbsenceReason::Version(version));
        }
        let settings = u32_at(bytes, 40);
        Ok(Hello {
            epoch: u64_at(bytes, 12),
            rank: u32_at(bytes, 20),
            peer: u32_at(bytes, 24),
            size: u32_at(bytes, 28),
            socket: u32_at(bytes, 32),
            sockets_per_peer: u32_at(bytes, 36),
            checksums: settings & CHECKSUMS != 0,
            encrypt: settings & ENCRYPT != 0,
            has_aes: settings & AES != 0,
            nonce: *bytes[44..].first_chunk().expect("the hello ends with 32 bytes of nonce"),
        })
    }

    /// Returns the accepting rank's verdict, apart from whether the place is already taken.
    pub(crate) fn verdict(&self, config: &GroupConfig) -> Verdict {
        if self.epoch != config.epoch {
            return Verdict::Epoch;
        }
        let fits = self.peer as usize == config.rank
            && self.size as usize == config.size()
            && self.sockets_per_peer as usize == config.sockets_per_peer
            && self.checksums == config.checksums
            // The higher rank dials.
            && (config.rank + 1..config.size()).contains(&(self.rank as usize))
            && self.encrypt == config.encrypt[self.rank as usize]
            && (self.socket as usize) < config.sockets_per_peer;
        if fits { Verdict::Welcome } else { Verdict::Settings }
    }
}

/// Decision of the accepting rank on a hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Verdict {
    Welcome = 0,
    Version = 1,
    Epoch = 2,
    Settings = 3,
    Taken = 4,
}

/// Reply of the rank that accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) verdict: Verdict,
    /// The accepting rank's epoch.
    pub(crate) epoch: u64,
    /// Whether the accepting rank's processor has AES instructions.
    pub(crate) has_aes: bool,
    pub(crate) nonce: Nonce,
}

impl Reply {
    pub(crate) fn encode(&self, key: &[u8; 32], hello: &[u8; HELLO_BYTES]) -> [u8; REPLY_BYTES] {
        let mut bytes = [0; REPLY_BYTES];
        bytes[..8].copy_from_slice(&REPLY_MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&(self.verdict as u32).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[24..28].copy_from_slice(&bit(AES, self.has_aes).to_le_bytes());
        bytes[28..REPLY_PROOF_AT].copy_from_slice(&self.nonce);
        let proof = hmac(key, &[b"jackalope accepts", hello, &bytes[..REPLY_PROOF_AT]]);
        bytes[REPLY_PROOF_AT..].copy_from_slice(&proof);
        bytes
    }

    /// # Errors
    /// The reason if the accepting side is not a rank of this group or refuses the connection.
    pub(crate) fn check(
        bytes: &[u8; REPLY_BYTES],
        key: &[u8; 32],
        hello: &[u8; HELLO_BYTES],
    ) -> Result<(), AbsenceReason> {
        if bytes[..8] != REPLY_MAGIC {
            return Err(AbsenceReason::Foreign);
        }
        let version = u32_at(bytes, 8);
        if version != VERSION {
            return Err(AbsenceReason::Version(version));
        }
        let proof = hmac(key, &[b"jackalope accepts", hello, &bytes[..REPLY_PROOF_AT]]);
        if !same(&proof, &bytes[REPLY_PROOF_AT..]) {
            return Err(AbsenceReason::Secret);
        }
        match u32_at(bytes, 12) {
            0 => Ok(()),
            2 => Err(AbsenceReason::Epoch(u64_at(bytes, 16))),
            4 => Err(AbsenceReason::Taken),
            _ => Err(AbsenceReason::Settings),
        }
    }
}

/// Returns the dialling side's proof, its last message before frames.
pub(crate) fn proof(
    key: &[u8; 32],
    hello: &[u8; HELLO_BYTES],
    reply: &[u8; REPLY_BYTES],
) -> [u8; PROOF_BYTES] {
    hmac(key, &[b"jackalope dials", hello, reply])
}

/// Returns the keys that seal and open the records of a connection, or `None` if it is not
/// encrypted. They must not be used before both sides have proved that they know the group's key.
pub(crate) fn keys(
    config: &GroupConfig,
    is_dialler: bool,
    hello: &[u8; HELLO_BYTES],
    reply: &[u8; REPLY_BYTES],
) -> Option<Box<(Sealer, Opener)>> {
    let peer = u32_at(hello, if is_dialler { 24 } else { 20 }) as usize;
    if !config.encrypt.get(peer).copied().unwrap_or(true) {
        return None;
    }
    let cipher = Cipher::of(u32_at(hello, 40) & AES != 0, u32_at(reply, 24) & AES != 0);
    Some(Box::new(seal::keys(&config.key, cipher, is_dialler, hello, reply)))
}

fn bit(bit: u32, is_set: bool) -> u32 {
    if is_set { bit } else { 0 }
}

/// Returns the HMAC-SHA256 of the concatenated `parts`.
fn hmac(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, key));
    parts.iter().for_each(|part| mac.update(part));
    let tag = mac.sign();
    *tag.as_ref().first_chunk().expect("SHA-256 has 32 bytes")
}

/// Whether two proofs are equal. The comparison takes constant time, so its duration does not
/// reveal where they differ.
pub(crate) fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |acc, (a, b)| acc | (a ^ b)) == 0
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("the field is inside the message"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("the field is inside the message"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(rank: usize) -> GroupConfig {
        let addr = "127.0.0.1:1".parse().unwrap();
        GroupConfig::new(rank, vec![addr; 3], 7, [9; 32])
    }

    #[test]
    fn hmac_gives_the_published_values() {
        // RFC 4231 has no 32-byte key; this is test case 1 of draft-ietf-ipsec-ciph-sha-256,
        // whose key is the bytes 1 to 32.
        let key: [u8; 32] = std::array::from_fn(|i| i as u8 + 1);
        let expected: [u8; 32] = [
            0xa2, 0x1b, 0x1f, 0x5d, 0x4c, 0xf4, 0xf7, 0x3a, 0x4d, 0xd9, 0x39, 0x75, 0x0f, 0x7a,
            0x06, 0x6a, 0x7f, 0x98, 0xcc, 0x13, 0x1c, 0xb1, 0x6a, 0x66, 0x92, 0x75, 0x90, 0x21,
            0xcf, 0xab, 0x81, 0x81,
        ];
        assert_eq!(hmac(&key, &[b"a", b"bc"]), expected);
    }

    #[test]
    fn a_hello_says_what_was_put_into_it() {
        let hello = Hello::new(&config(2), 1, 0, [3; 32]);
        assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
    }

    #[test]
    fn only_a_hello_that_fits_is_welcome() {
        let hello = Hello::new(&config(2), 1, 0, [3; 32]);
        let accepting = config(1);
        assert_eq!(hello.verdict(&accepting), Verdict::Welcome);
        for (wrong, verdict) in [
            (Hello { epoch: 6, ..hello }, Verdict::Epoch),
            (Hello { epoch: 8, ..hello }, Verdict::Epoch),
            (Hello { rank: 0, ..hello }, Verdict::Settings),
            (Hello { rank: 1, ..hello }, Verdict::Settings),
            (Hello { rank: 3, ..hello }, Verdict::Settings),
            (Hello { peer: 0, ..hello }, Verdict::Settings),
            (Hello { size: 2, ..hello }, Verdict::Settings),
            (Hello { socket: 1, ..hello }, Verdict::Settings),
            (Hello { sockets_per_peer: 2, ..hello }, Verdict::Settings),
            (Hello { checksums: true, ..hello }, Verdict::Settings),
            (Hello { encrypt: false, ..hello }, Verdict::Settings),
        ] {
            assert_eq!(wrong.verdict(&accepting), verdict, "{wrong:?}");
        }
    }

    #[test]
    fn a_reply_is_believed_only_with_the_secret_and_for_its_own_hello() {
        let hello = Hello::new(&config(2), 1, 0, [3; 32]).encode();
        let other = Hello::new(&config(2), 1, 0, [4; 32]).encode();
        let reply = Reply { verdict: Verdict::Welcome, epoch: 7, has_aes: true, nonce: [5; 32] };
        let bytes = reply.encode(&[9; 32], &hello);
        assert_eq!(Reply::check(&bytes, &[9; 32], &hello), Ok(()));
        assert_eq!(Reply::check(&bytes, &[8; 32], &hello), Err(AbsenceReason::Secret));
        assert_eq!(Reply::check(&bytes, &[9; 32], &other), Err(AbsenceReason::Secret));
        let mut forged = bytes;
        forged[12] = 1;
        assert_eq!(Reply::check(&forged, &[9; 32], &hello), Err(AbsenceReason::Secret));
        let stale = Reply { verdict: Verdict::Epoch, ..reply }.encode(&[9; 32], &hello);
        assert_eq!(Reply::check(&stale, &[9; 32], &hello), Err(AbsenceReason::Epoch(7)));
    }

    #[test]
    fn the_two_sides_prove_different_things() {
        let hello = Hello::new(&config(2), 1, 0, [3; 32]).encode();
        let reply = Reply { verdict: Verdict::Welcome, epoch: 7, has_aes: true, nonce: [5; 32] };
        let bytes = reply.encode(&[9; 32], &hello);
        assert!(!same(&proof(&[9; 32], &hello, &bytes), &bytes[REPLY_PROOF_AT..]));
    }
}
