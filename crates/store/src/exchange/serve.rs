//! The library: serves a machine's models and their hashes to other machines.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use jackalope_protocol::grant::{LibraryAccess, LibraryService};
use jackalope_protocol::{FrameError, counted, frame, secure};
use tracing::debug;

use super::fetch::{Fetch, fetch};
use super::holding::holding;
use super::library::{Library, ListedModel};
use super::messages::{FilePieces, FoundFiles, FromLibrary, READ_BYTES_MAX, ToLibrary};
use crate::content;

/// How long a client may send no request, or not read its answer, before the connection is closed.
const IDLE: Duration = Duration::from_secs(120);
const STALL: Duration = Duration::from_secs(20);

/// Interval between progress messages during long work. Also the time after which the departure of
/// a client is noticed.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// Number of bytes of a file that are held in memory at a time.
const PIECE_BYTES: usize = 1 << 20;

impl Library {
    /// Returns the service that answers the connections to this library.
    pub fn service(self) -> LibraryService {
        Arc::new(move |access, sender, receiver| serve(&self, &access, sender, receiver))
    }
}

/// Checks whether the client may make this request; the error says why not.
fn check_access(access: &LibraryAccess, request: &ToLibrary) -> Result<(), String> {
    let LibraryAccess::Read(grant) = access else { return Ok(()) };
    match request {
        ToLibrary::Find { model }
        | ToLibrary::Manifest { model }
        | ToLibrary::States { model }
        | ToLibrary::Read { model, .. }
            if grant.is_for(model) =>
        {
            Ok(())
        }
        _ => Err("this connection may read one model and nothing else".to_owned()),
    }
}

/// Answers one client until it disconnects.
fn serve(
    library: &Library,
    access: &LibraryAccess,
    sender: secure::Sender,
    mut receiver: secure::Receiver,
) {
    let set = receiver.stream().set_read_timeout(Some(IDLE));
    if set.and_then(|()| sender.stream().set_write_timeout(Some(STALL))).is_err() {
        return;
    }
    let mut session = Session { library, sender, models: HashMap::new() };
    loop {
        let answered =
            frame::read(&mut receiver).and_then(|request| match check_access(access, &request) {
                Ok(()) => session.answer(request),
                Err(reason) => session.send(Err(reason)),
            });
        if let Err(err) = answered {
            debug!(%err, "a reader has left");
            return;
        }
    }
}

struct Session<'a> {
    library: &'a Library,
    sender: secure::Sender,
    /// Models of earlier requests, so that each is listed once.
    models: HashMap<String, ListedModel>,
}

