//! Logs of programs in the background.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jackalope_fleet::home::Home;

/// Size beyond which a log is rotated; it replaces the one that was rotated before.
pub const LOG_BYTES_MAX: u64 = 8 << 20;

/// Interval at which the writer of a log checks its size.
const ROTATE_INTERVAL: Duration = Duration::from_secs(60);

/// Returns the path of the log of the server in the background.
pub fn serve_log(home: &Home) -> PathBuf {
    home.join("logs/serve.log")
}

/// Copies a log that is too long to `*.log.1` and empties it, while its writer keeps appending.
///
/// # Errors
/// If the log cannot be read or written.
pub fn rotate(path: &Path, bytes_max: u64) -> io::Result<()> {
    match std::fs::metadata(path) {
        Ok(it) if bytes_max < it.len() => {}
        _ => return Ok(()),
    }
    let aside = path.with_extension("log.1");
    std::fs::copy(path, aside)?;
    OpenOptions::new().write(true).open(path)?.set_len(0)
}

/// Rotates a log that this process appends to while this future is polled. Never returns.
pub async fn keep_short(path: &Path) {
    loop {
        tokio::time::sleep(ROTATE_INTERVAL).await;
        if let Err(err) = rotate(path, LOG_BYTES_MAX) {
            tracing::warn!(%err, "the log could not be rotated");
        }
    }
}

/// Returns the bytes from one position of a log to another.
///
/// # Errors
/// If the log cannot be read.
pub fn read_between(path: &Path, from: u64, until: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    // The writer of the log keeps it below the limit, apart from what is written within a minute.
    file.take(until.saturating_sub(from).min(LOG_BYTES_MAX * 8)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns at most `num_lines` lines of the log: the last ones after byte `from`.
///
/// # Errors
/// If the log cannot be read.
pub fn tail_from(path: &Path, from: u64, num_lines: usize) -> io::Result<Vec<String>> {
    let length = std::fs::metadata(path)?.len();
    let bytes = read_between(path, from.min(length), length)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    let skipped = lines.len().saturating_sub(num_lines);
    Ok(lines[skipped..].iter().map(|line| (*line).to_owned()).collect())
}
