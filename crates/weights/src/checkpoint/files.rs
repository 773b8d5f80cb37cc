//! Sources of a checkpoint's files: a local directory, or anything else that can list and read
//! them.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use jackalope_protocol::FileState;
use thiserror::Error;

use super::readers::{NUM_READERS, in_parallel};

/// Pieces of a file that have the same length and the same distance. They are read into one target,
/// one after another.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Pieces {
    /// Offset of the first piece in the file.
    pub offset: u64,
    /// Length of each piece in bytes.
    pub piece_bytes: usize,
    /// Distance between the beginnings of two consecutive pieces, in bytes.
    pub stride_bytes: u64,
}

impl Pieces {
    /// Creates a single contiguous piece.
    pub fn run(offset: u64, num_bytes: usize) -> Pieces {
        Pieces { offset, piece_bytes: num_bytes, stride_bytes: num_bytes as u64 }
    }
}

/// Approximate number of bytes that a thread reads before it takes the next part of a tensor.
const PART_BYTES: usize = 4 << 20;

/// Number of bytes that are read at a time of pieces that lie close together.
const SPAN_BYTES: usize = 1 << 20;

/// Maximum part of what lies between pieces: with more, each piece is read separately.
const DENSE_STRIDES: u64 = 4;

impl Pieces {
    /// Whether reading what lies between the pieces costs less than a call for each of them.
    fn is_dense(&self) -> bool {
        let piece_bytes = self.piece_bytes as u64;
        self.stride_bytes <= DENSE_STRIDES * piece_bytes && self.piece_bytes < SPAN_BYTES
    }

    /// Divides the pieces that fill `target` into parts of about `PART_BYTES`.
    pub(super) fn parts(self, target: &mut [u8]) -> impl Iterator<Item = (Pieces, &mut [u8])> {
        let is_run = target.len() <= self.piece_bytes;
        let pieces = if is_run { Pieces::run(self.offset, PART_BYTES) } else { self };
        let num_pieces = (PART_BYTES / pieces.piece_bytes).max(1);
        let targets = target.chunks_mut(num_pieces * pieces.piece_bytes);
        targets.enumerate().map(move |(idx, target)| {
            let offset = pieces.offset + (idx * num_pieces) as u64 * pieces.stride_bytes;
            (Pieces { offset, ..pieces }, target)
        })
    }
}

/// Reads pieces on this thread.
fn read_pieces(file: &File, pieces: Pieces, target: &mut [u8]) -> io::Result<()> {
    if pieces.piece_bytes < target.len() && pieces.is_dense() {
        return read_dense(file, pieces, target);
    }
    let mut offset = pieces.offset;
    for piece in target.chunks_mut(pieces.piece_bytes) {
        file.read_exact_at(piece, offset)?;
        offset += pieces.stride_bytes;
    }
    Ok(())
}

/// Reads pieces together with what lies between them.
fn read_dense(file: &File, pieces: Pieces, target: &mut [u8]) -> io::Result<()> {
    let Pieces { offset, piece_bytes, stride_bytes } = pieces;
    let stride = usize::try_from(stride_bytes).expect("close to the length of a piece");
    let num_pieces = (SPAN_BYTES / stride).max(1);
    let mut span = vec![0; num_pieces * stride];
    for (idx, target) in target.chunks_mut(num_pieces * piece_bytes).enumerate() {
        let found = target.len().div_ceil(piece_bytes);
        let last_bytes = target.len() - (found - 1) * piece_bytes;
        let span = &mut span[..(found - 1) * stride + last_bytes];
        file.read_exact_at(span, offset + (idx * num_pieces * stride) as u64)?;
        for (piece, from) in target.chunks_mut(piece_bytes).zip(span.chunks(stride)) {
            piece.copy_from_slice(&from[..piece.len()]);
        }
    }
    Ok(())
}

/// The files of a checkpoint.
pub trait Files: fmt::Debug + Send + Sync {
    /// Returns the directory, as errors name it.
    fn place(&self) -> &Path;

    /// Lists the files directly in the directory, with their sizes in bytes.
    ///
    /// # Errors
    /// Returns errors of the underlying storage.
    fn list(&self) -> io::Result<Vec<(String, u64)>>;

    /// Fills `target` with pieces of a file, as many as fit.
    ///
    /// # Errors
    /// Returns errors of the underlying storage, and an error if the file ends too early. An error
    /// that a retry may resolve has the kind [`io::ErrorKind::ConnectionAborted`].
    fn read(&self, file: &str, pieces: Pieces, target: &mut [u8]) -> io::Result<()>;

