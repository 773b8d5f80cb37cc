//! Compares the text crate with the Python packages that checkpoints were made with, and with
//! simpler programs.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails the test")]

mod checkpoint;
mod control_tokens;
mod deep_grammars;
mod detokenizing;
mod examples;
mod forms;
mod grammar;
mod loading;
mod shipped_model;
mod stopping;
mod template_limits;
mod templates;
mod tokenizing;
mod tool_calls;
mod tool_families;
mod tool_grammars;
