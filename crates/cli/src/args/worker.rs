//! LocalAI's words for ranks and agents.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};

use super::machines::PortRange;
use super::parse_time;

/// Take part in LocalAI's distributed inference, under its names for commands, options and variables
/// (docs/localai.md).
#[derive(Debug, clap::Args)]
pub(crate) struct WorkerArgs {
    #[command(subcommand)]
    pub(crate) command: WorkerCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum WorkerCommand {
    /// Be LocalAI's backend over gRPC and rank 0, or one of the other ranks.
    MlxDistributed(Box<MlxDistributedArgs>),
    /// Look after this machine for whoever has the token, as `agent` does.
    P2pMlx(P2pMlxArgs),
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct MlxDistributedArgs {
    /// Machines, one rank each, the same file for all: a list of `"IP:PORT"`, or a matrix of RDMA
    /// devices. Default: MLX_DISTRIBUTED_HOSTFILE; without one, rank 0 is alone.
    #[arg(long, value_name = "FILE")]
    pub(crate) hostfile: Option<String>,
    /// Which rank. Default: MLX_RANK, else 0.
    #[arg(long)]
    pub(crate) rank: Option<u32>,
    /// Transport of the collectives. Default: MLX_DISTRIBUTED_BACKEND, else ring.
    #[arg(long, value_enum)]
    pub(crate) backend: Option<WorkerBackend>,
    /// Where rank 0 answers LocalAI. Default: MLX_DISTRIBUTED_ADDR, else localhost:50051.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) addr: Option<String>,
    /// Where rank 0 is found by the others, with jaccl. Default: MLX_JACCL_COORDINATOR.
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) coordinator: Option<String>,
    /// Accepted for those who call the backend's program itself: the rank says it.
    #[arg(long, hide = true)]
    pub(crate) worker: bool,
    /// Keys that LocalAI must present, separated by commas. Default: LOCALAI_GRPC_AUTH_TOKEN, else none.
    #[arg(long, value_delimiter = ',', value_name = "KEYS")]
    pub(crate) api_key: Vec<String>,
    /// File with such keys, one per line; lines that begin with `#` are skipped.
    #[arg(long, value_name = "FILE", conflicts_with = "api_key")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Answer beyond this machine without keys.
    #[arg(long)]
    pub(crate) insecure: bool,
    /// How long LoadModel waits for ranks: `90`, `90s`, `2m`.
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = parse_time)]
    pub(crate) load_wait: Duration,
    /// Memory for keys and values on each rank. Default: a good part of what is free.
    #[arg(long, value_name = "MIB")]
    pub(crate) kv_mib: Option<u64>,
    /// Ports for the connections between ranks; each rank takes one of them.
    #[arg(long, value_name = "FIRST-LAST", default_value_t = PortRange::DATA)]
    pub(crate) data_ports: PortRange,
}

/// LocalAI's words for transports.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum WorkerBackend {
    /// TCP: Jackalope's own group, which recovers.
    Ring,
    /// RDMA on Thunderbolt.
    Jaccl,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct P2pMlxArgs {
    /// What all machines of the cluster know: it stands for the cluster's secret. Default:
    /// LOCALAI_TOKEN, LOCALAI_P2P_TOKEN or TOKEN.
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
    /// Port to listen on. Default: MLX_LISTEN_PORT, else 5555.
    #[arg(long, value_name = "PORT")]
    pub(crate) mlx_listen_port: Option<u16>,
    /// Accepted: whoever serves chooses the transport.
    #[arg(long, value_enum)]
    pub(crate) mlx_backend: Option<WorkerBackend>,
}
