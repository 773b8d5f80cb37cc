//! XXH64, a fast 64-bit hash, computed incrementally.
//!
//! Algorithm: "xxHash fast digest algorithm", section XXH64, version 0.2.0
//! (github.com/Cyan4973/xxHash, `doc/xxhash_spec.md`), with seed 0. It detects accidental
//! corruption; it does not protect against deliberate modification.

const PRIME_1: u64 = 0x9E37_79B1_85EB_CA87;
const PRIME_2: u64 = 0xC2B2_AE3D_27D4_EB4F;
const PRIME_3: u64 = 0x1656_67B1_9E37_79F9;
const PRIME_4: u64 = 0x85EB_CA77_C2B2_AE63;
const PRIME_5: u64 = 0x27D4_EB2F_1656_67C5;

/// Number of bytes that one round consumes.
const STRIPE_BYTES: usize = 32;

/// State of a hash that is being computed.
#[derive(Debug, Clone)]
pub(crate) struct Xxh64 {
    lanes: [u64; 4],
    /// Bytes that do not fill a stripe yet; only the first `len % STRIPE_BYTES` are valid.
    rest: [u8; STRIPE_BYTES],
    len: u64,
}

impl Xxh64 {
    pub(crate) fn new() -> Xxh64 {
        let lanes = [PRIME_1.wrapping_add(PRIME_2), PRIME_2, 0, 0u64.wrapping_sub(PRIME_1)];
        Xxh64 { lanes, rest: [0; STRIPE_BYTES], len: 0 }
    }

    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        let held = self.len as usize % STRIPE_BYTES;
        self.len += bytes.len() as u64;
        if held > 0 {
            let taken = bytes.len().min(STRIPE_BYTES - held);
            self.rest[held..held + taken].copy_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            if held + taken < STRIPE_BYTES {
                return;
            }
            let stripe = self.rest;
            consume(&mut self.lanes, &[stripe]);
        }
        let (stripes, rest) = bytes.as_chunks::<STRIPE_BYTES>();
        consume(&mut self.lanes, stripes);
        self.rest[..rest.len()].copy_from_slice(rest);
    }

    pub(crate) fn finish(&self) -> u64 {
        let mut hash = if self.len >= STRIPE_BYTES as u64 {
            let [a, b, c, d] = self.lanes;
            let start = a
                .rotate_left(1)
                .wrapping_add(b.rotate_left(7))
                .wrapping_add(c.rotate_left(12))
                .wrapping_add(d.rotate_left(18));
            self.lanes.iter().fold(start, |hash, lane| {
                (hash ^ round(0, *lane)).wrapping_mul(PRIME_1).wrapping_add(PRIME_4)
            })
        } else {
            PRIME_5
        };
        hash = hash.wrapping_add(self.len);
        let rest = &self.rest[..self.len as usize % STRIPE_BYTES];
        let (words, rest) = rest.as_chunks::<8>();
        for word in words {
            hash ^= round(0, u64::from_le_bytes(*word));
            hash = hash.rotate_left(27).wrapping_mul(PRIME_1).wrapping_add(PRIME_4);
        }
        let (halves, rest) = rest.as_chunks::<4>();
        for half in halves {
            hash ^= u64::from(u32::from_le_bytes(*half)).wrapping_mul(PRIME_1);
            hash = hash.rotate_left(23).wrapping_mul(PRIME_2).wrapping_add(PRIME_3);
        }
        for byte in rest {
            hash ^= u64::from(*byte).wrapping_mul(PRIME_5);
            hash = hash.rotate_left(11).wrapping_mul(PRIME_1);
        }
        hash = (hash ^ (hash >> 33)).wrapping_mul(PRIME_2);
        hash = (hash ^ (hash >> 29)).wrapping_mul(PRIME_3);
        hash ^ (hash >> 32)
    }
}

fn round(lane: u64, word: u64) -> u64 {
    lane.wrapping_add(word.wrapping_mul(PRIME_2)).rotate_left(31).wrapping_mul(PRIME_1)
}

fn consume(lanes: &mut [u64; 4], stripes: &[[u8; STRIPE_BYTES]]) {
    let [mut a, mut b, mut c, mut d] = *lanes;
    for stripe in stripes {
        let (words, _) = stripe.as_chunks::<8>();
        a = round(a, u64::from_le_bytes(words[0]));
        b = round(b, u64::from_le_bytes(words[1]));
        c = round(c, u64::from_le_bytes(words[2]));
        d = round(d, u64::from_le_bytes(words[3]));
    }
    *lanes = [a, b, c, d];
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(bytes: &[u8]) -> u64 {
        let mut hasher = Xxh64::new();
        hasher.update(bytes);
        hasher.finish()
    }

    #[test]
    fn known_texts_have_the_published_hashes() {
        assert_eq!(hash(b""), 0xEF46_DB37_51D8_E999);
        assert_eq!(hash(b"abc"), 0x44BC_2CF5_AD77_0999);
        assert_eq!(hash(b"Nobody inspects the spammish repetition"), 0xFBCE_A83C_8A37_8BF1);
    }

    #[test]
    fn the_pieces_in_which_bytes_arrive_do_not_matter() {
        let bytes: Vec<u8> = (0..500u32).map(|i| (i * 7 + i / 11) as u8).collect();
        let whole = hash(&bytes);
        for piece_bytes in 1..80 {
            let mut hasher = Xxh64::new();
            for piece in bytes.chunks(piece_bytes) {
                hasher.update(piece);
            }
            assert_eq!(hasher.finish(), whole, "pieces of {piece_bytes} bytes");
        }
    }

    #[test]
    fn every_flipped_bit_changes_the_hash() {
        let mut bytes: Vec<u8> = (0..97u8).collect();
        let whole = hash(&bytes);
        for bit_idx in 0..bytes.len() * 8 {
            bytes[bit_idx / 8] ^= 1 << (bit_idx % 8);
            assert_ne!(hash(&bytes), whole, "bit {bit_idx}");
            bytes[bit_idx / 8] ^= 1 << (bit_idx % 8);
        }
    }
}
