//! Arguments of `discover`.

/// Find the machines of this cluster on the local networks.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DiscoverArgs {
    /// Time to wait for answers, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub(crate) timeout: u64,
    /// Port of the agents.
    #[arg(long, value_name = "PORT", default_value_t = 18081, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) agent_port: u16,
    /// Token of agents started with `worker p2p-mlx`, used in place of this machine's secret.
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}
