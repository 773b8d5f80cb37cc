//! Tests of the engine's API: over fake ranks in its own thread, and over the real link to threads
//! that speak the protocol.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod constraints;
mod engine;
mod link;
mod pressure;
mod requests;
mod threads;
