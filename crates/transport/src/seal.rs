//! The records of an encrypted connection, and their keys.
//!
//! ```text
//! | length, encrypted (4) | tag (16) | payload, encrypted (1 to 64 KiB) | tag (16) |
//! ```
//!
//! The length has a tag of its own, so that a modified length is detected on arrival and the reader
//! does not wait for bytes that will never come. Both parts are sealed with one AEAD key per
//! direction; their nonces are counters, so a record that is repeated, left out, moved or reflected
//! does not open.
//!
//! Keys come from the group's key and the handshake (HKDF-SHA256, RFC 5869):
//!
//! ```text
//! group key ─extract─▶ ─expand(direction, hello, reply)─▶ chain 0 ─expand("next")─▶ chain 1 ─▶ …
//!                                                            └─expand("key")─▶ key 0  └─▶ key 1
//! ```
//!
//! Hello and reply hold both nonces, both ranks, the epoch, the socket's index and whether to
//! encrypt: no two connections share a key.

use std::fmt;

use ring::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk, Salt};

/// Maximum size of a record's payload.
pub(crate) const RECORD_BYTES_MAX: usize = 64 << 10;
const LENGTH_BYTES: usize = 4;
const TAG_BYTES: usize = 16;
/// Size of a record before its payload.
pub(crate) const HEAD_BYTES: usize = LENGTH_BYTES + TAG_BYTES;
/// Bytes that a record adds to its payload.
pub(crate) const RECORD_EXTRA_BYTES: usize = HEAD_BYTES + TAG_BYTES;
/// Maximum number of records under one key, 4 GiB in total: 2^28 blocks of AES, where TLS 1.3
/// allows 2^34.5 (RFC 8446, section 5.5).
const RECORDS_PER_KEY: u64 = 1 << 16;

/// The AEAD of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cipher {
    /// The fastest choice for processors with AES instructions.
    Aes256Gcm,
    /// Fast everywhere.
    ChaCha20Poly1305,
}

impl Cipher {
    /// Selects AES if both ends have instructions for it.
    pub(crate) fn of(we_have_aes: bool, they_have_aes: bool) -> Cipher {
        if we_have_aes && they_have_aes { Cipher::Aes256Gcm } else { Cipher::ChaCha20Poly1305 }
    }

    fn algorithm(self) -> &'static aead::Algorithm {
        match self {
            Cipher::Aes256Gcm => &aead::AES_256_GCM,
            Cipher::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
        }
    }
}

/// Whether this processor has AES instructions.
pub(crate) fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes")
        && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return false;
}

/// Derives a group's key from a secret that its ranks share, for groups without a coordinator that
/// would provide a fresh key.
pub fn group_key(secret: &[u8; 32]) -> [u8; 32] {
    let prk = Salt::new(HKDF_SHA256, b"jackalope group key").extract(secret);
    expand(&prk, &[b"group without a coordinator"])
}

/// Error for a record that does not open: modified, out of order, or not from the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Forged;

/// Seals the bytes that this rank sends on one connection.
#[derive(Debug)]
pub(crate) struct Sealer(Direction);

/// Opens the bytes that the peer sends on one connection.
#[derive(Debug)]
pub(crate) struct Opener(Direction);

/// Derives the keys for both directions of a connection whose handshake was `hello` and `reply`.
pub(crate) fn keys(
    group_key: &[u8; 32],
    cipher: Cipher,
    is_dialler: bool,
    hello: &[u8],
    reply: &[u8],
) -> (Sealer, Opener) {
    let prk = Salt::new(HKDF_SHA256, b"jackalope data plane").extract(group_key);
    let direction = |label: &[u8]| {
        Direction::new(cipher, expand(&prk, &[label, hello, reply]), RECORDS_PER_KEY)
    };
    let (dialled, accepted) = (direction(b"from the dialler"), direction(b"to the dialler"));
    if is_dialler {
        (Sealer(dialled), Opener(accepted))
    } else {
        (Sealer(accepted), Opener(dialled))
    }
}

