//! The tests of `main.rs` on groups that do not encrypt.

#![expect(clippy::unwrap_used, reason = "the helpers of tests fail tests")]

mod bench;
mod common;
mod failures;
mod joining;
mod operations;
mod processes;
mod proxy;

use common::{KEY, PATIENCE, config, fails, listeners, noise, together};

/// Whether the groups of these tests encrypt.
const ENCRYPT: bool = false;
