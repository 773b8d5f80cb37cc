//! Arguments of `bench`.

use std::path::PathBuf;
use std::time::Duration;

use super::{RankArgs, parse_seconds};

/// Measure the speed of a model, which is loaded for this, or with `--url` of a running server.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    /// Directory of the checkpoint, or ORG/NAME of a model on this machine (see `models ls`). With
    /// `--url`: name of the model on the server; default: the first one that the server lists.
    #[arg(long, value_name = "DIR|ORG/NAME", required_unless_present = "url")]
    pub(crate) model: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) ranks: RankArgs,
    #[command(flatten)]
    pub(crate) server: BenchUrlArgs,
    /// Number of tokens per prompt; several values, separated by commas, are measured in turn.
    #[arg(long, value_delimiter = ',', default_value = "512",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) prompt_tokens: Vec<u32>,
    /// Number of tokens to generate per prompt; several values, separated by commas, are measured in
    /// turn.
    #[arg(long, value_delimiter = ',', default_value = "128",
          value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) gen_tokens: Vec<u32>,
    /// Number of concurrent requests; several values, separated by commas, are measured in turn.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8",
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) concurrency: Vec<u32>,
    /// Number of runs of each measurement; with several, mean and standard deviation are reported too.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) runs: u32,
    /// Number of warm-up runs, excluded from the results; with `--url`, number of warm-up requests.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) warmup: u32,
    /// Also report how rank 0 spends the time of a step.
    #[arg(long)]
    pub(crate) profile: bool,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A running server: Jackalope or another one with the OpenAI API.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct BenchUrlArgs {
    /// URL of a running server to measure with streaming requests.
    #[arg(long, conflicts_with_all = ["ranks", "hosts", "profile", "runs"])]
    pub(crate) url: Option<String>,
    #[command(flatten)]
    pub(crate) key: super::keys::ClientKeyArgs,
    /// With `--url`: number of requests for each value of `--concurrency`. Default: four times that value.
    #[arg(long, value_name = "REQUESTS", requires = "url",
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) requests: Option<u32>,
    /// With `--url`: time after which a request is cancelled and counted as an error, in seconds.
    #[arg(long, value_name = "SECONDS", requires = "url", value_parser = parse_seconds,
          default_value = "300")]
    pub(crate) timeout: Duration,
    /// With `--url`: earlier report of `--json` to print ratios to.
    #[arg(long, value_name = "FILE", requires = "url")]
    pub(crate) compare: Option<PathBuf>,
}
