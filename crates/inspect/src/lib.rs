//! Examines machines: what is wrong with them, and how their cables can be used. Needs none of our
//! programs on those machines.
//!
//! ```text
//!   probe (scripts) ─▶ platform (parsers) ─▶ report ─┬▶ doctor: what is wrong, and which commands help
//!                                                    └▶ autoconfig: which cables there are, and how
//!                                                                   to use them
//! ```

pub mod autoconfig;
pub mod doctor;
pub mod platform;
pub mod probe;
pub mod rdma_release;
pub mod report;
