//! Secrets that both ends of a connection share, and the hints by which the accepting end finds the
//! secret that the other end uses.

use serde::{Deserialize, Serialize};

/// Maximum length of the hint for a pre-shared key.
pub const HINT_BYTES_MAX: usize = 128;
/// A secret that proves membership in this cluster and encrypts its connections. Passed to a
/// process over its standard input, never logged.
#[derive(Clone, Copy, Deserialize, Eq, PartialEq, Serialize)]
pub struct Secret(pub [u8; 32]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Secret {
    /// Generates a secret from the system's source of randomness.
    ///
    /// # Errors
    /// Fails if the system has no such source.
    pub fn random() -> std::io::Result<Secret> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)?;
        Ok(Secret(bytes))
    }

    /// Reads 64 hexadecimal digits, as [`Secret::to_hex`] writes them.
    pub fn from_hex(text: &str) -> Option<Secret> {
        let digits = text.trim().as_bytes();
        if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        let digit = |byte: u8| (byte as char).to_digit(16).unwrap_or(0) as u8;
        Some(Secret(std::array::from_fn(|idx| {
            digit(digits[2 * idx]) << 4 | digit(digits[2 * idx + 1])
        })))
    }

    /// Formats the secret as 64 hexadecimal digits.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// A pre-shared key that grants access to one thing, and the hint with which the accepting side
/// finds it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct HintedKey {
    /// Hint, sent in clear: 1 to [`HINT_BYTES_MAX`] bytes.
    pub hint: Vec<u8>,
    /// Pre-shared key.
    pub secret: Secret,
}

impl HintedKey {
    /// Returns the key of a rank: its ticket, with the rank as the hint.
    pub fn of_rank(rank: u32, ticket: Secret) -> HintedKey {
        HintedKey { hint: rank.to_le_bytes().to_vec(), secret: ticket }
    }
}

/// Returns the rank that a hint names; `None` if it is not the hint of a rank.
pub fn rank_of_hint(hint: &[u8]) -> Option<u32> {
    hint.try_into().ok().map(u32::from_le_bytes)
}
