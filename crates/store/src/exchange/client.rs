//! A client of a library: sends requests and reads the answers.

use std::io::Read;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jackalope_protocol::agent::ToAgent;
use jackalope_protocol::secure::{Coordinator, HintedKey, Introduction};
use jackalope_protocol::{
    ExpectedContent, FilePath, FileState, FrameError, PublicKey, frame, secure,
};
use thiserror::Error;

#[cfg(doc)]
use super::messages::READ_BYTES_MAX;
use super::messages::{
    FetchOrder, Fetched, FilePieces, FoundFiles, FromLibrary, Holding, ToLibrary,
};
use crate::Manifest;

/// Time for one attempt to connect to one address.
const DIAL_TIMEOUT: Duration = Duration::from_secs(3);

/// How long a library may be silent before the connection is closed. A library that works sends
/// progress all the time.
const SILENCE: Duration = Duration::from_secs(20);

/// A connection to a machine's library.
#[derive(Debug)]
pub struct LibraryClient {
    host: String,
    sender: secure::Sender,
    receiver: secure::Receiver,
    /// Ends a request that waits for its answer.
    is_cancelled: Arc<AtomicBool>,
}

/// Reason why a library did not do what was requested.
#[derive(Debug, Error)]
pub enum ExchangeError {
    /// The library's agent cannot be reached.
    #[error("the agent of {host} cannot be reached: {reason}")]
    Unreachable {
        /// The machine.
        host: String,
        /// The error of each address.
        reason: String,
    },
    /// The connection broke, or the library was silent for too long.
    #[error("{host}: {source}")]
    Lost {
        /// The machine.
        host: String,
        /// The cause.
        source: FrameError,
    },
    /// The library refused the request.
    #[error("{host}: {reason}")]
    Refused {
        /// The machine.
        host: String,
        /// The reason that the library gives.
        reason: String,
    },
    /// The library sent an answer of the wrong type.
    #[error("{host} answers something that was not asked for")]
    Answer {
        /// The machine.
        host: String,
    },
    /// The request was cancelled on this side.
    #[error("{host}: the request was cancelled")]
    Cancelled {
        /// The machine.
        host: String,
    },
}

impl ExchangeError {
    /// Returns true if another connection may succeed.
    pub fn is_passing(&self) -> bool {
        matches!(self, ExchangeError::Unreachable { .. } | ExchangeError::Lost { .. })
    }
}

impl LibraryClient {
    /// Connects as a coordinator to the agent, at the first of `addrs` that answers.
    ///
    /// # Errors
    /// [`ExchangeError::Unreachable`].
    pub fn dial(
        host: &str,
        addrs: &[SocketAddr],
        ours: &dyn Coordinator,
    ) -> Result<LibraryClient, ExchangeError> {
        let check = |key: &PublicKey| ours.check(host, key);
        let introduction =
            Introduction { secret: ours.secret(), identity: ours.identity(), check: &check };
        LibraryClient::dial_by(host, addrs, &|addr| {
            let met = secure::dial_machine(addr, introduction, DIAL_TIMEOUT)?;
            Ok((met.1, met.2))
        })
    }

    /// Connects to read the one model that `grant` is for.
    ///
    /// # Errors
    /// [`ExchangeError::Unreachable`].
    pub fn dial_with_grant(
        host: &str,
        addrs: &[SocketAddr],
        grant: &HintedKey,
    ) -> Result<LibraryClient, ExchangeError> {
        LibraryClient::dial_by(host, addrs, &|addr| secure::dial(addr, grant, DIAL_TIMEOUT))
    }

    fn dial_by(
        host: &str,
        addrs: &[SocketAddr],
        dial: &dyn Fn(SocketAddr) -> Result<Connection, FrameError>,
    ) -> Result<LibraryClient, ExchangeError> {
        let mut reasons = Vec::new();
        for addr in addrs {
            match dial(*addr).and_then(open) {
                Ok((sender, receiver)) => {
                    let host = host.to_owned();
                    let is_cancelled = Arc::default();
                    return Ok(LibraryClient { host, sender, receiver, is_cancelled });
                }
                Err(err) => reasons.push(format!("{addr}: {err}")),
            }
        }
        let reason =
            if reasons.is_empty() { "it has no address".to_owned() } else { reasons.join("; ") };
        Err(ExchangeError::Unreachable { host: host.to_owned(), reason })
    }

    /// Makes requests end with [`ExchangeError::Cancelled`] once the flag is set, as soon as the
    /// library reports progress, which it does several times a second. The connection cannot be
    /// used further.
    #[must_use]
    pub fn cancelled_by(self, is_cancelled: &Arc<AtomicBool>) -> LibraryClient {
        LibraryClient { is_cancelled: Arc::clone(is_cancelled), ..self }
    }

    /// Returns where a model is, and its files.
    ///
    /// # Errors
    /// [`ExchangeError`].
    pub fn find(&mut self, model: &str) -> Result<FoundFiles, ExchangeError> {
        self.ask(&ToLibrary::Find { model: model.to_owned() })?;
        match self.answer(&|_| ())? {
            FromLibrary::Found(found) => Ok(found),
            _ => Err(self.nonsense()),
        }
    }

