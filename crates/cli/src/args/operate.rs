//! Operating a cluster: a server in the background, and questions to one.

use std::path::PathBuf;

use super::ServeArgs;

/// Serve in the background, and come back when the server is ready.
#[derive(Debug, clap::Args)]
pub(crate) struct StartArgs {
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
    /// Refuse if a server with other arguments runs, instead of replacing it.
    #[arg(long)]
    pub(crate) no_replace: bool,
    /// Seconds after which a server that is not ready is no longer waited for.
    #[arg(long, value_name = "SECONDS", default_value_t = 1800)]
    pub(crate) wait: u64,
}

/// End the server of this machine and its ranks.
#[derive(Debug, clap::Args)]
pub(crate) struct StopArgs {
    /// Seconds after which it is killed.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub(crate) grace: u64,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Replace the server by one with the arguments of the last start. Ranks of agents keep their weights, others
/// load them again.
#[derive(Debug, clap::Args)]
pub(crate) struct RestartArgs {
    /// End the ranks too.
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Keep the ranks and their weights, as is usual.
    #[arg(long, conflicts_with = "fresh")]
    pub(crate) keep_weights: bool,
    /// Seconds after which a server that is not ready is no longer waited for.
    #[arg(long, value_name = "SECONDS", default_value_t = 1800)]
    pub(crate) wait: u64,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// After a reboot: give cables the addresses that `autoconfig` gave them, and start the last server with
/// its machines' agents.
#[derive(Debug, clap::Args)]
pub(crate) struct ResumeArgs {
    /// Print what would be done and stop.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Run the commands without asking.
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// What to run as ssh: a program, possibly with arguments (JACKALOPE_SSH).
    #[arg(long, value_name = "COMMAND")]
    pub(crate) ssh: Option<String>,
    /// Seconds after which a server that is not ready is no longer waited for.
    #[arg(long, value_name = "SECONDS", default_value_t = 1800)]
    pub(crate) wait: u64,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Tell how the server of this machine, its ranks and the agents of its machines are. Fails unless
/// all is well.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct StatusArgs {
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Tell the status again and again until Ctrl-C.
#[derive(Debug, clap::Args)]
pub(crate) struct MonitorArgs {
    /// Seconds in between (MONITOR_INTERVAL).
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) interval: Option<u64>,
    /// End after so many times. Default: never.
    #[arg(long, value_name = "TIMES")]
    pub(crate) count: Option<u64>,
    /// Print JSON lines.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show what the server in the background has written.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("whose").args(["rank", "agent", "serve"])))]
pub(crate) struct LogsArgs {
    /// Go on with what is written from now on, until Ctrl-C.
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Last lines to show.
    #[arg(long, short = 'n', default_value_t = 50)]
    pub(crate) lines: usize,
    /// Only what this rank has written.
    #[arg(long)]
    pub(crate) rank: Option<u32>,
    /// What the agent of this machine has written.
    #[arg(long)]
    pub(crate) agent: bool,
    /// What the server and its ranks have written, as is usual: on all machines.
    #[arg(long)]
    pub(crate) serve: bool,
    /// With `--agent`: of the agents of these machines, a hostfile or names for ssh.
    #[arg(long, value_name = "FILE|NAMES", requires = "agent", conflicts_with = "follow")]
    pub(crate) hosts: Option<String>,
    /// The `ssh` to use for these, with arguments: `ssh -F FILE` (JACKALOPE_SSH).
    #[arg(long, value_name = "COMMAND", requires = "hosts")]
    pub(crate) ssh: Option<String>,
}

/// Which server is asked.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct AskArgs {
    /// Server to ask. Default: the one that runs on this machine, else http://127.0.0.1:8080.
    #[arg(long)]
    pub(crate) url: Option<String>,
    #[command(flatten)]
    pub(crate) key: super::keys::ClientKeyArgs,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Put what somebody else needs to find a fault into a folder: what the doctor sees, logs, the server's
/// health, its last requests and errors. No prompts, answers or keys.
#[derive(Debug, clap::Args)]
pub(crate) struct SupportArgs {
    #[command(flatten)]
    pub(crate) machines: super::MachinesArgs,
    /// The folder. Default: jackalope-support-TIME, here.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

/// End the server and the agents of all machines, and all they look after.
#[derive(Debug, clap::Args)]
pub(crate) struct KillAllArgs {
    /// Machines whose agents end too: a hostfile, or names for ssh separated by commas.
    /// Default: those of the last start.
    #[arg(long, value_name = "FILE|NAMES", visible_alias = "hostfile")]
    pub(crate) hosts: Option<String>,
    /// What to run as ssh: a program, possibly with arguments (JACKALOPE_SSH).
    #[arg(long, value_name = "COMMAND")]
    pub(crate) ssh: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Print each setting of `serve` with its value and where that comes from.
#[derive(Debug, clap::Args)]
pub(crate) struct ConfigArgs {
    /// Whose environment variables to read.
    #[arg(long, value_enum)]
    pub(crate) profile: Option<crate::config::Profile>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print all variables with their defaults, as a file `.env` holds them.
    #[arg(long, conflicts_with_all = ["json", "profile"])]
    pub(crate) example: bool,
    /// Arguments of `serve`.
    #[arg(last = true, value_name = "ARGUMENTS")]
    pub(crate) serve: Vec<std::ffi::OsString>,
}
