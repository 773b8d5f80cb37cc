//! Arguments of the commands that operate a cluster: a server in the background, and queries to a server.

use std::path::PathBuf;

use super::ServeArgs;

/// Start a server in the background and wait until it is ready.
#[derive(Debug, clap::Args)]
pub(crate) struct StartArgs {
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
    /// Fail if a server with other arguments runs, instead of replacing it.
    #[arg(long)]
    pub(crate) no_replace: bool,
    /// Maximum time to wait until the server is ready, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 1800, value_parser = clap::value_parser!(u64).range(0..=86400))]
    pub(crate) wait: u64,
}

/// Stop the server of this machine and its ranks.
#[derive(Debug, clap::Args)]
pub(crate) struct StopArgs {
    /// Time after which the server is killed, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=86400))]
    pub(crate) grace: u64,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Restart the server with the arguments of the last start. Ranks started by agents keep their weights;
/// other ranks load theirs again.
#[derive(Debug, clap::Args)]
pub(crate) struct RestartArgs {
    /// Restart the ranks as well.
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Keep the ranks and their weights. This is the default.
    #[arg(long, conflicts_with = "fresh")]
    pub(crate) keep_weights: bool,
    /// Maximum time to wait until the server is ready, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 1800, value_parser = clap::value_parser!(u64).range(0..=86400))]
    pub(crate) wait: u64,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Restore the addresses that `autoconfig` assigned to cables after a reboot, and start the last server
/// and the agents of its machines.
#[derive(Debug, clap::Args)]
pub(crate) struct ResumeArgs {
    /// Print the steps without running them.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Run the commands without asking for confirmation.
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// Command to run as ssh, optionally with arguments (JACKALOPE_SSH).
    #[arg(long, value_name = "COMMAND")]
    pub(crate) ssh: Option<String>,
    /// Maximum time to wait until the server is ready, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 1800, value_parser = clap::value_parser!(u64).range(0..=86400))]
    pub(crate) wait: u64,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show the state of the server of this machine, its ranks and its machines' agents. Fails unless all
/// are healthy.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct StatusArgs {
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show the status repeatedly until Ctrl-C.
#[derive(Debug, clap::Args)]
pub(crate) struct MonitorArgs {
    /// Interval in seconds. Default: MONITOR_INTERVAL, else 5.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) interval: Option<u64>,
    /// Number of repetitions. Default: unlimited.
    #[arg(long, value_name = "TIMES", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) count: Option<u64>,
    /// Print one line of JSON per status instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show the log of the server in the background.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("whose").args(["rank", "agent", "serve"])))]
pub(crate) struct LogsArgs {
    /// Follow the log until Ctrl-C.
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Number of last lines to show.
    #[arg(long, short = 'n', default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub(crate) lines: u32,
    /// Show only the lines of this rank.
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=63))]
    pub(crate) rank: Option<u32>,
    /// Show the log of this machine's agent.
    #[arg(long)]
    pub(crate) agent: bool,
    /// Show the log of the server and of its ranks on all machines. This is the default.
    #[arg(long)]
    pub(crate) serve: bool,
    /// Machines whose agents' logs to show, with `--agent`: a hostfile, or SSH host names separated by
    /// commas.
    #[arg(long, value_name = "FILE|NAMES", requires = "agent", conflicts_with = "follow")]
    pub(crate) hosts: Option<String>,
    /// Command to run as ssh, optionally with arguments: `ssh -F FILE` (JACKALOPE_SSH).
    #[arg(long, value_name = "COMMAND", requires = "hosts")]
    pub(crate) ssh: Option<String>,
}

/// The server to query.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct AskArgs {
    /// URL of the server. Default: the server that runs on this machine, else http://127.0.0.1:8080.
    #[arg(long)]
    pub(crate) url: Option<String>,
    #[command(flatten)]
    pub(crate) key: super::keys::ClientKeyArgs,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show a server's speed, queue, cache and ranks in the terminal until `q` or Ctrl-C; once, if the output is
/// no terminal.
#[derive(Debug, clap::Args)]
pub(crate) struct TopArgs {
    /// URL of the server. Default: the server that runs on this machine, else http://127.0.0.1:8080.
    #[arg(long)]
    pub(crate) url: Option<String>,
    #[command(flatten)]
    pub(crate) key: super::keys::ClientKeyArgs,
    /// Interval in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(100..=3_600_000))]
    pub(crate) interval: u64,
    /// Print the state once and end.
    #[arg(long)]
    pub(crate) once: bool,
    /// Print one JSON object instead of text, with `--once`.
    #[arg(long, requires = "once")]
    pub(crate) json: bool,
}

/// Collect diagnostics for a bug report in a folder: findings of `doctor`, logs, the server's health, and
/// its last requests and errors. Contains no prompts, answers or keys.
#[derive(Debug, clap::Args)]
pub(crate) struct SupportArgs {
    #[command(flatten)]
    pub(crate) machines: super::MachinesArgs,
    /// Folder to write. Default: jackalope-support-TIME in the current directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

/// Stop the server and the agents of all machines, with all programs that they run.
#[derive(Debug, clap::Args)]
pub(crate) struct KillAllArgs {
    /// Machines whose agents to stop: a hostfile, or SSH host names separated by commas.
    /// Default: the machines of the last start.
    #[arg(long, value_name = "FILE|NAMES", visible_alias = "hostfile")]
    pub(crate) hosts: Option<String>,
    /// Command to run as ssh, optionally with arguments (JACKALOPE_SSH).
    #[arg(long, value_name = "COMMAND")]
    pub(crate) ssh: Option<String>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Print each setting of `serve` with its value and the source of the value.
#[derive(Debug, clap::Args)]
pub(crate) struct ConfigArgs {
    /// Other program whose environment variables to read.
    #[arg(long, value_enum)]
    pub(crate) profile: Option<super::Profile>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print all variables with their defaults, in the format of a `.env` file.
    #[arg(long, conflicts_with_all = ["json", "profile"])]
    pub(crate) example: bool,
    /// Arguments as for `serve`.
    #[arg(last = true, value_name = "ARGUMENTS")]
    pub(crate) serve: Vec<std::ffi::OsString>,
}
