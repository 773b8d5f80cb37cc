//! The header before every payload.
//!
//! ```text
//! 0      4        5          6      7     8      16        24     32           40    44       48
//! | JKLF | version | operation | dtype | part | epoch | sequence | bytes | frame_bytes | rank | zero |
//! ```
//!
//! All integers are little endian. With checksums the payload is followed by its XXH64.

use crate::checksum::Xxh64;
use crate::dtype::Dtype;
use crate::error::{Message, Operation};

pub(crate) const HEADER_BYTES: usize = 48;
/// Size of the hash that follows a payload when checksums are on.
pub(crate) const TRAILER_BYTES: usize = 8;
/// Maximum size of the reason that a rank sends when it gives up.
pub(crate) const REASON_BYTES_MAX: usize = 512;

const MAGIC: [u8; 4] = *b"JKLF";
const VERSION: u8 = 1;

pub(crate) type HeaderBytes = [u8; HEADER_BYTES];

/// Encodes the header that `rank` sends for `message`.
pub(crate) fn encode(message: &Message, rank: usize) -> HeaderBytes {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4] = VERSION;
    bytes[5] = message.operation as u8;
    bytes[6] = message.dtype as u8;
    bytes[7] = message.part;
    bytes[8..16].copy_from_slice(&message.epoch.to_le_bytes());
    bytes[16..24].copy_from_slice(&message.sequence.to_le_bytes());
    bytes[24..32].copy_from_slice(&message.bytes.to_le_bytes());
    bytes[32..40].copy_from_slice(&message.frame_bytes.to_le_bytes());
    bytes[40..44].copy_from_slice(&(rank as u32).to_le_bytes());
    bytes
}

/// Decodes a header; `None` if it is not one of this protocol and version.
pub(crate) fn decode(bytes: &HeaderBytes) -> Option<Message> {
    let word = |at: usize| {
        u64::from_le_bytes(*bytes[at..].first_chunk().expect("the header is longer than that"))
    };
    if bytes[..4] != MAGIC || bytes[4] != VERSION {
        return None;
    }
    Some(Message {
        epoch: word(8),
        sequence: word(16),
        operation: Operation::from_code(bytes[5])?,
        dtype: Dtype::from_code(bytes[6])?,
        bytes: word(24),
        frame_bytes: word(32),
        part: bytes[7],
    })
}

/// Returns the hash that follows a payload when checksums are on.
pub(crate) fn trailer(payload: &[u8]) -> [u8; TRAILER_BYTES] {
    let mut hash = Xxh64::new();
    hash.update(payload);
    hash.finish().to_le_bytes()
}

/// Encodes the last frame of a rank that gives up, with the reason cut to [`REASON_BYTES_MAX`].
pub(crate) fn abort(epoch: u64, rank: usize, reason: &str) -> Vec<u8> {
    let mut end = reason.len().min(REASON_BYTES_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let reason = &reason.as_bytes()[..end];
    let message = Message {
        epoch,
        sequence: 0,
        operation: Operation::Abort,
        dtype: Dtype::U32,
        bytes: reason.len() as u64,
        frame_bytes: reason.len() as u64,
        part: 0,
    };
    let mut frame = encode(&message, rank).to_vec();
    frame.extend_from_slice(reason);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_says_what_was_put_into_it() {
        let message = Message {
            epoch: u64::MAX - 1,
            sequence: 77,
            operation: Operation::AllGather,
            dtype: Dtype::Bf16,
            bytes: 1 << 40,
            frame_bytes: 12_345,
            part: 1,
        };
        assert_eq!(decode(&encode(&message, 3)), Some(message));
    }

    #[test]
    fn no_header_of_ours_is_none() {
        assert_eq!(decode(&[0; HEADER_BYTES]), None);
        let message = Message {
            epoch: 0,
            sequence: 0,
            operation: Operation::Barrier,
            dtype: Dtype::U32,
            bytes: 0,
            frame_bytes: 0,
            part: 0,
        };
        for (at, wrong) in [(0, 0), (4, 2), (5, 0), (5, 99), (6, 0), (6, 9)] {
            let mut bytes = encode(&message, 0);
            bytes[at] = wrong;
            assert_eq!(decode(&bytes), None, "byte {at} = {wrong}");
        }
    }

    #[test]
    fn a_long_reason_is_cut_between_two_characters() {
        let frame = abort(1, 0, &"ä".repeat(1000));
        let reason = std::str::from_utf8(&frame[HEADER_BYTES..]).unwrap();
        assert_eq!(reason.len(), REASON_BYTES_MAX);
    }
}
