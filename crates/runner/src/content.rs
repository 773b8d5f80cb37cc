//! Verifies a checkpoint while it is read: a rank either holds the bytes of the served model, or
//! fails to load.
//!
//! ```text
//!                               in a state of known content          in any other state
//!   one run of whole blocks     read; one block in 32 is hashed,     hashed as they are read
//!                               each if from another machine
//!   parts of blocks, columns    read                                 the whole block is read and hashed,
//!                                                                    then its part is copied
//!   after loading               the file is in the same state        -
//! ```
//!
//! Reading files in a known state thus costs two `stat` calls per file and a sample of hashes,
//! which detects failing disks. Everything read from a file in an unknown state is hashed. If a
//! tensor is cut by columns, that is the whole tensor, whichever columns this rank needs.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use jackalope_protocol::{CheckpointId, ExpectedContent, FileState, FileTree, counted};
use jackalope_store::content::{self, Layout};
use jackalope_weights::checkpoint::{Files, OtherContent, Pieces, in_parallel};

/// Maximum number of hashing threads; beyond this, memory bandwidth is the limit.
const THREADS_MAX: usize = 8;

/// Minimum number of blocks per thread.
const BLOCKS_PER_THREAD: usize = 4;

/// One in this many blocks of a file in a known state is hashed; the process id selects which ones.
const SAMPLE: usize = 32;

/// Longer headers, and longer `config.json` files, are rejected where they are parsed.
const HEAD_BYTES_MAX: u64 = 128 << 20;

const HINT: &str = "hint: if you changed the model on purpose, restart the server; if not, \
    `jackalope models check MODEL --hosts …` finds which machine is wrong, and `jackalope models sync \
    MODEL --hosts …` copies the model again";

/// Files of a checkpoint whose content is verified.
#[derive(Debug)]
pub(crate) struct VerifiedFiles {
    inner: Arc<dyn Files>,
    id: Option<CheckpointId>,
    files: HashMap<String, VerifiedFile>,
    /// States of the files whose content is known.
    known: Vec<FileState>,
    num_threads: usize,
    /// Whether each read goes over the network.
    is_remote: bool,
}

#[derive(Debug)]
struct VerifiedFile {
    head: Vec<u8>,
    layout: Layout,
    tree: FileTree,
    /// Whether the state of the file guarantees its content.
    is_known: bool,
}

/// A block to verify, and the part of the target that its bytes are copied to.
struct Job<'a> {
    block: usize,
    /// Offset of `target`, that part, among all requested bytes.
    at: u64,
    target: &'a mut [u8],
}

