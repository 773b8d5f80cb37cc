//! `jackalope-rank`: one rank on one device. It loads a shard, computes the plans it receives, and
//! returns the results. It makes no decisions, accepts no requests from clients, and ends when its
//! parent process is gone, unless its setup allows it to continue.
//!
//! Two threads matter. The *control* thread ([`control`]) reads the coordinator's messages and
//! never uses MLX: it can end the process, or break a collective, even while the device is busy or
//! stuck. The *worker* ([`worker`], the main thread) owns every array.

mod content;
mod control;
mod device_sampler;
mod embed;
mod libraries;
mod link;
mod micro_batch;
mod pending_step;
mod rank_memory;
mod remote;
mod sampled_tokens;
mod sampler;
mod startup;
mod step;
mod step_error;
mod warm_up;
mod worker;

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use jackalope_protocol::log::{self, FLUSH_TIMEOUT, LogWriter};
use tracing_subscriber::EnvFilter;

use crate::control::Coordinator;
use crate::startup::{PortRange, listen, read_secret};

#[derive(Debug, Parser)]
#[command(name = "jackalope-rank", version, about = "One rank of a jackalope cluster")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve a coordinator. The rank's ticket is read from standard input. When standard input
    /// closes, the process exits unless its setup allows it to continue.
    Serve(ServeArgs),
    /// Measure a group without a model.
    Link(link::LinkArgs),
    /// Print the libraries that this program needs, and where an installation keeps them.
    Libraries,
}

#[derive(Debug, clap::Args)]
struct ServeArgs {
    /// Address of the coordinator.
    #[arg(long)]
    control: SocketAddr,
    /// Number of this rank.
    #[arg(long)]
    rank: u32,
    /// Addresses on which to accept the native group's connections, with the same port on each.
    #[arg(long, value_delimiter = ',', default_value = "127.0.0.1")]
    data: Vec<IpAddr>,
    /// Port, or range FIRST-LAST from which a free port is selected; 0 selects any free port.
    #[arg(long, default_value = "0")]
    data_ports: PortRange,
    /// Maximum time to wait for a coordinator that does not listen yet, in seconds.
    #[arg(long, default_value_t = 0)]
    patience: u64,
}

fn main() -> ExitCode {
    log::report_panics();
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::from_default_env())
        .with_writer(LogWriter::new)
        .with_ansi(false)
        // If the reader of this stream is gone, lines are lost. Reporting that error to the same
        // stream would panic.
        .log_internal_errors(false)
        .init();
    let result = match Args::parse().command {
        Command::Serve(args) => serve(&args),
        Command::Link(args) => link::run(&args),
        Command::Libraries => libraries::run(),
    };
    let code = match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            // The launcher keeps the last lines of this stream to report how the rank ended.
            log::line(&format!("error: {err:#}"));
            ExitCode::FAILURE
        }
    };
    log::flush(FLUSH_TIMEOUT);
    code
}

fn serve(args: &ServeArgs) -> anyhow::Result<()> {
    let ticket = read_secret()?;
    let tether = control::Tether::watch();
    let listener = listen(&args.data, args.data_ports)?;
    let coordinator = Coordinator {
        addr: args.control,
        rank: args.rank,
        ticket,
        data_addr: listener.local_addr(),
    };
    let patience = Duration::from_secs(args.patience);
    let (control, commands) = control::connect(coordinator, patience, tether)?;
    worker::run(&worker::Identity { rank: args.rank, listener }, &control, &commands)
}
