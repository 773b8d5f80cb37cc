//! Several machines.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use clap::Subcommand;

/// A range of consecutive ports.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// Overlaps neither our other ports nor MLX's nor those that systems assign by themselves.
    pub(crate) const DATA: PortRange = PortRange { first: 31000, last: 31299 };
}

impl FromStr for PortRange {
    type Err = String;

    fn from_str(text: &str) -> Result<PortRange, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let parse = |text: &str| text.parse().map_err(|_| format!("{text:?} is no port"));
        let (first, last) = (parse(first)?, parse(last)?);
        if last < first {
            return Err(format!("{text} ends before it begins"));
        }
        Ok(PortRange { first, last })
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// The machines ranks are on, and how they are reached.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct HostsArgs {
    /// Machines to use, one rank on each entry: a hostfile, or names for ssh separated by commas.
    #[arg(long, value_name = "FILE|NAMES", conflicts_with = "ranks", group = "machines")]
    #[arg(aliases = ["dist-hostfile", "dist-hosts"])]
    pub(crate) hosts: Option<String>,
    /// Use the machines that `jackalope discover` finds, this one first; with `=N`, once N are there.
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "0", value_parser = clap::value_parser!(u16).range(0..=64), conflicts_with = "ranks", group = "machines")]
    pub(crate) discover: Option<u16>,
    /// A variable for every rank: `NAME=VALUE`.
    #[arg(long, alias = "dist-env", value_name = "NAME=VALUE")]
    pub(crate) env: Vec<String>,
    #[command(flatten)]
    pub(crate) reach: ReachArgs,
    /// Port for ranks to connect to, on the addresses by which their machines reach this one.
    #[arg(long, value_name = "PORT", default_value_t = 18080)]
    pub(crate) control_port: u16,
    /// Ports for the connections between ranks; each rank takes one of them.
    #[arg(long, value_name = "FIRST-LAST", default_value_t = PortRange::DATA)]
    pub(crate) data_ports: PortRange,
    /// Seconds for which ranks keep their weights when this program is gone without a word.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=86400))]
    pub(crate) lease: u64,
    /// Start no rank: wait for `jackalope rank` on each machine, in any order.
    #[arg(long, requires = "machines")]
    pub(crate) by_hand: bool,
    /// Of ranks that are started by hand, the first one is ours to start.
    #[arg(skip)]
    pub(crate) first_here: bool,
    /// Variables of that one.
    #[arg(skip)]
    pub(crate) rank_env: Vec<(String, String)>,
    /// Who has the model, for machines that lack it: their ranks read just their part of it from there and
    /// keep no copy. A machine of the hostfile, or `localhost`.
    #[arg(long, value_name = "HOST", requires = "machines", conflicts_with = "by_hand")]
    pub(crate) models_from: Option<String>,
    /// Seconds without progress after which requests that wait for ranks are ended.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub(crate) give_up_after: u64,
    /// Wait for machines that are away, even if the others could do without them.
    #[arg(long)]
    pub(crate) no_elastic: bool,
    /// Seconds after which a machine that cannot be reached is done without.
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u64).range(0..=86400))]
    pub(crate) absent_after: u64,
}

/// Be one rank of a cluster whose `serve` runs with `--by-hand`.
#[derive(Debug, clap::Args)]
pub(crate) struct RankArgs {
    /// Which rank. Default: MLX_RANK.
    #[arg(long)]
    pub(crate) rank: Option<u32>,
    /// Where `serve` runs: HOST or HOST:PORT. Default: rank 0's host of MLX_JACCL_COORDINATOR or
    /// MLX_HOSTFILE.
    #[arg(long, value_name = "HOST")]
    pub(crate) control: Option<String>,
    /// Addresses by which the other ranks reach this one, separated by commas. Default: this machine's
    /// address on the way to `--control`.
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub(crate) data: Vec<IpAddr>,
    /// Ports for the connections between ranks; this rank takes one of them.
    #[arg(long, value_name = "FIRST-LAST", default_value_t = PortRange::DATA)]
    pub(crate) data_ports: PortRange,
    /// Seconds to look for it: ranks may be started before it.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub(crate) wait: u64,
}