impl VerifiedFiles {
    /// Wraps `inner`, whose files must have the expected content.
    ///
    /// # Errors
    /// [`OtherContent`] if they obviously do not; otherwise, errors of reading the files.
    pub(crate) fn open(
        inner: Arc<dyn Files>,
        expected: ExpectedContent,
        num_threads: usize,
        is_remote: bool,
    ) -> io::Result<VerifiedFiles> {
        let ExpectedContent { id, tree, states } = expected;
        let listed = inner.list()?;
        let listed: Vec<&(String, u64)> =
            listed.iter().filter(|(name, _)| content::is_read_by_ranks(name)).collect();
        let names: Vec<String> = listed.iter().map(|(name, _)| name.clone()).collect();
        let found = inner.states(&names)?;
        let (known, unknown): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|state| states.contains(state));
        let num_threads = num_threads.clamp(1, THREADS_MAX);
        let mut files =
            VerifiedFiles { inner, id, files: HashMap::new(), known, num_threads, is_remote };
        let Some(id) = id else {
            return match unknown.first() {
                None if names.len() == states.len() => Ok(files),
                _ => {
                    let name = unknown.first().map_or("a file", |it| &it.name);
                    let reason = format!("{name} was changed before its content was hashed");
                    Err(other(&reason))
                }
            };
        };
        if content::identity(&tree) != id {
            return Err(other(&format!("the received hashes are not those of checkpoint {id:?}")));
        }
        if let Some(extra) = names.iter().find(|name| tree.files.iter().all(|it| it.name != **name))
        {
            return Err(other(&format!("{extra} is not part of the model that is served")));
        }
        let least = content::block_bytes_min(tree.bytes());
        for file in tree.files {
            let size = listed.iter().find(|(name, _)| *name == file.name).map(|it| it.1);
            match size {
                None => return Err(other(&format!("{} is missing", file.name))),
                Some(bytes) if bytes != file.bytes => {
                    let found = counted(bytes, "byte");
                    let reason = format!("{} has {found}, not {}", file.name, file.bytes);
                    return Err(other(&reason));
                }
                Some(_) => files.add(file, least)?,
            }
        }
        Ok(files)
    }

    fn add(&mut self, tree: FileTree, block_bytes_min: u64) -> io::Result<()> {
        let is_weights = content::is_weights(&tree.name);
        let head_bytes = match is_weights {
            false => tree.bytes,
            true => {
                let mut length = [0; 8];
                self.inner.read(&tree.name, Pieces::run(0, 8), &mut length)?;
                u64::from_le_bytes(length).saturating_add(8)
            }
        };
        if HEAD_BYTES_MAX.min(tree.bytes) < head_bytes {
            return Err(other(&format!("{} begins with a different table of tensors", tree.name)));
        }
        let mut head = vec![0; usize::try_from(head_bytes).expect("checked against the limit")];
        let run = Pieces::run(0, head.len());
        self.inner.read(&tree.name, run, &mut head)?;
        if content::hash(&head) != tree.head {
            let what = if is_weights { "a different table of tensors" } else { "other content" };
            return Err(other(&format!("{} has {what}", tree.name)));
        }
        let layout = if is_weights {
            Layout::of_head(&head, block_bytes_min).map_err(io::Error::other)?
        } else {
            Layout::without_tensors(tree.bytes)
        };
        if layout.num_blocks != tree.leaves.len() {
            return Err(other(&format!("{} has a different number of blocks", tree.name)));
        }
        let is_known = self.known.iter().any(|state| state.name == tree.name);
        self.files.insert(tree.name.clone(), VerifiedFile { head, layout, tree, is_known });
        Ok(())
    }

    /// Returns the identity that was verified, once everything has been read.
    ///
    /// # Errors
    /// If a file has left its known state since it was opened. Loading again verifies it block by
    /// block.
    pub(crate) fn finish(&self) -> io::Result<Option<CheckpointId>> {
        let names: Vec<String> = self.known.iter().map(|state| state.name.clone()).collect();
        let found = self.inner.states(&names)?;
        let changed = self.known.iter().find(|state| !found.contains(state));
        if let Some(changed) = changed {
            let reason = format!("{} was changed while it was loaded", changed.name);
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, reason));
        }
        Ok(self.id)
    }

    fn verify(&self, file: &VerifiedFile, pieces: Pieces, target: &mut [u8]) -> io::Result<()> {
        let mut jobs = Vec::new();
        let (mut rest, mut at) = (target, 0);
        for block in file.layout.blocks_in(&extent(pieces, rest.len())) {
            let end = bytes_before(pieces, file.layout.block(block).range.end);
            let length = usize::try_from(end - at).unwrap_or(rest.len()).min(rest.len());
            let (part, later) = rest.split_at_mut(length);
            if !part.is_empty() {
                jobs.push(Job { block, at, target: part });
            }
            (rest, at) = (later, end);
        }
        let num_threads = self.num_threads.min(jobs.len() / BLOCKS_PER_THREAD);
        in_parallel(jobs, num_threads, |job| self.read_block(file, pieces, job))
    }

    /// Reads one block, hashes it, and copies the requested part of it.
    fn read_block(&self, file: &VerifiedFile, pieces: Pieces, job: Job<'_>) -> io::Result<()> {
        let Job { block, at, target } = job;
        let range = file.layout.block(block).range;
        let length = usize::try_from(range.end - range.start).expect("a block fits into memory");
        let name = &file.tree.name;
        if target.len() == length {
            self.inner.read(name, Pieces::run(range.start, length), target)?;
            return check(file, block, target);
        }
        let mut buffer = vec![0; length];
        self.inner.read(name, Pieces::run(range.start, length), &mut buffer)?;
        check(file, block, &buffer)?;
        let mut done = 0;
        while done < target.len() {
            let at = at + done as u64;
            let from =
                usize::try_from(place(pieces, at) - range.start).expect("it is in the block");
            let in_piece = pieces.piece_bytes - (at % pieces.piece_bytes as u64) as usize;
            let num = in_piece.min(target.len() - done).min(length - from);
            target[done..done + num].copy_from_slice(&buffer[from..from + num]);
            done += num;
        }
        Ok(())
    }

    /// Hashes whole blocks of a run after it was read: all of them if they came over the network,
    /// otherwise a sample.
    fn check_run(&self, file: &VerifiedFile, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let first = std::process::id() as usize;
        let is_checked = |block: &usize| self.is_remote || (first + block).is_multiple_of(SAMPLE);
        let whole = |block: usize| {
            let range = file.layout.block(block).range;
            let begin = usize::try_from(range.start.checked_sub(offset)?).ok()?;
            let end = begin + usize::try_from(range.end - range.start).ok()?;
            bytes.get(begin..end)
        };
        let blocks = file.layout.blocks_in(&(offset..offset + bytes.len() as u64));
        let mut whole = blocks.filter(is_checked).filter_map(|block| Some((block, whole(block)?)));
        whole.try_for_each(|(block, bytes)| check(file, block, bytes))
    }
}

