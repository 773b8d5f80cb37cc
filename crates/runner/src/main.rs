//! `jackalope-rank`: one rank, one device. It loads a shard, computes the plans it is sent, and
//! answers. It decides nothing, serves nobody, and ends when whoever started it is gone.
//!
//! Two threads matter. The *control* thread ([`control`]) reads the brain's messages and touches
//! no MLX: it can end the process, or break a collective, whatever the device does. The *worker*
//! ([`worker`], the main thread) owns every array.

mod control;
mod drawn;
mod embed;
mod libraries;
mod link;
mod micro_batch;
mod rank_memory;
mod remote;
mod sampler;
mod step;
mod worker;

use std::io::BufRead;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Parser, Subcommand};
use jackalope_protocol::Secret;
use tracing_subscriber::EnvFilter;

use crate::control::Brain;

/// How long the brain may take to send the secret and to accept the connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug, Parser)]
#[command(name = "jackalope-rank", version, about = "One rank of a jackalope cluster")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve a brain. The cluster's secret is read from standard input, which must stay open:
    /// the process ends with it.
    Serve(ServeArgs),
    /// Measure a group without a model.
    Link(link::LinkArgs),
    /// Tell which libraries this program needs, and where an installation keeps them.
    Libraries,
}

#[derive(Debug, clap::Args)]
struct ServeArgs {
    /// Where the brain listens.
    #[arg(long)]
    control: SocketAddr,
    /// Which rank this is.
    #[arg(long)]
    rank: u32,
    /// Where to accept the native group's connections; port 0 picks one.
    #[arg(long, default_value = "127.0.0.1:0")]
    data: SocketAddr,
    /// Seconds to look for a brain that is not there yet.
    #[arg(long, default_value_t = 0)]
    patience: u64,
}

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let result = match Args::parse().command {
        Command::Serve(args) => serve(&args),
        Command::Link(args) => link::run(&args),
        Command::Libraries => libraries::run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            // The launcher keeps the last lines of this stream as the rank's last words.
            eprintln!("error: {err:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve(args: &ServeArgs) -> anyhow::Result<()> {
    let secret = read_secret()?;
    control::end_with_standard_input();
    let listener = jackalope_transport::Listener::bind(args.data)
        .with_context(|| format!("listening for peers on {}", args.data))?;
    let brain =
        Brain { addr: args.control, rank: args.rank, secret, data_addr: listener.local_addr() };
    let patience = Duration::from_secs(args.patience);
    let (control, commands) = control::connect(brain, patience)?;
    worker::run(&worker::Identity { rank: args.rank, secret, listener }, &control, &commands)
}

/// The first line of standard input: 64 hexadecimal digits.
fn read_secret() -> anyhow::Result<Secret> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).context("reading the secret")?;
    Secret::from_hex(&line).with_context(|| {
        let length = line.trim().len();
        format!("expected 64 hexadecimal digits on standard input, found {length} characters")
    })
}
