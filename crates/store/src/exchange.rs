//! Copies models between machines: agents read each other's files, and copy those that they lack.
//!
//! A connection to an agent whose first message is
//! [`ToAgent::Library`](jackalope_protocol::agent::ToAgent::Library) serves the library: one request at a time,
//! answered by messages and, for contents, by raw bytes of the encrypted stream. So bulk data and
//! the heartbeats of sessions do not delay each other. A coordinator may request everything; ranks
//! and other libraries present a grant, which allows reading one model.
//!
//! ```text
//!   coordinator ── Fetch ──▶ library of B ── Read ──▶ library of A     (several connections)
//!        ▲                        │ verified file by file
//!        └── progress, done ──────┘          [spread] decides who copies from whom
//! ```

mod client;
mod fetch;
mod holding;
mod library;
mod messages;
mod ranges;
mod serve;
mod spread;
#[cfg(test)]
mod tests;

pub use client::{ExchangeError, LibraryClient};
pub use library::Library;
pub use messages::{
    FetchOrder, Fetched, FilePieces, FoundFiles, FromLibrary, Holding, READ_BYTES_MAX, Source,
    ToLibrary,
};
pub use spread::{Copied, CopyPair, CopyPeer, Spread, SpreadOrder, spread};