/// How machines are reached.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ReachArgs {
    /// Where agents listen.
    #[arg(long, value_name = "PORT", default_value_t = 18081)]
    pub(crate) agent_port: u16,
    /// What agents of `worker p2p-mlx` were given, instead of this machine's secret.
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
    /// What to run as ssh: a program, possibly with arguments (JACKALOPE_SSH).
    #[arg(long, value_name = "COMMAND")]
    pub(crate) ssh: Option<String>,
    /// Refuse machines that do not have this version, instead of putting it there.
    #[arg(long)]
    pub(crate) no_bootstrap: bool,
}

/// Look after this machine's programs for the coordinators that it trusts.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct AgentArgs {
    /// Addresses to listen on, separated by commas. Default: the private addresses of this machine's
    /// interfaces (10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, 100.64.0.0/10, 169.254.0.0/16, fc00::/7).
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub(crate) listen: Vec<IpAddr>,
    /// Port to listen on.
    #[arg(long, default_value_t = 18081)]
    pub(crate) port: u16,
    /// End after so many seconds in which nobody needs it. Default: stay.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) linger: Option<u64>,
    /// Answer `jackalope discover` of machines with our secret on all local networks; others who ask are
    /// told the version alone.
    #[arg(long)]
    pub(crate) announce: bool,
    /// Start an agent in the background, unless one with the same secret runs. Standard input holds
    /// the secret and, on a second line, the key of a coordinator to trust.
    #[arg(long, conflicts_with = "detached")]
    pub(crate) start: bool,
    /// Leave the session and the terminal behind (what `--start` runs).
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
    #[command(subcommand)]
    pub(crate) command: Option<AgentCommand>,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum AgentCommand {
    /// End the agent of this machine, and all it looks after.
    Stop,
    /// Tell whether an agent runs on this machine.
    Status {
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Start the agent with this machine: a launchd or systemd service of this user.
    Install {
        /// Let it answer `jackalope discover`.
        #[arg(long)]
        announce: bool,
        /// Addresses to listen on, separated by commas. Default: as without `install`.
        #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
        listen: Vec<IpAddr>,
        /// Print what would be written and run, and do nothing.
        #[arg(long)]
        dry_run: bool,
    },
    /// Undo `install`.
    Uninstall,
    /// Use a version that lies in the folder of versions, and take the secret on standard input, if any
    /// (what `bootstrap` runs).
    #[command(hide = true, group(clap::ArgGroup::new("version").required(true).args(["id", "previous"])))]
    Activate {
        /// Name of the version.
        id: Option<String>,
        /// The one from before the last switch.
        #[arg(long)]
        previous: bool,
    },
}

/// Run any program on all machines, with the variables that MLX's distributed programs read.
#[derive(Debug, clap::Args)]
pub(crate) struct LaunchArgs {
    /// Machines to use, one rank on each entry: a hostfile, or names for ssh separated by commas.
    #[arg(long, value_name = "FILE|NAMES", visible_alias = "hostfile")]
    pub(crate) hosts: Option<String>,
    /// Ranks on each machine.
    #[arg(long, short = 'n', visible_alias = "num-ranks", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) repeat_hosts: u32,
    #[command(flatten)]
    pub(crate) reach: ReachArgs,
    /// Which transport's variables to set. Default: the hostfile's, else ring.
    #[arg(long, value_enum)]
    pub(crate) backend: Option<super::BackendArg>,
    /// A variable for every rank: `NAME=VALUE`.
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) env: Vec<String>,
    /// Where to run it. Default: this folder where a machine has it, else the user's home.
    #[arg(long, value_name = "DIR")]
    pub(crate) cwd: Option<String>,
    /// First port of the transport.
    #[arg(long, short = 'p', default_value_t = 32323)]
    pub(crate) starting_port: u16,
    /// Do not put `[rank]` before each line.
    #[arg(long)]
    pub(crate) no_prefix: bool,
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<String>,
}
