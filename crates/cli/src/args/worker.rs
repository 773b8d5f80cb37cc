//! Arguments of `worker`, with the names that LocalAI uses for ranks and agents.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use jackalope_deploy::PortRange;

use super::parse_time;

/// Take part in LocalAI's distributed inference, with LocalAI's names of commands, options and variables
/// (docs/localai.md).
#[derive(Debug, clap::Args)]
pub(crate) struct WorkerArgs {
    #[command(subcommand)]
    pub(crate) command: WorkerCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum WorkerCommand {
    /// Run rank 0, which serves LocalAI over gRPC, or one of the other ranks.
    MlxDistributed(Box<MlxDistributedArgs>),
    /// Run an agent that starts ranks for every holder of the token.
    P2pMlx(P2pMlxArgs),
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct MlxDistributedArgs {
    /// Hostfile, the same on all machines, one rank per entry: a list of `"IP:PORT"`, or a matrix of RDMA
    /// devices. Default: MLX_DISTRIBUTED_HOSTFILE; without a hostfile there is only rank 0.
    #[arg(long, value_name = "FILE")]
    pub(crate) hostfile: Option<String>,
    /// Number of this rank. Default: MLX_RANK, else 0.
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=63))]
    pub(crate) rank: Option<u32>,
    /// Transport of the collectives. Default: MLX_DISTRIBUTED_BACKEND, else ring.
    #[arg(long, value_enum)]
    pub(crate) backend: Option<WorkerBackend>,
    /// Address on which rank 0 serves LocalAI. Default: MLX_DISTRIBUTED_ADDR, else localhost:50051.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) addr: Option<String>,
    /// Address at which the other ranks find rank 0, with jaccl. Default: MLX_JACCL_COORDINATOR.
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) coordinator: Option<String>,
    /// Accepted for compatibility and ignored: `--rank` decides the role.
    #[arg(long, hide = true)]
    pub(crate) worker: bool,
    /// API keys that LocalAI must send, separated by commas. Default: LOCALAI_GRPC_AUTH_TOKEN, else none.
    #[arg(long, value_delimiter = ',', value_name = "KEYS")]
    pub(crate) api_key: Vec<String>,
    /// File of API keys, one per line; lines that begin with `#` are skipped.
    #[arg(long, value_name = "FILE", conflicts_with = "api_key")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Allow clients on other machines without API keys.
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Maximum time that LoadModel waits for the ranks, e.g. `90` (seconds), `90s` or `2m`.
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = parse_time)]
    pub(crate) load_wait: Duration,
    /// Memory for the KV cache of each rank, in MiB. Default: four fifths of the memory that is free after
    /// loading, divided by the number of ranks on the machine.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pub(crate) kv_mib: Option<u64>,
    /// Ports for the connections between ranks; each rank uses one of them.
    #[arg(long, value_name = "FIRST-LAST", default_value_t = PortRange::DATA)]
    pub(crate) data_ports: PortRange,
}

/// A transport, as LocalAI names it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum WorkerBackend {
    /// Jackalope's native group over TCP, which recovers from lost ranks.
    Ring,
    /// RDMA over Thunderbolt.
    Jaccl,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct P2pMlxArgs {
    /// Token shared by all machines of the cluster, used in place of the cluster's secret. Default:
    /// JACKALOPE_TOKEN, LOCALAI_TOKEN, LOCALAI_P2P_TOKEN or TOKEN.
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
    /// Port to listen on. Default: MLX_LISTEN_PORT, else 5555.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) mlx_listen_port: Option<u16>,
    /// Accepted for compatibility and ignored: the serving machine selects the transport.
    #[arg(long, value_enum)]
    pub(crate) mlx_backend: Option<WorkerBackend>,
}
