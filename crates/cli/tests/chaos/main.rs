//! Chaos test: a real server with streams open all the time, and faults that follow from a seed.
//! Counts lost streams, changed tokens and pauses, by kind of fault.
//!
//! `cargo xtask chaos --minutes N` runs it. Without `--minutes`, as under `cargo test`, it kills
//! one rank once.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]
#![expect(clippy::print_stdout, reason = "a run tells its seed, and what took how long")]

#[cfg(target_os = "linux")]
#[expect(dead_code, reason = "shared with the tests on one host")]
#[path = "../it/checkpoint.rs"]
mod checkpoint;
#[cfg(target_os = "linux")]
mod flood;
#[cfg(target_os = "linux")]
#[expect(dead_code, reason = "shared with the tests on one host")]
#[path = "../it/http.rs"]
mod http;
#[cfg(target_os = "linux")]
#[expect(dead_code, reason = "shared with the tests on several hosts")]
#[path = "../hosts/lab.rs"]
mod lab;
#[cfg(target_os = "linux")]
mod machine;
#[cfg(target_os = "linux")]
mod network;
#[cfg(target_os = "linux")]
mod plan;
#[cfg(target_os = "linux")]
#[expect(dead_code, reason = "shared with the tests on one host")]
#[path = "../it/program.rs"]
mod program;
#[cfg(target_os = "linux")]
#[path = "../it/random.rs"]
mod random;
#[cfg(target_os = "linux")]
mod run;
#[cfg(target_os = "linux")]
mod streams;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    run::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("left out: processes are stopped and looked up as Linux does it");
}