impl Session<'_> {
    fn answer(&mut self, request: ToLibrary) -> Result<(), FrameError> {
        match request {
            ToLibrary::Find { model } => {
                let answer = self.library.find(&model).map(|found| {
                    let files = found.files.into_iter().map(|it| (it.path, it.bytes)).collect();
                    let dir = found.dir.to_string_lossy().into_owned();
                    let (name, commit) = (found.name, found.commit);
                    FromLibrary::Found(FoundFiles { name, commit, dir, files })
                });
                self.send(answer)
            }
            ToLibrary::Manifest { model } => {
                let library = self.library;
                self.work(move |on_bytes, _| {
                    let found = library.find(&model)?;
                    library.manifest(&found.dir, on_bytes).map(FromLibrary::Manifest)
                })
            }
            ToLibrary::Content { model } => {
                let library = self.library;
                self.work(move |on_bytes, is_cancelled| {
                    let dir = library.find(&model)?.dir;
                    let content = library.content(&dir, on_bytes, is_cancelled);
                    content.map(FromLibrary::Content).map_err(|err| err.to_string())
                })
            }
            ToLibrary::States { model } => {
                let states = self
                    .library
                    .find(&model)
                    .and_then(|found| content::states(&found.dir).map_err(|err| err.to_string()));
                self.send(states.map(FromLibrary::States))
            }
            ToLibrary::Holding { name, files } => {
                let held = holding(self.library, &name, &files);
                self.send(held.map(FromLibrary::Holding))
            }
            ToLibrary::Read { model, path, pieces } => self.read(&model, path.as_str(), pieces),
            ToLibrary::Fetch(order) => {
                let library = self.library;
                self.work(move |on_bytes, is_cancelled| {
                    let what = Fetch { library, order: &order, on_bytes, is_cancelled };
                    fetch(what).map(FromLibrary::Fetched).map_err(|err| err.to_string())
                })
            }
        }
    }

    fn send(&mut self, answer: Result<FromLibrary, String>) -> Result<(), FrameError> {
        let answer = answer.unwrap_or_else(|reason| FromLibrary::Refused { reason });
        frame::write(&mut self.sender, &answer)
    }

    /// Runs long work and reports its progress. The work is cancelled if the client disconnects.
    fn work(
        &mut self,
        work: impl FnOnce(&(dyn Fn(u64) + Sync), &AtomicBool) -> Result<FromLibrary, String> + Send,
    ) -> Result<(), FrameError> {
        let (num_bytes, is_cancelled) = (AtomicU64::new(0), AtomicBool::new(false));
        let on_bytes = |more| {
            num_bytes.fetch_add(more, Ordering::Relaxed);
        };
        thread::scope(|scope| {
            let (finished, result) = channel();
            let (on_bytes, is_cancelled) = (&on_bytes, &is_cancelled);
            scope.spawn(move || finished.send(work(on_bytes, is_cancelled)));
            loop {
                let answer = result.recv_timeout(PROGRESS_INTERVAL);
                let progress =
                    FromLibrary::Progress { num_bytes: num_bytes.swap(0, Ordering::Relaxed) };
                let sent = frame::write(&mut self.sender, &progress);
                if let Err(err) = sent {
                    is_cancelled.store(true, Ordering::Relaxed);
                    return Err(err);
                }
                match answer {
                    Ok(answer) => return self.send(answer),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => {
                        return self.send(Err("it ended without a result".to_owned()));
                    }
                }
            }
        })
    }

    fn read(&mut self, model: &str, path: &str, pieces: FilePieces) -> Result<(), FrameError> {
        let (file, found_bytes) = match self.open(model, path) {
            Ok(opened) => opened,
            Err(reason) => return self.send(Err(reason)),
        };
        let is_there = pieces.end().is_some_and(|end| end <= found_bytes);
        if u64::from(READ_BYTES_MAX) < pieces.num_bytes() || !is_there {
            let found = counted(found_bytes, "byte");
            let reason = format!("{path} has {found}, asked for {pieces:?}");
            return self.send(Err(reason));
        }
        let total = usize::try_from(pieces.num_bytes()).expect("checked against the limit");
        let mut buffer = vec![0; PIECE_BYTES.min(total)];
        for begin in (0..total).step_by(PIECE_BYTES) {
            let part = &mut buffer[..PIECE_BYTES.min(total - begin)];
            if let Err(err) = fill(&file, pieces, begin as u64, part) {
                return self.send(Err(format!("reading {path}: {err}")));
            }
            let num_bytes = u32::try_from(part.len()).expect("a part is small");
            frame::write(&mut self.sender, &FromLibrary::Bytes { num_bytes })?;
            self.sender.write_all(part)?;
        }
        Ok(())
    }

    /// Opens a listed file of a model and returns it with its current size.
    fn open(&mut self, model: &str, path: &str) -> Result<(File, u64), String> {
        if !self.models.contains_key(model) {
            self.models.insert(model.to_owned(), self.library.find(model)?);
        }
        let files = &self.models[model].files;
        let found = files.iter().find(|file| file.path.as_str() == path);
        let found = found.ok_or_else(|| format!("{model} has no file {path}"))?;
        let failed = |err| format!("reading {}: {err}", found.target.display());
        let file = File::open(&found.target).map_err(failed)?;
        let num_bytes = file.metadata().map_err(failed)?.len();
        Ok((file, num_bytes))
    }
}

/// Fills `target` with the bytes of the pieces, beginning with byte `at` of all pieces together.
fn fill(file: &File, pieces: FilePieces, mut at: u64, target: &mut [u8]) -> io::Result<()> {
    let mut rest = target;
    while !rest.is_empty() {
        let (offset, in_piece) = pieces.place(at);
        let length = usize::try_from(in_piece).map_or(rest.len(), |it| it.min(rest.len()));
        let (now, later) = rest.split_at_mut(length);
        file.read_exact_at(now, offset)?;
        at += length as u64;
        rest = later;
    }
    Ok(())
}
