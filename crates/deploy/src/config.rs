//! How a model is cut, on which machines, and how it is computed.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jackalope_fleet::agent::AGENT_PORT;
use jackalope_fleet::routes::Encryption;
use jackalope_protocol::{Backend, Device, PressureLimits};

use crate::split_constraints::SplitConstraints;

/// Default port on which coordinators listen for ranks.
pub const CONTROL_PORT: u16 = 18080;

/// Default of [`RankConfig::step_tokens`].
pub const STEP_TOKENS: u32 = 512;

/// Default of the maximum number of tokens in a step that only reads prompts.
pub const PROMPT_STEP_TOKENS: u32 = 2048;

/// How a model is cut and computed.
#[derive(Clone, Debug)]
pub struct RankConfig {
    /// Number of ranks on this machine, if no machines are named.
    pub num_ranks: u32,
    /// Constraints on the split.
    pub split: SplitConstraints,
    /// Transport of the collectives. Default: the hostfile's, else TCP.
    pub backend: Option<Backend>,
    /// The machines.
    pub hosts: HostsConfig,
    /// Device on which ranks compute.
    pub device: Device,
    /// Number of threads of each rank's CPU kernels. Default: the cores, divided among the ranks.
    pub num_threads: Option<u32>,
    /// Maximum number of tokens of a sequence. Default: the model's.
    pub context_tokens: Option<u32>,
    /// Memory for keys and values on each rank in MiB. Default: a large part of the free memory.
    pub kv_mib: Option<u64>,
    /// When memory counts as short.
    pub memory: PressureLimits,
    /// Maximum number of tokens in a step over all sequences. Default: [`STEP_TOKENS`], and up to
    /// [`PROMPT_STEP_TOKENS`] where ranks read prompts fast and no sequence decodes.
    pub step_tokens: Option<u32>,
    /// Maximum number of sequences computed side by side.
    pub running_max: u32,
    /// Maximum number of requests that wait while `running_max` sequences are computed.
    pub queue_max: u32,
    /// Whether finished sequences are kept for prompts that begin alike.
    pub keep_prefixes: bool,
    /// Whether every payload of the native group is checked.
    pub checksums: bool,
    /// Whether sums over ranks have the same bits for any split, on CPUs.
    pub exact_sums: bool,
    /// Which connections between ranks are encrypted.
    pub encryption: Encryption,
    /// Time without progress after which a rank counts as frozen.
    pub stall_timeout: Duration,
}

impl Default for RankConfig {
    /// One rank on this machine.
    fn default() -> RankConfig {
        RankConfig {
            num_ranks: 1,
            split: SplitConstraints::default(),
            backend: None,
            hosts: HostsConfig::default(),
            device: Device::Auto,
            num_threads: None,
            context_tokens: None,
            kv_mib: None,
            memory: PressureLimits::default(),
            step_tokens: None,
            running_max: 64,
            queue_max: 256,
            keep_prefixes: true,
            checksums: false,
            exact_sums: true,
            encryption: Encryption::Auto,
            stall_timeout: Duration::from_secs(10),
        }
    }
}

/// The machines that ranks run on, and how they are reached.
#[derive(Clone, Debug)]
pub struct HostsConfig {
    /// A hostfile, or names separated by commas; one rank runs on each entry. Absent: this machine.
    pub hosts: Option<String>,
    /// Use the machines that answer on the local networks. A number above 0 is how many to wait for.
    pub discover: Option<u16>,
    /// Environment variables of every rank.
    pub env: Vec<(String, String)>,
    /// How machines are reached.
    pub reach: ReachConfig,
    /// Port to which ranks connect; 0 lets the system choose.
    pub control_port: u16,
    /// Ports for the connections between ranks; each rank takes one of them.
    pub data_ports: PortRange,
    /// Time for which ranks keep their weights when the coordinator is gone.
    pub lease: Duration,
    /// Whether people start the ranks, instead of this program or the machines' agents.
    pub by_hand: bool,
    /// Whether this program starts the first rank itself, if the others are started by hand.
    pub first_here: bool,
    /// Environment variables of the first rank, if this program starts it.
    pub rank_env: Vec<(String, String)>,
    /// Machine from which machines that lack the model read it.
    pub models_from: Option<String>,
    /// Port on which other machines read and copy this machine's models; 0 lets the system choose.
    pub copy_port: u16,
    /// Time without progress after which requests that wait for ranks fail.
    pub give_up_after: Duration,
    /// Time after which an absent machine is left out, if the others suffice; absent: never.
    pub absent_after: Option<Duration>,
}

impl Default for HostsConfig {
    fn default() -> HostsConfig {
        HostsConfig {
            hosts: None,
            discover: None,
            env: Vec::new(),
            reach: ReachConfig::default(),
            control_port: CONTROL_PORT,
            data_ports: PortRange::DATA,
            lease: Duration::from_secs(10),
            by_hand: false,
            first_here: false,
            rank_env: Vec::new(),
            models_from: None,
            copy_port: 0,
            give_up_after: Duration::from_secs(60),
            absent_after: Some(Duration::from_secs(15)),
        }
    }
}

/// How machines are reached.
#[derive(Clone)]
pub struct ReachConfig {
    /// Port on which agents listen.
    pub agent_port: u16,
    /// Token that agents were started with, if any; otherwise this machine's secret is used.
    pub token: Option<String>,
    /// Program to run as ssh, with its arguments; empty for the default.
    pub ssh: Vec<String>,
    /// Whether this version is installed on machines that lack it.
    pub bootstraps: bool,
}

impl Default for ReachConfig {
    fn default() -> ReachConfig {
        ReachConfig { agent_port: AGENT_PORT, token: None, ssh: Vec::new(), bootstraps: true }
    }
}

impl fmt::Debug for ReachConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Omits the token.
        f.debug_struct("ReachConfig")
            .field("agent_port", &self.agent_port)
            .field("ssh", &self.ssh)
            .field("bootstraps", &self.bootstraps)
            .finish_non_exhaustive()
    }
}

/// Memory that models may take of a machine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MemoryBudget {
    /// Name of the machine; absent for all that are not named.
    pub host: Option<String>,
    /// Memory in bytes that all models together may take.
    pub bytes: u64,
}

/// A range of consecutive ports.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// The default range. Overlaps neither our other ports, nor MLX's, nor the ephemeral ports of
    /// operating systems.
    pub const DATA: PortRange = PortRange { first: 31000, last: 31299 };
}

impl FromStr for PortRange {
    type Err = String;

    fn from_str(text: &str) -> Result<PortRange, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let parse = |text: &str| text.parse().map_err(|_| format!("{text:?} is not a valid port"));
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

/// A model's place among those of one server.
#[derive(Clone, Debug)]
pub struct Beside {
    /// Name that distinguishes the model's ranks from those of other models on the same machines.
    pub name: String,
    /// Number of the model, the same at every start of the same server; the ports of its ranks
    /// follow from this number.
    pub slot: u16,
    /// Memory for keys and values on each rank in bytes, unless the arguments set it.
    pub kv_bytes: u64,
}