    /// Returns the files of a model with their hashes. `on_bytes` is called with the number of
    /// bytes that were hashed since the last call.
    ///
    /// # Errors
    /// [`ExchangeError`].
    pub fn manifest(
        &mut self,
        model: &str,
        on_bytes: &dyn Fn(u64),
    ) -> Result<Manifest, ExchangeError> {
        self.ask(&ToLibrary::Manifest { model: model.to_owned() })?;
        match self.answer(on_bytes)? {
            FromLibrary::Manifest(manifest) => Ok(manifest),
            _ => Err(self.nonsense()),
        }
    }

    /// Returns the hashes of the files of a model that ranks would read. `on_bytes` is called with
    /// the number of bytes that were hashed since the last call.
    ///
    /// # Errors
    /// [`ExchangeError`].
    pub fn content(
        &mut self,
        model: &str,
        on_bytes: &dyn Fn(u64),
    ) -> Result<ExpectedContent, ExchangeError> {
        self.ask(&ToLibrary::Content { model: model.to_owned() })?;
        match self.answer(on_bytes)? {
            FromLibrary::Content(content) => Ok(content),
            _ => Err(self.nonsense()),
        }
    }

    /// Returns the states of the files of a model that ranks would read.
    ///
    /// # Errors
    /// [`ExchangeError`].
    pub fn states(&mut self, model: &str) -> Result<Vec<FileState>, ExchangeError> {
        self.ask(&ToLibrary::States { model: model.to_owned() })?;
        match self.answer(&|_| ())? {
            FromLibrary::States(states) => Ok(states),
            _ => Err(self.nonsense()),
        }
    }

    /// Returns how much the machine holds of the model `name` with these files.
    ///
    /// # Errors
    /// [`ExchangeError`].
    pub fn holding(
        &mut self,
        name: &str,
        files: &[(FilePath, u64)],
    ) -> Result<Holding, ExchangeError> {
        self.ask(&ToLibrary::Holding { name: name.to_owned(), files: files.to_vec() })?;
        match self.answer(&|_| ())? {
            FromLibrary::Holding(holding) => Ok(holding),
            _ => Err(self.nonsense()),
        }
    }

    /// Fills `target` with pieces of a file, at most [`READ_BYTES_MAX`] bytes in all.
    ///
    /// # Errors
    /// [`ExchangeError`]. The connection can be used further only after [`ExchangeError::Refused`].
    ///
    /// # Panics
    /// If the pieces do not have the length of the target in all.
    pub fn read(
        &mut self,
        model: &str,
        path: &FilePath,
        pieces: FilePieces,
        target: &mut [u8],
    ) -> Result<(), ExchangeError> {
        assert_eq!(pieces.num_bytes(), target.len() as u64, "pieces fill the target");
        let (model, path) = (model.to_owned(), path.clone());
        self.ask(&ToLibrary::Read { model, path, pieces })?;
        let mut filled = 0;
        while filled < target.len() {
            let FromLibrary::Bytes { num_bytes } = self.answer(&|_| ())? else {
                return Err(self.nonsense());
            };
            let end = filled + num_bytes as usize;
            let Some(piece) = target.get_mut(filled..end) else { return Err(self.nonsense()) };
            let read = self.receiver.read_exact(piece);
            read.map_err(|err| self.lost(err.into()))?;
            filled = end;
        }
        Ok(())
    }

    /// Makes the machine copy a model. `on_bytes` is called with the number of bytes that have
    /// arrived since the last call. Dropping the client meanwhile cancels the copy; a later one
    /// resumes it.
    ///
    /// # Errors
    /// [`ExchangeError`].
    pub fn fetch(
        &mut self,
        order: FetchOrder,
        on_bytes: &dyn Fn(u64),
    ) -> Result<Fetched, ExchangeError> {
        self.ask(&ToLibrary::Fetch(order))?;
        match self.answer(on_bytes)? {
            FromLibrary::Fetched(fetched) => Ok(fetched),
            _ => Err(self.nonsense()),
        }
    }

    fn ask(&mut self, request: &ToLibrary) -> Result<(), ExchangeError> {
        frame::write(&mut self.sender, request).map_err(|source| self.lost(source))
    }

    /// Returns the next answer that is not a progress message.
    fn answer(&mut self, on_bytes: &dyn Fn(u64)) -> Result<FromLibrary, ExchangeError> {
        loop {
            match frame::read(&mut self.receiver) {
                Ok(FromLibrary::Progress { num_bytes }) => {
                    on_bytes(num_bytes);
                    if self.is_cancelled.load(Ordering::Relaxed) {
                        return Err(ExchangeError::Cancelled { host: self.host.clone() });
                    }
                }
                Ok(FromLibrary::Refused { reason }) => {
                    return Err(ExchangeError::Refused { host: self.host.clone(), reason });
                }
                Ok(answer) => return Ok(answer),
                Err(source) => return Err(self.lost(source)),
            }
        }
    }

    fn lost(&self, source: FrameError) -> ExchangeError {
        ExchangeError::Lost { host: self.host.clone(), source }
    }

    fn nonsense(&self) -> ExchangeError {
        ExchangeError::Answer { host: self.host.clone() }
    }
}

type Connection = (secure::Sender, secure::Receiver);

/// Sends the first message, which says that the connection is for the library.
fn open((mut sender, receiver): Connection) -> Result<Connection, FrameError> {
    receiver.stream().set_read_timeout(Some(SILENCE))?;
    sender.stream().set_write_timeout(Some(SILENCE))?;
    frame::write(&mut sender, &ToAgent::Library)?;
    Ok((sender, receiver))
}