impl Files for VerifiedFiles {
    fn place(&self) -> &Path {
        self.inner.place()
    }

    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        self.inner.list()
    }

    fn states(&self, files: &[String]) -> io::Result<Vec<FileState>> {
        self.inner.states(files)
    }

    fn read(&self, name: &str, pieces: Pieces, target: &mut [u8]) -> io::Result<()> {
        let Some(file) = self.files.get(name) else {
            return match self.id {
                // The file is known only by its state.
                None => self.inner.read(name, pieces, target),
                Some(_) => Err(other(&format!("{name} is not part of the model that is served"))),
            };
        };
        let is_run = pieces.piece_bytes == target.len();
        let begin = usize::try_from(pieces.offset).unwrap_or(usize::MAX);
        if let Some(end) = begin.checked_add(target.len())
            && let Some(part) = file.head.get(begin..end).filter(|_| is_run)
        {
            target.copy_from_slice(part);
            return Ok(());
        }
        if !file.is_known {
            return self.verify(file, pieces, target);
        }
        self.inner.read(name, pieces, target)?;
        if is_run { self.check_run(file, pieces.offset, target) } else { Ok(()) }
    }
}

fn check(file: &VerifiedFile, block: usize, bytes: &[u8]) -> io::Result<()> {
    if content::hash(bytes) == file.tree.leaves[block] {
        return Ok(());
    }
    let tensor = file.layout.block(block).tensor;
    let why = if file.is_known {
        ", although the file was not written to: its disk may be failing"
    } else {
        ""
    };
    Err(other(&format!("tensor {tensor} differs from the model that is served{why}")))
}

fn other(reason: &str) -> io::Error {
    OtherContent { reason: format!("{reason}\n{HINT}") }.into()
}

/// Returns the range from the first byte of all pieces to the last, for a target of this length.
fn extent(pieces: Pieces, num_bytes: usize) -> std::ops::Range<u64> {
    match (num_bytes as u64).checked_sub(1) {
        None => pieces.offset..pieces.offset,
        Some(last) => pieces.offset..place(pieces, last) + 1,
    }
}

/// Returns the position in the file of byte `at` of the requested bytes.
fn place(pieces: Pieces, at: u64) -> u64 {
    let piece_bytes = pieces.piece_bytes as u64;
    pieces.offset + at / piece_bytes * pieces.stride_bytes + at % piece_bytes
}

