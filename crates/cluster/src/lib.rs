//! Places ranks on machines and keeps their processes. Knows programs, files, ports and platforms;
//! knows nothing of requests, tokens or arrays.
//!
//! ```text
//!   local ─▶ process ─▶ the system
//!     └────▶ stock (what MLX's own transports want in the environment)
//!   platform (macos, linux): what only one system can tell, read from commands and files
//!   shell ─▶ probe ─▶ report ─┬▶ doctor: what is wrong, and what to type
//!                             └▶ autoconfig: which cables there are, and what to make of them
//! ```

pub mod autoconfig;
pub mod doctor;
pub mod facts;
pub mod hostfile;
pub mod local;
pub mod platform;
pub mod probe;
pub mod process;
pub mod report;
pub mod shell;
pub mod stock;
