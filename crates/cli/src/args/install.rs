//! Putting jackalope on other machines.

/// How machines are reached where no agent is needed.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SshArgs {
    /// What to run as ssh: a program, possibly with arguments (JACKALOPE_SSH).
    #[arg(long, value_name = "COMMAND")]
    pub(crate) ssh: Option<String>,
}

/// Put these programs on machines that have nothing but an SSH login.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct BootstrapArgs {
    /// Names for ssh, separated by commas or blanks.
    #[arg(value_name = "HOST", value_delimiter = ',', required = true)]
    pub(crate) hosts: Vec<String>,
    #[command(flatten)]
    pub(crate) ssh: SshArgs,
    /// Use the version from before instead.
    #[arg(long)]
    pub(crate) rollback: bool,
    /// Print one JSON object for each machine.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Bring every machine to this version and to this machine's secret.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SyncArgs {
    /// The machines: a hostfile, or names for ssh separated by commas.
    #[arg(long, value_name = "FILE|NAMES")]
    pub(crate) hosts: String,
    #[command(flatten)]
    pub(crate) ssh: SshArgs,
    /// Use the version from before instead.
    #[arg(long)]
    pub(crate) rollback: bool,
    /// Print one JSON object for each machine.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Remove jackalope from machines; models stay.
#[derive(Clone, Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("which").required(true).args(["names", "hosts"])))]
pub(crate) struct UninstallArgs {
    /// Names for ssh, separated by commas or blanks; 127.0.0.1 is this machine.
    #[arg(value_name = "HOST", value_delimiter = ',')]
    pub(crate) names: Vec<String>,
    /// The machines: a hostfile, or names for ssh separated by commas.
    #[arg(long, value_name = "FILE|NAMES")]
    pub(crate) hosts: Option<String>,
    #[command(flatten)]
    pub(crate) ssh: SshArgs,
    /// Do not ask.
    #[arg(long)]
    pub(crate) yes: bool,
    /// Print one JSON object for each machine.
    #[arg(long)]
    pub(crate) json: bool,
}
