//! `jackalope service`.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};

use crate::service::ServiceKind;

/// Run the server or the agent as a service of this machine.
#[derive(Debug, clap::Args)]
pub(crate) struct ServiceArgs {
    #[command(subcommand)]
    pub(crate) command: ServiceCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ServiceCommand {
    /// Install and start a service of systemd or launchd, or replace it by one with other arguments.
    Install(ServiceInstallArgs),
    /// End a service and remove it.
    Remove {
        /// Which one.
        #[arg(value_enum)]
        service: ServiceKind,
        /// The system's service, not this user's.
        #[arg(long)]
        system: bool,
    },
    /// Show the services that are installed. Fails unless there is one and all are active.
    Status {
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ServiceInstallArgs {
    /// What to run.
    #[arg(value_enum)]
    pub(crate) service: ServiceKind,
    /// Folder to start in; a server reads its file `.env`. Default: this folder for a server, else the
    /// user's home.
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Install a service of the system, which needs nobody to log in. Needs root.
    #[arg(long, requires = "user")]
    pub(crate) system: bool,
    /// Account that a system's service runs as.
    #[arg(long, value_name = "NAME", requires = "system")]
    pub(crate) user: Option<String>,
    /// Print the file and the commands, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// With `--dry-run`: for this service manager instead of this machine's.
    #[arg(long, value_enum, requires = "dry_run")]
    pub(crate) manager: Option<ManagerArg>,
    /// Arguments of `serve` or `agent`. Keys are refused here: name files that hold them.
    #[arg(last = true, value_name = "ARGUMENTS")]
    pub(crate) args: Vec<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ManagerArg {
    /// Linux.
    Systemd,
    /// macOS.
    Launchd,
}
