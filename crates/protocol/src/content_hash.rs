//! The SHA-256 hash of a file's content, by which copies of files are compared.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

/// Number of bytes that are read at a time, which bounds the memory for hashing a file.
const READ_BYTES: usize = 1 << 20;

/// The SHA-256 hash of a file's content.
#[derive(Clone, Copy, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct ContentHash(pub [u8; 32]);

/// A text that is not a hash.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("{text:?} is no hash of a file")]
pub struct HashTextError {
    /// The text.
    pub text: String,
}

impl ContentHash {
    /// Hashes bytes in memory.
    pub fn of(content: &[u8]) -> ContentHash {
        ContentHash(Sha256::digest(content).into())
    }

    /// Hashes the rest of a file. `on_bytes` is called with the number of bytes read since the last
    /// call.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn of_reader(
        mut file: impl Read,
        on_bytes: &(dyn Fn(u64) + Sync),
    ) -> io::Result<ContentHash> {
        let mut hasher = Sha256::new();
        let mut buffer = vec![0; READ_BYTES];
        loop {
            match file.read(&mut buffer) {
                Ok(0) => return Ok(ContentHash(hasher.finalize().into())),
                Ok(num_read) => {
                    hasher.update(&buffer[..num_read]);
                    on_bytes(num_read as u64);
                }
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) => return Err(err),
            }
        }
    }

    /// Hashes a file. `on_bytes` is called with the number of bytes read since the last call.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn of_file(path: &Path, on_bytes: &(dyn Fn(u64) + Sync)) -> io::Result<ContentHash> {
        ContentHash::of_reader(File::open(path)?, on_bytes)
    }
}

/// Parses `N` bytes in lower-case hexadecimal.
pub fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let is_hex = text.bytes().all(|it| it.is_ascii_digit() || (b'a'..=b'f').contains(&it));
    if text.len() != 2 * N || !is_hex {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

/// Writes bytes in lower-case hexadecimal.
///
/// # Errors
/// If the formatter fails.
pub fn write_hex(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

impl FromStr for ContentHash {
    type Err = HashTextError;

    fn from_str(text: &str) -> Result<ContentHash, HashTextError> {
        parse_hex(text).map(ContentHash).ok_or_else(|| HashTextError { text: text.to_owned() })
    }
}

impl TryFrom<String> for ContentHash {
    type Error = HashTextError;

    fn try_from(text: String) -> Result<ContentHash, HashTextError> {
        text.parse()
    }
}

impl From<ContentHash> for String {
    fn from(hash: ContentHash) -> String {
        hash.to_string()
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(&self.0, f)
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_the_one_that_sha256sum_prints() {
        let text = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        assert_eq!(ContentHash::of(b"hello\n").to_string(), text);
        assert_eq!(
            ContentHash::of_reader(&b"hello\n"[..], &|_| ()).unwrap(),
            text.parse().unwrap()
        );
        for bad in ["", "5891", &"g".repeat(64), &"A".repeat(64)] {
            assert!(bad.parse::<ContentHash>().is_err(), "{bad}");
        }
    }
}
