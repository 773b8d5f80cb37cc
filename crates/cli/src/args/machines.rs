//! Arguments about several machines: hostfiles, agents, ranks and ports.

use std::net::IpAddr;

use clap::Subcommand;
use jackalope_deploy::PortRange;

/// The machines of the ranks, and how they are reached.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct HostsArgs {
    /// Machines to use, one rank per entry: a hostfile, or SSH host names separated by commas.
    #[arg(long, value_name = "FILE|NAMES", conflicts_with = "ranks", group = "machines")]
    #[arg(aliases = ["dist-hostfile", "dist-hosts"])]
    pub(crate) hosts: Option<String>,
    /// Use the machines that `jackalope discover` finds, this machine first; with `=N`, wait until N are
    /// found.
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "0", value_parser = clap::value_parser!(u16).range(0..=64), conflicts_with = "ranks", group = "machines")]
    pub(crate) discover: Option<u16>,
    /// Environment variable for every rank: `NAME=VALUE`. May be given several times.
    #[arg(long, alias = "dist-env", value_name = "NAME=VALUE")]
    pub(crate) env: Vec<String>,
    #[command(flatten)]
    pub(crate) reach: ReachArgs,
    /// Port on which this machine accepts the ranks' control connections; 0: any free port.
    #[arg(long, value_name = "PORT", default_value_t = 18080)]
    pub(crate) control_port: u16,
    /// Ports for the connections between ranks; each rank uses one of them.
    #[arg(long, value_name = "FIRST-LAST", default_value_t = PortRange::DATA)]
    pub(crate) data_ports: PortRange,
    /// Time for which ranks keep their weights after they lose the connection to this program, in seconds;
    /// 0 ends them at once.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=86400))]
    pub(crate) lease: u64,
    /// Do not start ranks: wait for `jackalope rank` on each machine, in any order.
    #[arg(long, requires = "machines")]
    pub(crate) by_hand: bool,
    /// Machine from which ranks on machines without the model read their part of it, without keeping a
    /// copy: a machine of the hostfile, or `localhost`.
    #[arg(long, value_name = "HOST", requires = "machines", conflicts_with = "by_hand")]
    pub(crate) models_from: Option<String>,
    /// Port on which other machines read or copy this machine's models; 0: any free port.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub(crate) copy_port: u16,
    /// Time without progress of any rank after which waiting requests fail, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub(crate) give_up_after: u64,
    /// Wait for unreachable machines even if the others could hold the model without them.
    #[arg(long)]
    pub(crate) no_elastic: bool,
    /// Time after which the cluster continues without a machine that cannot be reached, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u64).range(0..=86400))]
    pub(crate) absent_after: u64,
}

/// Run one rank of a cluster whose `serve` was started with `--by-hand`.
#[derive(Debug, clap::Args)]
pub(crate) struct RankArgs {
    /// Number of this rank. Default: MLX_RANK.
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=63))]
    pub(crate) rank: Option<u32>,
    /// Address of `serve`: HOST or HOST:PORT. Default: rank 0's host in MLX_JACCL_COORDINATOR or
    /// MLX_HOSTFILE.
    #[arg(long, value_name = "HOST")]
    pub(crate) control: Option<String>,
    /// Addresses at which the other ranks reach this rank, separated by commas. Default: the local address
    /// of the route to `--control`.
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub(crate) data: Vec<IpAddr>,
    /// Ports for the connections between ranks; this rank uses one of them.
    #[arg(long, value_name = "FIRST-LAST", default_value_t = PortRange::DATA)]
    pub(crate) data_ports: PortRange,
    /// Maximum time to wait for `serve`, in seconds; ranks may be started first.
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(0..=86400))]
    pub(crate) wait: u64,
}

