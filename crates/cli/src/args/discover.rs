//! `jackalope discover`, as typed.

/// Find the machines of this cluster on the networks that this one is in.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DiscoverArgs {
    /// Seconds to wait for answers.
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub(crate) timeout: u64,
    /// Where agents listen.
    #[arg(long, value_name = "PORT", default_value_t = 18081)]
    pub(crate) agent_port: u16,
    /// Token of the workers that are looked for (`worker p2p-mlx`), in place of this machine's secret.
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}
