//! A checkpoint on another machine: its library sends the byte ranges that this rank needs, and
//! nothing is stored on this machine except in memory.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use jackalope_protocol::{FilePath, FileState, ModelSource};
use jackalope_store::exchange::{self, ExchangeError, LibraryClient};
use jackalope_weights::checkpoint::{Files, Pieces};

/// Size of one request in bytes: large enough that the round trip costs nothing beside the
/// transfer.
const REQUEST_BYTES: usize = 4 << 20;

/// Maximum number of concurrent requests, each over its own connection: a single connection is
/// limited by the speed at which one core encrypts.
const CONNECTIONS_MAX: usize = 4;

/// Maximum number of attempts of one read, and the pause between two.
const ATTEMPTS: usize = 4;
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Files of a model on another machine.
#[derive(Debug)]
pub(crate) struct RemoteFiles {
    source: ModelSource,
    /// Directory of the model on that machine.
    model: String,
    /// That directory with the name of the machine, for messages.
    place: PathBuf,
    files: Vec<(String, u64)>,
    /// Connections that are not in use.
    idle: Mutex<Vec<LibraryClient>>,
}

/// A request: the pieces, and the buffer for their bytes.
type Request<'a> = (exchange::FilePieces, &'a mut [u8]);

impl RemoteFiles {
    /// Asks the machine for the files of the model in the directory `model`.
    ///
    /// # Errors
    /// If the machine cannot be reached or has no such model.
    pub(crate) fn open(source: ModelSource, model: &str) -> io::Result<RemoteFiles> {
        let files = RemoteFiles {
            place: PathBuf::from(format!("{}:{model}", source.host)),
            source,
            model: model.to_owned(),
            files: Vec::new(),
            idle: Mutex::default(),
        };
        let found = files.with_client(|client| client.find(model))?;
        // A library also lists the files in subdirectories.
        let listed = found.files.into_iter().map(|(path, size)| (path.as_str().to_owned(), size));
        let listed = listed.filter(|(path, _)| !path.contains('/'));
        Ok(RemoteFiles { files: listed.collect(), ..files })
    }

    fn idle(&self) -> MutexGuard<'_, Vec<LibraryClient>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` with a connection. If the connection breaks, retries after a pause over a new
    /// one.
    fn with_client<T>(
        &self,
        mut work: impl FnMut(&mut LibraryClient) -> Result<T, ExchangeError>,
    ) -> io::Result<T> {
        let mut attempt = || {
            let ModelSource { host, addrs, grant } = &self.source;
            let idle = self.idle().pop();
            let mut client = match idle {
                Some(client) => client,
                None => LibraryClient::dial_with_grant(host, addrs, grant)?,
            };
            let result = work(&mut client)?;
            self.idle().push(client);
            Ok(result)
        };
        let mut attempts = 1;
        loop {
            match attempt() {
                Ok(result) => return Ok(result),
                Err(err @ ExchangeError::Unreachable { .. }) if attempts < ATTEMPTS => {
                    tracing::warn!(%err, "requesting the model again");
                }
                Err(err @ ExchangeError::Lost { .. }) if attempts < ATTEMPTS => {
                    // The other idle connections are as old, so they are probably broken too.
                    self.idle().clear();
                    tracing::warn!(%err, "requesting the model again");
                }
                Err(err) if err.is_passing() => {
                    return Err(io::Error::new(io::ErrorKind::ConnectionAborted, err));
                }
                Err(err) => return Err(io::Error::other(err)),
            }
            attempts += 1;
            thread::sleep(RETRY_PAUSE);
        }
    }
}

