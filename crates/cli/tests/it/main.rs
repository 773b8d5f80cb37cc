//! The programs from outside: real processes, real ranks, real sockets, and the model that ships.
//!
//! `jackalope-rank` must lie beside `jackalope`: `cargo build -p jackalope-runner` puts it there.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod bench;
mod cache_kinds;
mod chaos;
mod checkpoint;
mod commands;
mod content;
mod edge;
mod embedding;
mod endings;
#[cfg(target_os = "linux")]
mod floods;
mod hosts;
mod http;
mod hub;
mod hybrid;
#[cfg(target_os = "linux")]
mod install;
mod machines;
#[cfg(target_os = "linux")]
mod memory;
mod metamorphic;
mod mixture;
mod model_registry;
mod operate;
mod pages;
mod plan;
mod ports;
mod program;
mod pull;
mod random;
mod recovery;
mod refusals;
mod service;
mod several;
#[cfg(target_os = "linux")]
mod sync;
mod synthetic;
#[cfg(target_os = "linux")]
mod terminal;
mod versions;
mod windows;