    /// Returns the states of these files as opened for reading: if a file is replaced in its
    /// directory, open handles still refer to the old one.
    ///
    /// # Errors
    /// Returns errors of the underlying storage.
    fn states(&self, files: &[String]) -> io::Result<Vec<FileState>>;
}

/// The content of a file differs from what is expected: the cause of an [`io::Error`] from verified
/// files.
#[derive(Clone, Debug, Error, Eq, PartialEq)]
#[error("{reason}")]
pub struct OtherContent {
    /// Describes the difference, with a `hint:` line.
    pub reason: String,
}

impl From<OtherContent> for io::Error {
    fn from(other: OtherContent) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, other)
    }
}

/// Returns the files in a local directory. Each file is opened once.
pub fn local(dir: &Path) -> Arc<dyn Files> {
    Arc::new(Dir::new(dir))
}

/// A local directory.
struct Dir {
    path: PathBuf,
    open: Mutex<HashMap<String, Arc<File>>>,
}

impl Dir {
    fn new(path: &Path) -> Dir {
        Dir { path: path.to_path_buf(), open: Mutex::default() }
    }

    fn open(&self, name: &str) -> io::Result<Arc<File>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = open.get(name) {
            return Ok(Arc::clone(file));
        }
        let file = Arc::new(File::open(self.path.join(name))?);
        open.insert(name.to_owned(), Arc::clone(&file));
        Ok(file)
    }
}

impl fmt::Debug for Dir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Dir").field(&self.path).finish()
    }
}

impl Files for Dir {
    fn place(&self) -> &Path {
        &self.path
    }

    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        let mut listed = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            // Every file that is read has a name in UTF-8.
            let Ok(name) = entry?.file_name().into_string() else { continue };
            // Download caches hold symbolic links to files. A broken link counts as empty here; if
            // the file is needed, opening it reports the error.
            let num_bytes = fs::metadata(self.path.join(&name)).map_or(0, |it| it.len());
            listed.push((name, num_bytes));
        }
        Ok(listed)
    }

    fn read(&self, file: &str, pieces: Pieces, target: &mut [u8]) -> io::Result<()> {
        let file = self.open(file)?;
        if target.is_empty() {
            return Ok(());
        }
        in_parallel(pieces.parts(target), NUM_READERS, |(pieces, target)| {
            read_pieces(&file, pieces, target)
        })
    }

    fn states(&self, files: &[String]) -> io::Result<Vec<FileState>> {
        let state = |name: &String| Ok(FileState::new(name, &self.open(name)?.metadata()?));
        files.iter().map(state).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_reads_in_parts_find_the_same_bytes() {
        let dir = std::env::temp_dir().join(format!("jackalope-parts-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let content: Vec<u8> = (0..3 * PART_BYTES + 12_345)
            .map(|at| (at.wrapping_mul(0x9e37_79b9) >> 11) as u8)
            .collect();
        fs::write(dir.join("file"), &content).unwrap();
        let files = local(&dir);
        let read = |pieces: Pieces, num_bytes: usize| {
            let mut target = vec![0; num_bytes];
            files.read("file", pieces, &mut target).map(|()| target)
        };
        for num_bytes in [1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, content.len() - 7] {
            let found = read(Pieces::run(7, num_bytes), num_bytes).unwrap();
            assert!(found == content[7..7 + num_bytes], "a run of {num_bytes}");
        }
        // Columns, dense and not, and pieces that are longer than a part.
        let cases =
            [(1000, 3000), (1000, 30_000), (2 << 20, 5 << 20), (PART_BYTES + 3, PART_BYTES + 9)];
        for (piece_bytes, stride) in cases {
            let rows = content[7..].chunks(stride).filter(|row| piece_bytes <= row.len());
            let expected: Vec<u8> = rows.flat_map(|row| &row[..piece_bytes]).copied().collect();
            let pieces = Pieces { offset: 7, piece_bytes, stride_bytes: stride as u64 };
            let found = read(pieces, expected.len()).unwrap();
            assert!(found == expected, "{piece_bytes} of {stride}");
        }
        let err = read(Pieces::run(8, content.len()), content.len()).unwrap_err();
        assert_eq!(err.kind(), io::ErrorKind::UnexpectedEof);
        fs::remove_dir_all(&dir).unwrap();
    }
}
