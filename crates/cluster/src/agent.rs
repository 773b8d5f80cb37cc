//! What looks after a machine's programs: ranks first of all.
//!
//! An agent listens on its machine; a coordinator that its machine trusts opens a *session* with it
//! (`trust` has who may what). A program belongs to the session that ordered it. When that session ends without a word (the brain
//! is gone, the network fails) the program lives on for its *lease*, and whoever orders the same
//! again meanwhile takes it over: that is how weights outlive a brain, and why recovery needs no new
//! SSH session.
//!
//! ```text
//!            order                       session lost               lease over
//!  (nothing) ─────▶ running, owned ──────────────────▶ unowned ──────────────▶ killed
//!                        ▲  │ ended by itself              │
//!                        │  └──────▶ told to its owner     │
//!                        └──────────── ordered again ──────┘
//! ```
//!
//! [`serve`] is the agent, [`Agent`] a client of it.

mod client;
mod messages;
mod probe;
mod process;
mod programs;
mod server;
mod session;
mod trust;

pub use client::{Agent, AgentState, Ended, OnLine, Probe, Program, Refusal, Revive};
pub use messages::{EnvFile, FromAgent, Order, OrderedProgram, ProgramStatus, Stream, ToAgent};
pub use server::{AgentConfig, AgentError, NewListeners, serve, serve_on};
pub use trust::{REREAD_INTERVAL, Trust};

/// Where agents listen unless told otherwise.
pub const AGENT_PORT: u16 = 18081;