/// Returns the number of bytes of the pieces before a position in the file.
fn bytes_before(pieces: Pieces, place: u64) -> u64 {
    let piece_bytes = pieces.piece_bytes as u64;
    let from_first = place.saturating_sub(pieces.offset);
    if pieces.stride_bytes == 0 {
        return from_first.min(piece_bytes);
    }
    let (piece, within) = (from_first / pieces.stride_bytes, from_first % pieces.stride_bytes);
    piece * piece_bytes + within.min(piece_bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use jackalope_store::content::Hasher;
    use jackalope_weights::checkpoint;

    use super::*;

    const NUM_BYTES: usize = 700_000;
    const SMALL: usize = 100;

    /// A checkpoint of two tensors; deleted when dropped.
    struct Sample(PathBuf);

    impl Sample {
        fn new(name: &str) -> Sample {
            let name = format!("jackalope-rank-content-{}-{name}", std::process::id());
            let dir = std::env::temp_dir().join(name);
            fs::create_dir_all(&dir).unwrap();
            let (end, last) = (NUM_BYTES, NUM_BYTES + SMALL);
            let header = format!(
                r#"{{"large":{{"dtype":"U8","shape":[{end}],"data_offsets":[0,{end}]}},"small":{{"dtype":"U8","shape":[{SMALL}],"data_offsets":[{end},{last}]}}}}"#
            );
            let mut file = (header.len() as u64).to_le_bytes().to_vec();
            file.extend(header.bytes());
            file.extend((0..last).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 11) as u8));
            fs::write(dir.join("model.safetensors"), file).unwrap();
            fs::write(dir.join("config.json"), b"{}").unwrap();
            Sample(dir)
        }

        fn path(&self) -> PathBuf {
            self.0.join("model.safetensors")
        }

        fn data_begin(&self) -> u64 {
            fs::metadata(self.path()).unwrap().len() - (NUM_BYTES + SMALL) as u64
        }

        /// Returns the expected content of the checkpoint, with the states of its files if
        /// `is_known`.
        fn expected(&self, is_known: bool) -> ExpectedContent {
            let content = Hasher::new(None, &|_| ()).hash_dir(&self.0).unwrap();
            let states = if is_known { content::states(&self.0).unwrap() } else { Vec::new() };
            ExpectedContent { states, ..content.into() }
        }

        fn open(&self, expected: ExpectedContent) -> io::Result<VerifiedFiles> {
            VerifiedFiles::open(checkpoint::local(&self.0), expected, 3, false)
        }

        fn flip(&self, at: u64) {
            let mut file = fs::read(self.path()).unwrap();
            file[at as usize] ^= 4;
            fs::write(self.path(), file).unwrap();
        }
    }

    impl Drop for Sample {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).ok();
        }
    }

    /// Runs and columns of the large tensor: offset in the tensor, bytes per piece, stride, number
    /// of pieces.
    const PIECES: [(u64, usize, u64, usize); 8] = [
        (0, NUM_BYTES, NUM_BYTES as u64, 1),
        (0, 5, 5, 1),
        (65_530, 10, 10, 1),
        (100_000, 400_000, 400_000, 1),
        (0, 100, 1000, 700),
        (900, 100, 1000, 700),
        (17, 40_000, 100_000, 6),
        (60_000, 140_000, 350_000, 2),
    ];

    fn read(
        files: &dyn Files,
        begin: u64,
        (offset, piece_bytes, stride_bytes, num): (u64, usize, u64, usize),
    ) -> io::Result<Vec<u8>> {
        let mut target = vec![0; piece_bytes * num];
        let pieces = Pieces { offset: begin + offset, piece_bytes, stride_bytes };
        files.read("model.safetensors", pieces, &mut target)?;
        Ok(target)
    }

    #[test]
    fn what_is_read_is_what_the_file_holds_whatever_is_known_of_it() {
        let sample = Sample::new("same");
        let (begin, plain) = (sample.data_begin(), checkpoint::local(&sample.0));
        for is_known in [true, false] {
            let files = sample.open(sample.expected(is_known)).unwrap();
            for pieces in PIECES {
                let wanted = read(&*plain, begin, pieces).unwrap();
                assert_eq!(read(&files, begin, pieces).unwrap(), wanted, "{pieces:?} {is_known}");
            }
            assert_eq!(files.finish().unwrap(), sample.expected(false).id);
        }
    }

    /// A flipped byte is found by every read of its block, unless the file is known by its state.
    #[test]
    fn a_flipped_byte_is_found_by_everyone_who_reads_its_block() {
        let sample = Sample::new("flipped");
        let (begin, expected) = (sample.data_begin(), sample.expected(false));
        let least = content::block_bytes_min(begin);
        let head = &fs::read(sample.path()).unwrap()[..begin as usize];
        let layout = Layout::of_head(head, least).unwrap();
        for at in [0, 1, 65_535, 65_536, 123_456, NUM_BYTES as u64 - 1] {
            sample.flip(begin + at);
            let files = sample.open(expected.clone()).unwrap();
            let block = layout.blocks_in(&(begin + at..begin + at + 1));
            for pieces in PIECES {
                let all = Pieces {
                    offset: begin + pieces.0,
                    piece_bytes: pieces.1,
                    stride_bytes: pieces.2,
                };
                let touched = layout.blocks_in(&extent(all, pieces.1 * pieces.3));
                let read = read(&files, begin, pieces);
                // Some blocks between distant columns contain no requested bytes.
                let (before, after) =
                    (layout.block(block.start).range.start, layout.block(block.start).range.end);
                let is_wanted = touched.contains(&block.start)
                    && bytes_before(all, before) < bytes_before(all, after);
                assert_eq!(read.is_err(), is_wanted, "byte {at}, {pieces:?}");
                if let Err(err) = read {
                    assert!(err.to_string().starts_with("tensor large differs"), "{err}");
                }
            }
            sample.flip(begin + at);
        }
    }

    /// Simulates a failing disk: the content differs although the state is known.
    #[test]
    fn of_known_files_from_another_machine_all_and_of_local_ones_some_blocks_are_hashed() {
        let sample = Sample::new("disk");
        let (begin, sound) = (sample.data_begin(), sample.expected(false));
        let mut file = fs::read(sample.path()).unwrap();
        file[begin as usize..].iter_mut().for_each(|byte| *byte ^= 1);
        fs::write(sample.path(), file).unwrap();
        let states = content::states(&sample.0).unwrap();
        let believed = ExpectedContent { states, ..sound };
        let open = |is_remote| {
            let inner = checkpoint::local(&sample.0);
            VerifiedFiles::open(inner, believed.clone(), 1, is_remote).unwrap()
        };
        let block = (0, 65_536, 65_536, 1);
        let err = read(&open(true), begin, block).unwrap_err();
        assert!(err.to_string().contains("the file was not written to"), "{err}");
        let layout = open(true).files["model.safetensors"].layout.clone();
        let files = open(false);
        let refused = (0..layout.num_blocks).filter(|&block| {
            let range = layout.block(block).range;
            let length = (range.end - range.start) as usize;
            read(&files, range.start, (0, length, length as u64, 1)).is_err()
        });
        let wanted = (0..layout.num_blocks)
            .filter(|block| (block + std::process::id() as usize).is_multiple_of(SAMPLE));
        assert!(refused.eq(wanted));
    }

    #[test]
    fn other_tables_sizes_and_files_are_refused_at_once() {
        let sample = Sample::new("refused");
        let expected = sample.expected(false);
        let refused = |what: &str| {
            let err = sample.open(expected.clone()).unwrap_err();
            assert!(err.to_string().contains(what) && err.to_string().contains("hint:"), "{err}");
            assert!(err.get_ref().is_some_and(|it| it.is::<OtherContent>()), "{err:?}");
        };
        fs::write(sample.0.join("config.json"), b"[]").unwrap();
        refused("config.json has other content");
        fs::write(sample.0.join("config.json"), b"{}").unwrap();
        sample.flip(12);
        refused("a different table of tensors");
        sample.flip(12);
        fs::write(sample.0.join("model-2.safetensors"), b"").unwrap();
        refused("model-2.safetensors is not part of the model");
        fs::remove_file(sample.0.join("model-2.safetensors")).unwrap();
        assert!(sample.open(expected.clone()).is_ok());
        let forged = ExpectedContent { id: Some(CheckpointId([3; 32])), ..expected.clone() };
        assert!(sample.open(forged).unwrap_err().to_string().contains("are not those"));
        fs::remove_file(sample.path()).unwrap();
        refused("model.safetensors is missing");
    }

    /// Before a model has been hashed, only the states of its files identify their content.
    #[test]
    fn what_was_never_hashed_is_loaded_in_the_state_that_was_seen_and_in_no_other() {
        let sample = Sample::new("states");
        let states = content::states(&sample.0).unwrap();
        let expected = ExpectedContent { states, ..ExpectedContent::default() };
        let files = sample.open(expected.clone()).unwrap();
        assert_eq!(files.finish().unwrap(), None);
        let then = std::time::UNIX_EPOCH + std::time::Duration::from_secs(9);
        let file = fs::File::options().write(true).open(sample.path()).unwrap();
        file.set_modified(then).unwrap();
        let err = files.finish().unwrap_err();
        assert_eq!(err.kind(), io::ErrorKind::ConnectionAborted, "another attempt finds out more");
        let err = sample.open(expected).unwrap_err();
        assert!(err.to_string().contains("model.safetensors was changed before"), "{err}");
    }
}
