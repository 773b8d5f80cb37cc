//! `jackalope bench`.

use std::path::PathBuf;
use std::time::Duration;

use super::{RankArgs, parse_seconds};

/// Measure a model's speed: of one that is computed for this, or with `--url` of a server that runs.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    /// Directory of the checkpoint, or ORG/NAME of a model on this machine (see `models ls`). With
    /// `--url` its name there; default: the first one that the server lists.
    #[arg(long, value_name = "DIR|ORG/NAME", required_unless_present = "url")]
    pub(crate) model: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) ranks: RankArgs,
    #[command(flatten)]
    pub(crate) server: BenchUrlArgs,
    /// Tokens of each prompt; several lengths are measured one after the other.
    #[arg(long, value_delimiter = ',', default_value = "512",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) prompt_tokens: Vec<u32>,
    /// Tokens generated for each prompt; several lengths are measured one after the other.
    #[arg(long, value_delimiter = ',', default_value = "128",
          value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) gen_tokens: Vec<u32>,
    /// Numbers of requests at a time, one run each.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8",
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) concurrency: Vec<u32>,
    /// Runs of each; more than one are also told as mean and standard deviation.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) runs: u32,
    /// Runs before, which warm up and are not told; with `--url` requests.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) warmup: u32,
    /// Also show where each microsecond of a step goes on rank 0.
    #[arg(long)]
    pub(crate) profile: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A server that runs, ours or another one that speaks OpenAI's protocol.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct BenchUrlArgs {
    /// Measure this server, over HTTP, with streams.
    #[arg(long, conflicts_with_all = ["ranks", "hosts", "profile", "runs"])]
    pub(crate) url: Option<String>,
    #[command(flatten)]
    pub(crate) key: super::keys::ClientKeyArgs,
    /// Requests for each number at a time. Default: four times that number.
    #[arg(long, value_name = "REQUESTS", requires = "url",
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) requests: Option<u32>,
    /// Seconds after which a request is given up and counted as an error.
    #[arg(long, value_name = "SECONDS", requires = "url", value_parser = parse_seconds,
          default_value = "300")]
    pub(crate) timeout: Duration,
    /// Also tell ratios to this earlier report of `--json`.
    #[arg(long, value_name = "FILE", requires = "url")]
    pub(crate) compare: Option<PathBuf>,
}
