//! Programs for people in a terminal: a chat, a demonstration, a server's state, and what to do
//! next. They talk to servers over HTTP only, this machine's or others, and know neither engines
//! nor ranks; a caller that starts a server for them passes its address.
//!
//! ```text
//!   chat ─┐                 ┌─▶ events (the data of a stream)
//!   demo ─┼─▶ answer_stream ┴─▶ client (requests over HTTP)
//!   top  ─┴─▶ output (standard output)
//! ```

mod answer_stream;
pub mod chat;
pub mod client;
pub mod demo;
pub mod events;
pub mod output;
pub mod top;
pub mod welcome;
