//! Descriptions against the checkpoints that mlx-lm has computed, and configurations that cannot be
//! used.

#![expect(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

mod checkpoints;
mod defaults;
mod originals;
mod page;
mod readings;
mod refusals;
mod touched;
