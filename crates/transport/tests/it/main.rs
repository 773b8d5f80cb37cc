//! Tests of the native group over real sockets, with threads of this process and with separate
//! processes. All connections are encrypted; `in_clear.rs` runs the same tests without encryption.

#![expect(clippy::unwrap_used, reason = "the helpers of tests fail tests")]

mod attacks;
mod bench;
mod common;
mod failures;
mod joining;
mod operations;
mod processes;
mod proxy;

use common::{KEY, PATIENCE, config, fails, listeners, noise, together};

/// Whether the groups of these tests encrypt.
const ENCRYPT: bool = true;
