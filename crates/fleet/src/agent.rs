//! The agent of a machine: starts its programs, above all ranks, and supervises them.
//!
//! An agent listens on its machine; a coordinator that the machine trusts opens a *session* with it
//! (the table in `trust` says what each peer may do). A program belongs to the session that ordered
//! it. When that session is lost without a goodbye (the coordinator has died, the network fails),
//! the program keeps running for its *lease*. A coordinator that orders the same program within
//! that time takes it over. So weights outlive a coordinator, and recovery needs no new SSH
//! session.
//!
//! ```text
//!            order                       session lost               lease over
//!  (nothing) ─────▶ running, owned ──────────────────▶ unowned ──────────────▶ killed
//!                        ▲  │ ended by itself              │
//!                        │  └──────▶ reported to its owner │
//!                        └─────────────────────────────────┘ claimed by a coordinator
//! ```
//!
//! [`serve`] is the agent, [`Agent`] a client of it.

mod client;
mod probe;
mod process;
mod programs;
mod refusal;
mod server;
mod session;
mod trust;

pub use jackalope_protocol::agent::{
    EnvFile, FromAgent, Order, OrderedProgram, ProgramStatus, Stream, ToAgent,
};

pub use client::{Agent, AgentState, Ended, OnLine, Probe, Program, Revive};
pub use refusal::AgentRefusal;
pub use server::{AgentConfig, AgentError, NewListeners, no_library, serve, serve_on};
pub use trust::{REREAD_INTERVAL, Trust};

/// Default port on which agents listen.
pub const AGENT_PORT: u16 = 18081;
