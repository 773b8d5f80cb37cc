//! Machines of a cluster: how they are named and reached, which of them are trusted, and the programs
//! that run on them. Knows programs, files, ports and platforms; knows nothing of requests, models,
//! tokens or arrays.
//!
//! ```text
//!   local ─▶ process ─▶ the system
//!     └────▶ stock (environment variables of MLX's own transports)
//!   hostfile, facts ─▶ routes (addresses between ranks)
//!   platform (macos, linux): the parts that depend on the operating system
//!   heat (temperature, power and GPU load of this machine)
//!   shell ─▶ facts (hardware and system of a machine), install (these programs on a machine)
//!   agent: starts programs on its machine for a coordinator
//!   trust: which coordinators may command this machine, and the keys of the machines it commands
//!   discovery: finds machines of this cluster on the local networks, without names or files
//! ```

pub mod agent;
pub mod discovery;
pub mod facts;
pub mod heat;
pub mod home;
pub mod hostfile;
pub mod install;
pub mod listen;
pub mod local;
pub mod nodes;
pub mod open_files;
pub mod platform;
pub mod process;
pub mod record;
pub mod routes;
pub mod service;
pub mod shell;
pub mod stock;
pub mod trust;
