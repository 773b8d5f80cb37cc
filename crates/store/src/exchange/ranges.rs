//! A file that arrives in ranges, in any order, and whose transfer can be resumed.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use jackalope_protocol::{ContentHash, FilePath};

use crate::FileEntry;

/// Suffix of the list of the ranges of an unfinished file that have arrived.
const LIST_SUFFIX: &str = ".ranges";

/// Size of a range: the length of one read, and the most that is lost when a connection breaks.
pub(super) const RANGE_BYTES: u64 = 8 << 20;

/// Number of hexadecimal digits of the hash in the name of an unfinished file.
const NAME_DIGITS: usize = 16;

/// An unfinished file, with a list of the ranges that have arrived.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) entry: FileEntry,
    path: PathBuf,
    list_path: PathBuf,
    file: File,
    list: Mutex<File>,
    /// Ranges that were missing when the file was opened.
    pub(super) missing: Vec<u32>,
    num_missing: AtomicU32,
}

impl Part {
    /// Opens the unfinished file in `dir`, with the ranges that arrived earlier.
    pub(super) fn open(dir: &Path, entry: &FileEntry) -> io::Result<Part> {
        let hash = entry.sha256.to_string();
        let name = part_name(&entry.path);
        let path = dir.join(format!("{}-{name}", &hash[..NAME_DIGITS]));
        let list_path = dir.join(format!("{}-{name}{LIST_SUFFIX}", &hash[..NAME_DIGITS]));
        let num_ranges = u32::try_from(entry.bytes.div_ceil(RANGE_BYTES))
            .map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        let is_begun = fs::metadata(&path).is_ok_and(|it| it.len() == entry.bytes);
        let listed = fs::read_to_string(&list_path).unwrap_or_default();
        let mut is_there = vec![false; num_ranges as usize];
        // A last line that was cut off has no newline and is ignored.
        let numbers = listed.split_inclusive('\n').filter_map(|it| it.strip_suffix('\n'));
        for number in numbers.filter_map(|it| it.parse::<usize>().ok()) {
            if let Some(is_there) = is_there.get_mut(number).filter(|_| is_begun) {
                *is_there = true;
            }
        }
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(&path)?;
        file.set_len(entry.bytes)?;
        let list = if is_begun {
            let list = OpenOptions::new().append(true).create(true).open(&list_path)?;
            // The next number must not be appended to a line that was cut off.
            list.set_len(listed.rfind('\n').map_or(0, |end| end as u64 + 1))?;
            list
        } else {
            File::create(&list_path)?
        };
        let missing: Vec<u32> = (0..num_ranges).filter(|&it| !is_there[it as usize]).collect();
        let num_missing =
            AtomicU32::new(u32::try_from(missing.len()).expect("no more than ranges"));
        let entry = entry.clone();
        Ok(Part { entry, path, list_path, file, list: Mutex::new(list), missing, num_missing })
    }

    /// Returns the position and the length of a range.
    pub(super) fn bounds(&self, range: u32) -> (u64, usize) {
        let begin = u64::from(range) * RANGE_BYTES;
        let length = (self.entry.bytes - begin).min(RANGE_BYTES);
        (begin, usize::try_from(length).expect("a range fits into memory"))
    }

    /// Returns the number of bytes that were missing when the file was opened.
    pub(super) fn missing_bytes(&self) -> u64 {
        self.missing.iter().map(|&range| self.bounds(range).1 as u64).sum()
    }

    /// Returns true if some ranges had arrived before the file was opened.
    pub(super) fn is_resumed(&self) -> bool {
        (self.missing.len() as u64) < self.entry.bytes.div_ceil(RANGE_BYTES)
    }

    /// Writes a range at its position. Returns true if it was the last missing one.
    pub(super) fn write(&self, range: u32, bytes: &[u8]) -> io::Result<bool> {
        self.file.write_all_at(bytes, self.bounds(range).0)?;
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.write_all(format!("{range}\n").as_bytes())?;
        Ok(self.num_missing.fetch_sub(1, Ordering::SeqCst) == 1)
    }