/// How the agents of other machines are reached.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ReachArgs {
    /// Port of the agents.
    #[arg(long, value_name = "PORT", default_value_t = 18081, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) agent_port: u16,
    /// Token of agents started with `worker p2p-mlx`, used in place of this machine's secret.
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
    /// Command to run as ssh, optionally with arguments (JACKALOPE_SSH).
    #[arg(long, value_name = "COMMAND")]
    pub(crate) ssh: Option<String>,
    /// Refuse machines that do not have this version, instead of installing it there.
    #[arg(long)]
    pub(crate) no_bootstrap: bool,
}

/// Run this machine's agent, which starts ranks for trusted coordinators.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct AgentArgs {
    /// Addresses to listen on, separated by commas. Default: the private addresses of this machine's
    /// interfaces (10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, 100.64.0.0/10, 169.254.0.0/16, fc00::/7).
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub(crate) listen: Vec<IpAddr>,
    /// Port to listen on.
    #[arg(long, default_value_t = 18081, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: u16,
    /// Stop after this time without connections and programs, in seconds. Default: never.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=31_536_000))]
    pub(crate) linger: Option<u64>,
    /// Answer `jackalope discover` on all local networks. Machines without this machine's secret learn only
    /// the version.
    #[arg(long)]
    pub(crate) announce: bool,
    /// Start an agent in the background, unless one with the same secret runs. Standard input holds
    /// the secret and, on a second line, the key of a coordinator to trust.
    #[arg(long, conflicts_with = "detached")]
    pub(crate) start: bool,
    /// Detach from the session and the terminal (used by `--start`).
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
    #[command(subcommand)]
    pub(crate) command: Option<AgentCommand>,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum AgentCommand {
    /// Stop the agent of this machine and all programs that it runs.
    Stop,
    /// Show whether an agent runs on this machine.
    Status {
        /// Print one JSON object instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Install the agent as a service of this user: systemd starts it at boot, launchd at login.
    Install {
        /// Answer `jackalope discover`.
        #[arg(long)]
        announce: bool,
        /// Addresses to listen on, separated by commas. Default: as for `agent`.
        #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
        listen: Vec<IpAddr>,
        /// Print the file and the commands without changing anything.
        #[arg(long)]
        dry_run: bool,
    },
    /// Remove the service that `install` set up.
    Uninstall,
    /// Switch to an installed version, and store the secret from standard input, if there is one (used by
    /// `bootstrap`).
    #[command(hide = true, group(clap::ArgGroup::new("version").required(true).args(["id", "previous"])))]
    Activate {
        /// Name of the version.
        id: Option<String>,
        /// Switch back to the version before the last switch.
        #[arg(long)]
        previous: bool,
    },
}

/// Run a program on all machines with the environment variables that distributed MLX programs read.
#[derive(Debug, clap::Args)]
pub(crate) struct LaunchArgs {
    /// Machines to use, one rank per entry: a hostfile, or SSH host names separated by commas.
    #[arg(long, value_name = "FILE|NAMES", visible_alias = "hostfile")]
    pub(crate) hosts: Option<String>,
    /// Number of ranks per machine.
    #[arg(long, short = 'n', visible_alias = "num-ranks", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) repeat_hosts: u32,
    #[command(flatten)]
    pub(crate) reach: ReachArgs,
    /// Transport to set variables for. Default: the one in the hostfile, else ring.
    #[arg(long, value_enum)]
    pub(crate) backend: Option<super::BackendArg>,
    /// Environment variable for every rank: `NAME=VALUE`. May be given several times.
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) env: Vec<String>,
    /// Working directory. Default: the current path on machines that have it, else the user's home.
    #[arg(long, value_name = "DIR")]
    pub(crate) cwd: Option<String>,
    /// First port that the transport uses.
    #[arg(long, short = 'p', default_value_t = 32323, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) starting_port: u16,
    /// Do not prefix output lines with `[rank]`.
    #[arg(long)]
    pub(crate) no_prefix: bool,
    /// Program to run, and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<String>,
}
