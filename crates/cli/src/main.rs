//! `jackalope`: wires arguments to crates. Nothing is decided here but what a command prints.

mod args;
mod autoconfig;
mod bench;
mod chat;
mod cluster;
mod doctor;
mod fingerprint;
mod generate;
mod link;
mod output;
mod progress;
mod serve;
mod split;
mod synth;

use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use crate::args::{Args, Command};
use crate::output::OutputError;

fn main() -> ExitCode {
    let args = Args::parse();
    let default = if args.verbose { "info" } else { "warn" };
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_from_default_env().unwrap_or_else(|_| default.into()))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(err) => {
            eprintln!("error: starting the runtime: {err}");
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(async {
        match args.command {
            Command::Serve(args) => serve::run(args).await,
            Command::Chat(args) => chat::run(args).await,
            Command::Generate(args) => generate::run(args).await,
            Command::Bench(args) => bench::run(args).await,
            Command::Link(args) => link::run(&args).await,
            Command::Synth(args) => synth::run(&args),
            Command::Doctor(args) => doctor::run(&args),
            Command::Autoconfig(args) => autoconfig::run(&args),
            Command::ClusterInfo(args) => fingerprint::cluster_info(&args),
            Command::Fingerprint(args) => fingerprint::run(&args),
        }
    });
    // A thread that waits for a terminal's input must not hold up the end.
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) if err.downcast_ref().is_some_and(OutputError::is_closed) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("error: {err:#}");
            ExitCode::FAILURE
        }
    }
}
