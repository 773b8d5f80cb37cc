//! A file with one line of JSON per ended answer, without prompts and answers.
//!
//! A separate thread writes the file: a slow disk loses lines, which are counted, but never delays
//! an answer. A file that would exceed [`FILE_BYTES_MAX`] is renamed to `FILE.1`, replacing the
//! previous one.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use thiserror::Error;
use tracing::warn;

use super::record::AnswerRecord;

/// Size in bytes at which the file is rotated.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Maximum number of records that wait to be written.
const WAITING_MAX: usize = 1024;

/// Error of opening a request log.
#[derive(Debug, Error)]
#[error("the request log {} cannot be written: {source}\nhint: name a file in an existing folder", path.display())]
pub struct RequestLogError {
    path: PathBuf,
    source: io::Error,
}

/// Handle of the thread that writes. Dropping it waits until all queued records are written.
#[derive(Debug)]
pub struct RequestLog {
    records: Option<SyncSender<Arc<AnswerRecord>>>,
    num_dropped: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl RequestLog {
    /// Opens the file at `path` for appending. A new file is readable only by its owner.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened or the thread cannot be started.
    pub fn open(path: &Path) -> Result<RequestLog, RequestLogError> {
        RequestLog::open_bounded(path, FILE_BYTES_MAX)
    }

    fn open_bounded(path: &Path, bytes_max: u64) -> Result<RequestLog, RequestLogError> {
        let failed = |source| RequestLogError { path: path.to_owned(), source };
        let pages = Pages::open(path.to_owned(), bytes_max).map_err(failed)?;
        let (records, waiting) = sync_channel(WAITING_MAX);
        let num_dropped = Arc::new(AtomicU64::new(0));
        let dropped = Arc::clone(&num_dropped);
        let write = move || write_all(pages, &waiting, &dropped);
        let thread = std::thread::Builder::new().name("request-log".to_owned()).spawn(write);
        let thread = Some(thread.map_err(failed)?);
        Ok(RequestLog { records: Some(records), num_dropped, thread })
    }

    pub(super) fn push(&self, record: &Arc<AnswerRecord>) {
        let is_taken =
            self.records.as_ref().is_some_and(|it| it.try_send(Arc::clone(record)).is_ok());
        if !is_taken {
            self.num_dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn num_dropped(&self) -> u64 {
        self.num_dropped.load(Ordering::Relaxed)
    }
}

impl Drop for RequestLog {
    fn drop(&mut self) {
        drop(self.records.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

fn write_all(mut pages: Pages, waiting: &Receiver<Arc<AnswerRecord>>, dropped: &AtomicU64) {
    let mut is_warned = false;
    for record in waiting {
        let line = format!("{}\n", record.to_json());
        let Err(err) = pages.write(line.as_bytes()) else { continue };
        dropped.fetch_add(1, Ordering::Relaxed);
        if !std::mem::replace(&mut is_warned, true) {
            warn!(%err, path = %pages.path.display(), "the request log loses lines");
        }
    }
}

/// The open file, with its current length.
struct Pages {
    path: PathBuf,
    file: File,
    len: u64,
    bytes_max: u64,
}

impl Pages {
    fn open(path: PathBuf, bytes_max: u64) -> io::Result<Pages> {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(&path)?;
        let len = file.metadata()?.len();
        Ok(Pages { path, file, len, bytes_max })
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let len = line.len() as u64;
        if 0 < self.len && self.bytes_max < self.len + len {
            let mut aside = self.path.clone().into_os_string();
            aside.push(".1");
            std::fs::rename(&self.path, aside)?;
            *self = Pages::open(std::mem::take(&mut self.path), self.bytes_max)?;
        }
        self.file.write_all(line)?;
        self.len += len;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_file_is_put_aside_and_the_bound_holds() {
        let dir = std::env::temp_dir().join(crate::ids::new_id("jackalope-log-"));
        std::fs::create_dir(&dir).unwrap();
        let path = dir.join("requests.jsonl");
        std::fs::write(&path, "0123456789\n").unwrap();
        let mut pages = Pages::open(path.clone(), 32).unwrap();
        for line in 0..10 {
            pages.write(format!("line {line:04}\n").as_bytes()).unwrap();
        }
        let read = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
        assert_eq!(read("requests.jsonl"), "line 0008\nline 0009\n");
        assert_eq!(read("requests.jsonl.1"), "line 0005\nline 0006\nline 0007\n");
        std::fs::remove_dir_all(&dir).unwrap();
        let err = RequestLog::open(&dir.join("nowhere/log")).unwrap_err();
        assert!(err.to_string().contains("nowhere/log"), "{err}");
    }
}
