//! Standard error that never makes anybody wait.
//!
//! A paused terminal or a pipe that nobody reads stops whoever writes to it. So a thread of its own does
//! the writing, from a bounded queue: what does not fit is dropped, counted, and reported in one line once
//! there is room again.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// Lines that wait to be written; more are dropped.
pub const LOG_LINES_MAX: usize = 4096;

/// Longer lines are cut, so that the queue has a bound in bytes too.
const LINE_BYTES_MAX: usize = 64 << 10;

/// How long the end of a process waits for its last lines to be written.
pub const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

/// The queue to the thread; none if the system did not start it.
static QUEUE: OnceLock<Option<SyncSender<Entry>>> = OnceLock::new();

static NUM_DROPPED: AtomicU64 = AtomicU64::new(0);

enum Entry {
    Line(Vec<u8>),
    /// Answered once everything before it is written.
    Flush(SyncSender<()>),
}

/// Writes each buffer that it is given as one line of the queue, or drops it. Never blocks and never
/// fails. For `tracing_subscriber`, as `with_writer(LogWriter::new)`.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogWriter;

impl LogWriter {
    /// A writer to standard error.
    pub fn new() -> LogWriter {
        LogWriter
    }
}

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let line = bytes[..bytes.len().min(LINE_BYTES_MAX)].to_vec();
        let queue = QUEUE.get_or_init(|| start(io::stderr()));
        let is_queued = queue.as_ref().is_some_and(|it| it.try_send(Entry::Line(line)).is_ok());
        if !is_queued {
            NUM_DROPPED.fetch_add(1, Ordering::Relaxed);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a line to standard error, after those before it.
pub fn line(text: &str) {
    // Never fails.
    let _ = LogWriter.write(format!("{text}\n").as_bytes());
}

/// Has panics reported as lines are, so that a thread that panics does not wait for a reader.
pub fn report_panics() {
    std::panic::set_hook(Box::new(|info| {
        let thread = std::thread::current();
        line(&format!("thread '{}' {info}", thread.name().unwrap_or("without a name")));
        let backtrace = Backtrace::capture();
        if backtrace.status() == BacktraceStatus::Captured {
            line(&backtrace.to_string());
        }
        flush(FLUSH_TIMEOUT);
    }));
}

/// Lines dropped so far.
pub fn num_dropped() -> u64 {
    NUM_DROPPED.load(Ordering::Relaxed)
}

/// Waits until everything is written, for `timeout` at most; for the end of a process.
pub fn flush(timeout: Duration) {
    let Some(queue) = QUEUE.get().and_then(Option::as_ref) else { return };
    let (sender, written) = sync_channel(1);
    // A queue that is full has not been read for long.
    if queue.try_send(Entry::Flush(sender)).is_ok() {
        let _ = written.recv_timeout(timeout);
    }
}

fn start(writer: impl Write + Send + 'static) -> Option<SyncSender<Entry>> {
    let (sender, entries) = sync_channel(LOG_LINES_MAX);
    let thread = std::thread::Builder::new().name("log".to_owned());
    thread.spawn(move || write_all(writer, &entries, &NUM_DROPPED)).ok().map(|_| sender)
}

/// What cannot be written is lost: there is nowhere else to say so.
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
            let lines = dropped - num_reported;
            let _ = writeln!(writer, "{lines} lines of the log were dropped: nobody read them");
            num_reported = dropped;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Takes bytes only while it is given leave to, one piece each time.
    struct Gate {
        leave: Receiver<()>,
        written: std::sync::mpsc::Sender<Vec<u8>>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // An error means that everything may pass.
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
        let counted = Arc::clone(&num_dropped);
        let thread = std::thread::spawn(move || {
            write_all(Gate { leave, written }, &entries, &counted);
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
        let report = format!("{num_refused} lines of the log were dropped: nobody read them\n");
        assert!(text.starts_with("line 0\n") && text.contains(&report), "{text}");
        assert_eq!(text.matches("dropped").count(), 1, "{text}");
    }
}
