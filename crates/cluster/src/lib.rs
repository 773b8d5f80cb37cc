//! Places ranks on machines and keeps their processes. Knows programs, files, ports and platforms;
//! knows nothing of requests, tokens or arrays.
//!
//! ```text
//!   local ─▶ process ─▶ the system
//!     └────▶ stock (what MLX's own transports want in the environment)
//!   hostfile, facts ─▶ routes (who reaches whom by which address), placement (who holds how much)
//!   models: where checkpoints lie on a machine, whether they are whole, what is in them
//!   platform (macos, linux): what only one system can tell, read from commands and files
//!   shell ─▶ probe ─▶ report ─┬▶ doctor: what is wrong, and what to type
//!                             └▶ autoconfig: which cables there are, and what to make of them
//!   log: standard error that never blocks its writers
//!   trust: which coordinators may command this machine, and the keys of the machines it commands
//!   discovery: machines of ours on the networks of this one, without names or files
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
