//! Arguments of `service`.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use jackalope_fleet::service::ServiceKind;

/// Run the server or the agent as a system service.
#[derive(Debug, clap::Args)]
pub(crate) struct ServiceArgs {
    #[command(subcommand)]
    pub(crate) command: ServiceCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ServiceCommand {
    /// Install and start a systemd or launchd service, or replace it.
    Install(ServiceInstallArgs),
    /// Stop and remove a service.
    Remove {
        /// Service to remove.
        #[arg(value_enum)]
        service: ServiceArg,
        /// Remove the system's service instead of this user's.
        #[arg(long)]
        system: bool,
    },
    /// Show the installed services. Fails unless there is at least one and all are active.
    Status {
        /// Print one JSON object instead of text.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ServiceInstallArgs {
    /// Program to run as a service.
    #[arg(value_enum)]
    pub(crate) service: ServiceArg,
    /// Working directory, whose `.env` file a server reads. Default: the current directory for a server,
    /// the user's home for an agent.
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Install a service of the system, which starts at boot without a login. Needs root.
    #[arg(long, requires = "user")]
    pub(crate) system: bool,
    /// Account that runs a service of the system.
    #[arg(long, value_name = "NAME", requires = "system")]
    pub(crate) user: Option<String>,
    /// Print the file and the commands without changing anything.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Service manager to print for, with `--dry-run`. Default: this machine's.
    #[arg(long, value_enum, requires = "dry_run")]
    pub(crate) manager: Option<ManagerArg>,
    /// Arguments of `serve` or `agent`. Keys are refused here: pass files that contain them.
    #[arg(last = true, value_name = "ARGUMENTS")]
    pub(crate) args: Vec<String>,
}

/// Program that can run as a service.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum ServiceArg {
    /// The server: `jackalope serve`.
    Server,
    /// The agent of this machine: `jackalope agent`.
    Agent,
}

impl From<ServiceArg> for ServiceKind {
    fn from(arg: ServiceArg) -> ServiceKind {
        match arg {
            ServiceArg::Server => ServiceKind::Server,
            ServiceArg::Agent => ServiceKind::Agent,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ManagerArg {
    /// Linux.
    Systemd,
    /// macOS.
    Launchd,
}
