//! Several real hosts: network namespaces with addresses of their own, an OpenSSH server in each, and
//! faults in the network between them.
//!
//! Needs root, `ip`, `tc` and `sshd`; installs the latter three with apt where they are missing.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]
#![expect(clippy::print_stdout, reason = "a run tells its seed, and what took how long")]

#[expect(dead_code, reason = "shared with the tests on one host")]
#[path = "../it/checkpoint.rs"]
mod checkpoint;
mod copying;
mod discovering;
mod eavesdropping;
mod faults;
#[expect(dead_code, reason = "shared with the tests on one host")]
#[path = "../it/http.rs"]
mod http;
mod lab;
mod launching;
mod links;
mod listening;
#[expect(dead_code, reason = "shared with the tests on one host")]
#[path = "../it/program.rs"]
mod program;
#[path = "../it/random.rs"]
mod random;
mod trusting;
mod versions;