    /// Returns true if no range is missing.
    pub(super) fn is_full(&self) -> bool {
        self.num_missing.load(Ordering::SeqCst) == 0
    }

    /// Moves the file to `target` if its hash is right. Otherwise deletes it and returns false.
    pub(super) fn finish(&self, target: &Path) -> io::Result<bool> {
        if ContentHash::of_file(&self.path, &|_| ())? != self.entry.sha256 {
            self.remove()?;
            return Ok(false);
        }
        self.file.sync_all()?;
        if let Some(dir) = target.parent() {
            fs::create_dir_all(dir)?;
        }
        fs::rename(&self.path, target)?;
        fs::remove_file(&self.list_path)?;
        Ok(true)
    }

    fn remove(&self) -> io::Result<()> {
        fs::remove_file(&self.path)?;
        fs::remove_file(&self.list_path)
    }
}

/// Name of an unfinished file, after the digits of its hash.
fn part_name(path: &FilePath) -> String {
    path.as_str().replace('/', "_")
}

/// Returns the number of bytes of a file of this size that have arrived in `dir`, whatever hash the
/// file is to have. If there are unfinished files with several hashes, that of the largest counts.
pub(super) fn arrived_bytes(dir: &Path, path: &FilePath, num_bytes: u64) -> u64 {
    let list_name = format!("-{}{LIST_SUFFIX}", part_name(path));
    let is_list = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        let digits = name.to_str().and_then(|it| it.strip_suffix(&list_name));
        digits.is_some_and(|it| it.len() == NAME_DIGITS && !it.contains('-'))
    };
    let arrived = |entry: fs::DirEntry| {
        let text = fs::read_to_string(entry.path()).unwrap_or_default();
        let numbers: HashSet<u64> = text.lines().filter_map(|it| it.parse().ok()).collect();
        let begins = numbers.into_iter().filter_map(|it| it.checked_mul(RANGE_BYTES));
        begins.map(|begin| num_bytes.saturating_sub(begin).min(RANGE_BYTES)).sum()
    };
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter(is_list).map(arrived).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use jackalope_testing::Scratch;

    #[test]
    fn a_line_that_was_cut_off_does_not_join_the_next_one() {
        let scratch = Scratch::new();
        let dir = scratch.path();
        let bytes = vec![7; (3 * RANGE_BYTES) as usize];
        let source = dir.join("source");
        fs::write(&source, &bytes).unwrap();
        let sha256 = ContentHash::of_file(&source, &|_| ()).unwrap();
        let path = FilePath::try_from("model.safetensors".to_owned()).unwrap();
        let entry = FileEntry { path, bytes: bytes.len() as u64, sha256 };
        let range = vec![7; RANGE_BYTES as usize];
        Part::open(dir, &entry).unwrap().write(0, &range).unwrap();
        let list = fs::read_dir(dir).unwrap().map(|it| it.unwrap().path());
        let list = list.into_iter().find(|it| it.extension().is_some_and(|it| it == "ranges"));
        // Range 1 was about to be listed. Joined, "1" and "2" would be a range beyond the end.
        let mut text = OpenOptions::new().append(true).open(list.unwrap()).unwrap();
        text.write_all(b"1").unwrap();
        let resumed = Part::open(dir, &entry).unwrap();
        assert_eq!(resumed.missing, [1, 2]);
        resumed.write(2, &range).unwrap();
        assert_eq!(Part::open(dir, &entry).unwrap().missing, [1]);
        assert_eq!(arrived_bytes(dir, &entry.path, entry.bytes), 2 * RANGE_BYTES);
        let other = FilePath::try_from("other.safetensors".to_owned()).unwrap();
        assert_eq!(arrived_bytes(dir, &other, entry.bytes), 0);
    }
}
