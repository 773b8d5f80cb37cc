//! Arguments of the commands that install jackalope on other machines.

/// How machines are reached without an agent.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SshArgs {
    /// Command to run as ssh, optionally with arguments (JACKALOPE_SSH).
    #[arg(long, value_name = "COMMAND")]
    pub(crate) ssh: Option<String>,
}

/// Install jackalope on machines over SSH.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct BootstrapArgs {
    /// SSH host names, separated by commas or spaces.
    #[arg(value_name = "HOST", value_delimiter = ',', required = true)]
    pub(crate) hosts: Vec<String>,
    #[command(flatten)]
    pub(crate) ssh: SshArgs,
    /// Switch back to the previous version instead.
    #[arg(long)]
    pub(crate) rollback: bool,
    /// Print one JSON object per machine instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Install this version and this machine's secret on every machine.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SyncArgs {
    /// Machines: a hostfile, or SSH host names separated by commas.
    #[arg(long, value_name = "FILE|NAMES")]
    pub(crate) hosts: String,
    #[command(flatten)]
    pub(crate) ssh: SshArgs,
    /// Switch back to the previous version instead.
    #[arg(long)]
    pub(crate) rollback: bool,
    /// Print one JSON object per machine instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Remove jackalope from machines; models are kept.
#[derive(Clone, Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("which").required(true).args(["names", "hosts"])))]
pub(crate) struct UninstallArgs {
    /// SSH host names, separated by commas or spaces; 127.0.0.1 is this machine.
    #[arg(value_name = "HOST", value_delimiter = ',')]
    pub(crate) names: Vec<String>,
    /// Machines: a hostfile, or SSH host names separated by commas.
    #[arg(long, value_name = "FILE|NAMES")]
    pub(crate) hosts: Option<String>,
    #[command(flatten)]
    pub(crate) ssh: SshArgs,
    /// Do not ask for confirmation.
    #[arg(long)]
    pub(crate) yes: bool,
    /// Print one JSON object per machine instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}