impl Sealer {
    /// Appends `payload` to `out` as one record. `payload` must be neither empty nor longer than
    /// [`RECORD_BYTES_MAX`].
    pub(crate) fn seal(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        debug_assert!((1..=RECORD_BYTES_MAX).contains(&payload.len()), "the caller cuts records");
        let (head_nonce, body_nonce) = self.0.next_nonces();
        let mut length = (payload.len() as u32).to_le_bytes();
        let key = &self.0.key;
        let seal = |nonce: Nonce, bytes: &mut [u8]| {
            key.seal_in_place_separate_tag(nonce, Aad::empty(), bytes)
                .expect("records are far shorter than what an AEAD can seal")
        };
        let tag = seal(head_nonce, &mut length);
        out.extend_from_slice(&length);
        out.extend_from_slice(tag.as_ref());
        let start = out.len();
        out.extend_from_slice(payload);
        let tag = seal(body_nonce, &mut out[start..]);
        out.extend_from_slice(tag.as_ref());
    }
}

impl Opener {
    /// Opens the first [`HEAD_BYTES`] of a record. Returns the number of bytes that follow, tag
    /// included.
    pub(crate) fn open_head(&mut self, head: &mut [u8]) -> Result<usize, Forged> {
        let (nonce, _) = self.0.nonces();
        let opened = self.0.key.open_in_place(nonce, Aad::empty(), head).map_err(|_| Forged)?;
        let length = opened.first_chunk().map(|bytes| u32::from_le_bytes(*bytes) as usize);
        let length = length.filter(|length| (1..=RECORD_BYTES_MAX).contains(length));
        length.map(|length| length + TAG_BYTES).ok_or(Forged)
    }

    /// Opens the rest of a record in place. Returns the length of its payload.
    pub(crate) fn open_body(&mut self, body: &mut [u8]) -> Result<usize, Forged> {
        let (_, nonce) = self.0.next_nonces();
        let opened = self.0.key.open_in_place(nonce, Aad::empty(), body).map_err(|_| Forged)?;
        Ok(opened.len())
    }
}

/// The state of one direction; its key is replaced after every `records_per_key` records.
struct Direction {
    cipher: Cipher,
    chain: [u8; 32],
    key: LessSafeKey,
    /// Number of records sealed or opened with `key` so far.
    num_records: u64,
    records_per_key: u64,
}

impl fmt::Debug for Direction {
    /// Omits the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Direction")
            .field("cipher", &self.cipher)
            .field("num_records", &self.num_records)
            .finish_non_exhaustive()
    }
}

impl Direction {
    fn new(cipher: Cipher, chain: [u8; 32], records_per_key: u64) -> Direction {
        let prk = Prk::new_less_safe(HKDF_SHA256, &chain);
        let okm = prk.expand(&[b"key"], cipher.algorithm()).expect("a key is short");
        let key = LessSafeKey::new(UnboundKey::from(okm));
        Direction { cipher, chain, key, num_records: 0, records_per_key }
    }

    /// Returns the nonces for the head and the body of the next record. Replaces the key if it is
    /// used up.
    fn nonces(&mut self) -> (Nonce, Nonce) {
        if self.num_records == self.records_per_key {
            let next = expand(&Prk::new_less_safe(HKDF_SHA256, &self.chain), &[b"next"]);
            *self = Direction::new(self.cipher, next, self.records_per_key);
        }
        (nonce(2 * self.num_records), nonce(2 * self.num_records + 1))
    }

    /// Like [`Direction::nonces`], and counts the record.
    fn next_nonces(&mut self) -> (Nonce, Nonce) {
        let nonces = self.nonces();
        self.num_records += 1;
        nonces
    }
}

