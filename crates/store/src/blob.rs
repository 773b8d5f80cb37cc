//! Content addressed by its hash: by SHA-256, or as git names a blob.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::str::FromStr;

use jackalope_protocol::{ContentHash, HashTextError, parse_hex, write_hex};
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// Number of bytes that are read at a time, which bounds the memory for hashing a file.
const READ_BYTES: usize = 1 << 20;

/// The name of a blob in Hugging Face's cache.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum BlobId {
    /// Name of a large file: its SHA-256.
    Content(ContentHash),
    /// Name of a small file, as in git: SHA-1 of `blob LENGTH\0` and the content.
    Git([u8; 20]),
}

/// An incremental hasher.
#[derive(Clone, Debug)]
pub enum BlobHasher {
    /// Computes a [`BlobId::Content`].
    Content(Sha256),
    /// Computes a [`BlobId::Git`].
    Git(Sha1),
}

impl BlobId {
    /// Creates a hasher for content of `num_bytes`, whose result can be compared with this name.
    pub fn hasher(&self, num_bytes: u64) -> BlobHasher {
        match self {
            BlobId::Content(_) => BlobHasher::Content(Sha256::new()),
            BlobId::Git(_) => BlobHasher::Git(Sha1::new_with_prefix(format!("blob {num_bytes}\0"))),
        }
    }

    /// Computes the name that a file's content has, of the same kind as this one. `on_bytes` is
    /// called with the number of bytes read since the last call.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn of_file_like_this(
        &self,
        path: &Path,
        on_bytes: &(dyn Fn(u64) + Sync),
    ) -> io::Result<BlobId> {
        let file = File::open(path)?;
        let mut hasher = self.hasher(file.metadata()?.len());
        feed(file, &mut hasher, on_bytes)?;
        Ok(hasher.finish())
    }
}

impl BlobHasher {
    /// Adds the next bytes of the content.
    pub fn update(&mut self, piece: &[u8]) {
        match self {
            BlobHasher::Content(hasher) => hasher.update(piece),
            BlobHasher::Git(hasher) => hasher.update(piece),
        }
    }

    /// Returns the name of all bytes added.
    pub fn finish(self) -> BlobId {
        match self {
            BlobHasher::Content(hasher) => BlobId::Content(ContentHash(hasher.finalize().into())),
            BlobHasher::Git(hasher) => BlobId::Git(hasher.finalize().into()),
        }
    }
}

/// Feeds the bytes of `file` from its current position to `hasher`. `on_bytes` is called with the
/// number of bytes read since the last call.
///
/// # Errors
/// If the file cannot be read.
pub fn feed(
    mut file: impl Read,
    hasher: &mut BlobHasher,
    on_bytes: &(dyn Fn(u64) + Sync),
) -> io::Result<()> {
    let mut buffer = vec![0; READ_BYTES];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(num_read) => {
                hasher.update(&buffer[..num_read]);
                on_bytes(num_read as u64);
            }
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(err) => return Err(err),
        }
    }
}

impl FromStr for BlobId {
    type Err = HashTextError;

    fn from_str(text: &str) -> Result<BlobId, HashTextError> {
        let content = parse_hex(text).map(|it| BlobId::Content(ContentHash(it)));
        let git = || parse_hex(text).map(BlobId::Git);
        content.or_else(git).ok_or_else(|| HashTextError { text: text.to_owned() })
    }
}

impl fmt::Display for BlobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BlobId::Content(hash) => fmt::Display::fmt(hash, f),
            BlobId::Git(hash) => write_hex(hash, f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_that_git_and_sha256sum_print() {
        // `printf 'hello\n' | git hash-object --stdin`, and `| sha256sum`.
        let git: BlobId = "ce013625030ba8dba906f756967f9e9ca394464a".parse().unwrap();
        let content: BlobId =
            "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03".parse().unwrap();
        for id in [git, content] {
            let mut hasher = id.hasher(6);
            hasher.update(b"hel");
            hasher.update(b"lo\n");
            assert_eq!(hasher.finish(), id);
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        for bad in ["", "ce01", "../../etc/passwd", &"g".repeat(40), &"A".repeat(64)] {
            assert!(bad.parse::<BlobId>().is_err(), "{bad}");
        }
    }
}
