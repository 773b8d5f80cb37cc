//! Starts ranks on machines and supervises their processes. Knows programs, files, ports and
//! platforms; knows nothing of requests, tokens or arrays.
//!
//! ```text
//!   local ─▶ process ─▶ the system
//!     └────▶ stock (environment variables of MLX's own transports)
//!   hostfile, facts ─▶ routes (addresses between ranks), placement (what each rank holds)
//!   models: where checkpoints are stored, whether they are complete, what they contain
//!   platform (macos, linux): the parts that depend on the operating system
//!   shell ─▶ probe ─▶ report ─┬▶ doctor: what is wrong, and which commands help
//!                             └▶ autoconfig: which cables there are, and how to use them
//!   log: logging to standard error that never blocks the caller
//!   trust: which coordinators may command this machine, and the keys of the machines it commands
//!   discovery: finds machines of this cluster on the local networks, without names or files
//! ```

pub mod agent;
pub mod autoconfig;
pub mod discovery;
pub mod doctor;
pub mod exchange;
pub mod facts;
pub mod home;
pub mod hostfile;
pub mod install;
pub mod listen;
pub mod local;
pub mod log;
pub mod models;
pub mod nodes;
pub mod placement;
pub mod platform;
pub mod probe;
pub mod process;
pub mod record;
pub mod report;
pub mod routes;
pub mod shell;
pub mod stock;
pub mod trust;