fn nonce(count: u64) -> Nonce {
    let mut bytes = [0; aead::NONCE_LEN];
    bytes[4..].copy_from_slice(&count.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

fn expand(prk: &Prk, info: &[&[u8]]) -> [u8; 32] {
    let mut bytes = [0; 32];
    prk.expand(info, HKDF_SHA256)
        .and_then(|okm| okm.fill(&mut bytes))
        .expect("32 bytes are one hash long");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const CIPHERS: [Cipher; 2] = [Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305];

    fn pair(cipher: Cipher, records_per_key: u64) -> (Sealer, Opener) {
        let direction = || Direction::new(cipher, [7; 32], records_per_key);
        (Sealer(direction()), Opener(direction()))
    }

    fn sealed(sealer: &mut Sealer, payload: &[u8]) -> Vec<u8> {
        let mut record = Vec::new();
        sealer.seal(payload, &mut record);
        assert_eq!(record.len(), payload.len() + RECORD_EXTRA_BYTES);
        record
    }

    fn opened(opener: &mut Opener, record: &[u8]) -> Result<Vec<u8>, Forged> {
        let mut record = record.to_vec();
        let (head, body) = record.split_at_mut(HEAD_BYTES);
        let body_bytes = opener.open_head(head)?;
        let length = opener.open_body(body.get_mut(..body_bytes).ok_or(Forged)?)?;
        Ok(body[..length].to_vec())
    }

    #[test]
    fn every_record_opens_as_it_was_sealed_across_every_change_of_keys() {
        for cipher in CIPHERS {
            for records_per_key in 1..=5 {
                let (mut sealer, mut opener) = pair(cipher, records_per_key);
                for length in [1, 2, 15, 16, 17, 48, 4144, RECORD_BYTES_MAX, 3, 1, 1, 9, 100] {
                    let payload = vec![length as u8; length];
                    let record = sealed(&mut sealer, &payload);
                    assert_eq!(opened(&mut opener, &record).as_ref(), Ok(&payload));
                }
            }
        }
    }

    #[test]
    fn keys_change_after_their_number_of_records_and_no_two_records_are_alike() {
        let (mut sealer, _) = pair(Cipher::Aes256Gcm, 2);
        let first_chain = sealer.0.chain;
        let records: Vec<Vec<u8>> = (0..7).map(|_| sealed(&mut sealer, b"the same")).collect();
        assert_ne!(sealer.0.chain, first_chain);
        assert_eq!(sealer.0.num_records, 1, "the fourth key has sealed one record");
        for (idx, record) in records.iter().enumerate() {
            assert!(!records[..idx].contains(record), "record {idx}");
        }
    }

    #[test]
    fn a_record_out_of_its_place_does_not_open_before_or_after_keys_change() {
        for cipher in CIPHERS {
            for records_per_key in [1, 2, 3, 100] {
                let (mut sealer, _) = pair(cipher, records_per_key);
                let records: Vec<_> = (0..6).map(|_| sealed(&mut sealer, b"payload")).collect();
                for place in 0..records.len() {
                    for wrong in (0..records.len()).filter(|idx| *idx != place) {
                        let (_, mut opener) = pair(cipher, records_per_key);
                        for record in &records[..place] {
                            opened(&mut opener, record).unwrap();
                        }
                        assert_eq!(opened(&mut opener, &records[wrong]), Err(Forged));
                    }
                }
            }
        }
    }

    #[test]
    fn no_bit_of_a_record_may_change() {
        for cipher in CIPHERS {
            let record = sealed(&mut pair(cipher, 9).0, b"sixteen bytes ok");
            for bit in 0..8 * record.len() {
                let mut changed = record.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                let outcome = opened(&mut pair(cipher, 9).1, &changed);
                assert_eq!(outcome, Err(Forged), "bit {bit}");
            }
        }
    }

    #[test]
    fn every_connection_direction_and_side_has_its_own_key() {
        let make = |key: u8, is_dialler, hello: &[u8], reply: &[u8]| {
            keys(&[key; 32], Cipher::Aes256Gcm, is_dialler, hello, reply)
        };
        let record = sealed(&mut make(1, true, b"hello", b"reply").0, b"payload");
        let mut right = make(1, false, b"hello", b"reply");
        assert_eq!(opened(&mut right.1, &record).as_deref(), Ok(b"payload".as_slice()));
        let wrong = [
            make(1, true, b"hello", b"reply"),
            make(2, false, b"hello", b"reply"),
            make(1, false, b"hallo", b"reply"),
            make(1, false, b"hello", b"reply!"),
        ];
        for (_, mut opener) in wrong {
            assert_eq!(opened(&mut opener, &record), Err(Forged));
        }
    }

    #[test]
    fn a_group_key_is_not_its_secret() {
        assert_ne!(group_key(&[9; 32]), [9; 32]);
        assert_eq!(group_key(&[9; 32]), group_key(&[9; 32]));
        assert_ne!(group_key(&[9; 32]), group_key(&[8; 32]));
    }
}