impl Files for RemoteFiles {
    fn place(&self) -> &Path {
        &self.place
    }

    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        Ok(self.files.clone())
    }

    fn states(&self, files: &[String]) -> io::Result<Vec<FileState>> {
        let states = self.with_client(|client| client.states(&self.model))?;
        let state = |name: &String| states.iter().find(|it| it.name == *name).cloned();
        let missing = || io::Error::new(io::ErrorKind::NotFound, "a file is gone");
        files.iter().map(|name| state(name).ok_or_else(missing)).collect()
    }

    fn read(&self, file: &str, pieces: Pieces, target: &mut [u8]) -> io::Result<()> {
        let path: FilePath = file.parse().map_err(io::Error::other)?;
        let requests: VecDeque<Request<'_>> = cut(pieces, target)?.into();
        let num_connections = requests.len().min(CONNECTIONS_MAX);
        let requests = Mutex::new(requests);
        let take = || requests.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let work = || -> io::Result<()> {
            while let Some((pieces, target)) = take() {
                self.with_client(|client| client.read(&self.model, &path, pieces, target))?;
            }
            Ok(())
        };
        thread::scope(|scope| {
            let others: Vec<_> = (1..num_connections).map(|_| scope.spawn(work)).collect();
            let own = work();
            let others = others.into_iter().map(|it| it.join().expect("it does not panic"));
            others.fold(own, io::Result::and)
        })
    }
}

/// Cuts the requested pieces into requests.
fn cut(pieces: Pieces, target: &mut [u8]) -> io::Result<Vec<Request<'_>>> {
    let Pieces { mut offset, piece_bytes, stride_bytes } = pieces;
    if target.is_empty() {
        return Ok(Vec::new());
    }
    let mut requests = Vec::new();
    if REQUEST_BYTES < piece_bytes {
        for (at, piece) in target.chunks_mut(piece_bytes).enumerate() {
            let mut offset = offset + at as u64 * stride_bytes;
            for part in piece.chunks_mut(REQUEST_BYTES) {
                let num_bytes = u32::try_from(part.len()).expect("a request is short");
                requests.push((exchange::FilePieces::run(offset, num_bytes), part));
                offset += u64::from(num_bytes);
            }
        }
        return Ok(requests);
    }
    let in_request = REQUEST_BYTES / piece_bytes;
    for part in target.chunks_mut(in_request * piece_bytes) {
        let num_pieces = u32::try_from(part.len() / piece_bytes).expect("a request is short");
        let piece_bytes = u32::try_from(piece_bytes).expect("a request is short");
        requests
            .push((exchange::FilePieces { offset, piece_bytes, stride_bytes, num_pieces }, part));
        offset += u64::from(num_pieces) * stride_bytes;
    }
    Ok(requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns bytes that differ at all distances of interest.
    fn content(at: u64) -> u8 {
        (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
    }

    #[test]
    fn requests_together_are_what_was_wanted_and_none_is_long() {
        let long = REQUEST_BYTES as u64;
        for (piece_bytes, stride_bytes, num_pieces) in [
            (0, 8, 0),
            (5, 5, 1),
            (3 * REQUEST_BYTES + 7, long * 4, 1),
            (REQUEST_BYTES + 1, long + 9, 2),
            (REQUEST_BYTES, long, 2),
            (1000, 3000, 10_000),
            (REQUEST_BYTES / 2 + 1, long, 3),
        ] {
            let pieces = Pieces { offset: 11, piece_bytes, stride_bytes };
            let mut target = vec![0; piece_bytes * num_pieces];
            for (asked, part) in cut(pieces, &mut target).unwrap() {
                assert_eq!(asked.num_bytes(), part.len() as u64);
                assert!(part.len() <= REQUEST_BYTES);
                let starts = (0..u64::from(asked.num_pieces))
                    .map(|piece| asked.offset + piece * asked.stride_bytes);
                let places = starts.flat_map(|start| start..start + u64::from(asked.piece_bytes));
                part.iter_mut().zip(places).for_each(|(byte, at)| *byte = content(at));
            }
            let starts = (0..num_pieces as u64).map(|piece| 11 + piece * stride_bytes);
            let wanted = starts.flat_map(|start| start..start + piece_bytes as u64).map(content);
            assert!(target.into_iter().eq(wanted), "{pieces:?}");
        }
    }
}
