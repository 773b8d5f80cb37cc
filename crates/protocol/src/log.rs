//! Logging to standard error that never blocks the caller.
//!
//! A paused terminal or a full pipe blocks the process that writes to it. Therefore a dedicated
//! thread writes the lines, from a bounded queue. Lines that do not fit are dropped and counted;
//! one line reports their number once writing resumes. The last lines also stay in memory
//! ([`RecentLines`]).

mod recent;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use crate::counted;

pub use self::recent::{LogLine, RECENT_LINES_MAX, RecentLines, recent_lines, without_colours};

/// Maximum number of queued lines; further ones are dropped.
pub const LOG_LINES_MAX: usize = 4096;

/// Maximum length of a line in bytes; longer lines are cut. This bounds the queue in bytes too.
const LINE_BYTES_MAX: usize = 64 << 10;

/// How long an ending process waits for its last lines to be written.
pub const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

/// Queue to the writing thread; `None` if the thread could not be started.
static QUEUE: OnceLock<Option<SyncSender<Entry>>> = OnceLock::new();

static NUM_DROPPED: AtomicU64 = AtomicU64::new(0);

enum Entry {
    Line(Vec<u8>),
    /// Request for a message on this channel once all earlier entries are written.
    Flush(SyncSender<()>),
}

/// Queues each buffer as one line, or drops it. Never fails, and blocks only if the thread that writes
/// could not be started. For `tracing_subscriber`, as `with_writer(LogWriter::new)`.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogWriter;

impl LogWriter {
    /// Creates a writer to standard error.
    pub fn new() -> LogWriter {
        LogWriter
    }
}

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let line = bytes[..bytes.len().min(LINE_BYTES_MAX)].to_vec();
        let Some(queue) = QUEUE.get_or_init(|| start(io::stderr())) else {
            // This program cannot do anything but report why it ends.
            let _ = io::stderr().write_all(&line);
            return Ok(bytes.len());
        };
        if queue.try_send(Entry::Line(line)).is_err() {
            NUM_DROPPED.fetch_add(1, Ordering::Relaxed);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Queues a line for standard error, after those already queued, and keeps it in memory.
pub fn line(text: &str) {
    recent::keep(text.as_bytes());
    // Never fails.
    let _ = LogWriter.write(format!("{text}\n").as_bytes());
}

/// Installs a panic hook that logs through the queue, so that a panicking thread does not block on
/// standard error. Starts the thread that writes, which may be impossible once resources run out.
pub fn report_panics() {
    QUEUE.get_or_init(|| start(io::stderr()));
    std::panic::set_hook(Box::new(|info| {
        let thread = std::thread::current();
        let backtrace = Backtrace::capture();
        if backtrace.status() == BacktraceStatus::Captured {
            line(&format!("a panic, with this backtrace:\n{backtrace}"));
        }
        // Last, because whoever reports the end of this process quotes its last lines.
        line(&format!("thread '{}' {info}", thread.name().unwrap_or("without a name")));
        flush(FLUSH_TIMEOUT);
    }));
}

/// Returns the number of lines dropped so far.
pub fn num_dropped() -> u64 {
    NUM_DROPPED.load(Ordering::Relaxed)
}

/// Waits until all queued lines are written, at most `timeout`. For the end of a process.
pub fn flush(timeout: Duration) {
    let Some(queue) = QUEUE.get().and_then(Option::as_ref) else { return };
    let (sender, written) = sync_channel(1);
    // A full queue means that the writing thread is blocked: do not wait.
    if queue.try_send(Entry::Flush(sender)).is_ok() {
        let _ = written.recv_timeout(timeout);
    }
}

fn start(writer: impl Write + Send + 'static) -> Option<SyncSender<Entry>> {
    let (sender, entries) = sync_channel(LOG_LINES_MAX);
    let thread = std::thread::Builder::new().name("log".to_owned());
    thread.spawn(move || write_all(writer, &entries, &NUM_DROPPED)).ok().map(|_| sender)
}

/// Writes the queue. Lines that cannot be written are lost: there is no other place to report them.
fn write_all(mut writer: impl Write, entries: &Receiver<Entry>, num_dropped: &AtomicU64) {
    let mut num_reported = 0;
    for entry in entries {
        match entry {
            Entry::Line(line) => {
                let _ = writer.write_all(&line);
            }
            Entry::Flush(written) => {
                let _ = written.try_send(());
            }
        }
        let dropped = num_dropped.load(Ordering::Relaxed);
        if num_reported < dropped {
            let lines = counted(dropped - num_reported, "log line");
            let _ = writeln!(writer, "dropped {lines}: the reader is too slow");
            num_reported = dropped;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// A writer that takes one piece for each message on `leave`, and every piece once the sender
    /// is gone.
    struct Gate {
        leave: Receiver<()>,
        written: std::sync::mpsc::Sender<Vec<u8>>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // An error means that the sender is gone: from then on every write passes.
            let _ = self.leave.recv();
            self.written.send(bytes.to_vec()).ok();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_queue_drops_lines_and_says_how_many() {
        let (gate, leave) = sync_channel(0);
        let (written, output) = std::sync::mpsc::channel();
        let (sender, entries) = sync_channel(4);
        let num_dropped = Arc::new(AtomicU64::new(0));
        let shared_count = Arc::clone(&num_dropped);
        let thread = std::thread::spawn(move || {
            write_all(Gate { leave, written }, &entries, &shared_count);
        });
        let mut num_refused = 0;
        for idx in 0..100 {
            let line = format!("line {idx}\n").into_bytes();
            if sender.try_send(Entry::Line(line)).is_err() {
                num_refused += 1;
                num_dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
        assert!(95 <= num_refused, "the queue holds four, and the writer one: {num_refused}");
        drop(gate);
        drop(sender);
        thread.join().unwrap();
        let text: Vec<u8> = output.iter().flatten().collect();
        let text = String::from_utf8(text).unwrap();
        let report =
            format!("dropped {}: the reader is too slow\n", counted(num_refused, "log line"));
        assert!(text.starts_with("line 0\n") && text.contains(&report), "{text}");
        assert_eq!(text.matches("dropped").count(), 1, "{text}");
    }
}
