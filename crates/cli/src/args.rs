//! Definitions of the command line's arguments, without behaviour.

mod autoconfig;
mod bench;
mod discover;
mod doctor;
mod edge;
pub(crate) mod foreign;
pub(crate) mod hosts;
pub(crate) mod install;
pub(crate) mod keys;
#[cfg(test)]
mod limits;
pub(crate) mod machines;
mod models;
pub(crate) mod operate;
pub(crate) mod plan;
mod served;
pub(crate) mod service;
pub(crate) mod token;
pub(crate) mod trust;
pub(crate) mod worker;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use jackalope_protocol::TokenId;
use jackalope_text::{ReasoningFormat, ToolFormat, UnknownFormat};

pub(crate) use autoconfig::{AutoconfigArgs, OverArg, WantedBackend};
pub(crate) use bench::BenchArgs;
pub(crate) use discover::DiscoverArgs;
pub(crate) use doctor::{ClusterInfoArgs, DoctorArgs, FingerprintArgs, MachinesArgs};
pub(crate) use edge::EdgeArgs;
pub(crate) use models::{
    CheckArgs, ListArgs, ModelsArgs, ModelsCommand, ModelsSyncArgs, PullArgs, RemoveArgs,
};
pub(crate) use served::{AliasArg, ServedModelsArgs, parse_time};

#[derive(Debug, Parser)]
#[command(name = "jackalope", version, about = "Several machines, one LLM endpoint")]
pub(crate) struct Args {
    /// Log what happens to standard error; RUST_LOG sets finer filters.
    #[arg(long, short, global = true)]
    pub(crate) verbose: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// `jackalope openapi`
#[derive(Debug, clap::Args)]
pub(crate) struct OpenapiArgs {
    /// Print this page with its generated tables replaced.
    #[arg(long, value_name = "FILE", hide = true)]
    pub(crate) page: Option<PathBuf>,
}

/// `jackalope pack`
#[derive(Debug, clap::Args)]
pub(crate) struct PackArgs {
    /// Folder to write to.
    pub(crate) dir: PathBuf,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve models over HTTP, with the OpenAI API at /v1.
    Serve(Box<ServeArgs>),
    /// Start a server in the background and wait until it is ready.
    Start(Box<operate::StartArgs>),
    /// Stop the server of this machine and its ranks.
    Stop(operate::StopArgs),
    /// Restart the server with the arguments of the last start. Ranks started by agents keep their weights;
    /// other ranks load theirs again.
    Restart(operate::RestartArgs),
    /// Restore the addresses of cables after a reboot, and start the last server again.
    Resume(operate::ResumeArgs),
    /// Show the state of the server, its ranks and its machines. Fails unless all are healthy.
    Status(operate::StatusArgs),
    /// Show the status repeatedly until Ctrl-C.
    Monitor(operate::MonitorArgs),
    /// Show the log of the server in the background.
    Logs(operate::LogsArgs),
    /// Query a server's health. Fails unless it is healthy.
    Health(operate::AskArgs),
    /// Query a server's counters and the memory of its ranks.
    Metrics(operate::AskArgs),
    /// Query the length of a server's request queue.
    Queue(operate::AskArgs),
    /// List the models that a server serves.
    Served(operate::AskArgs),
    /// Request one short answer from a server. Fails if there is none.
    Test(operate::AskArgs),
    /// Collect diagnostics for a bug report in a folder.
    Support(operate::SupportArgs),
    /// Stop the server and the agents of all machines, with all programs that they run.
    KillAll(operate::KillAllArgs),
    /// Print each setting of `serve` with its value and the source of the value.
    Config(operate::ConfigArgs),
    /// Print the OpenAPI description of the HTTP API.
    Openapi(OpenapiArgs),
    /// Print a shell script that completes commands and options.
    Completions(CompletionsArgs),
    /// Print docs/commands.md.
    #[command(hide = true)]
    CommandsPage,
    /// Write the files of an installation below a folder.
    #[command(hide = true)]
    Pack(PackArgs),
    /// Chat with a model in the terminal.
    Chat(ChatArgs),
    /// Serve the small model that ships over two ranks, ask it three questions, and stop.
    Demo(DemoArgs),
    /// Show a server's speed, queue, cache and ranks in the terminal until `q`.
    Top(operate::TopArgs),
    /// Generate a continuation of one prompt and print it.
    Generate(GenerateArgs),
    /// Measure the speed of a model or of a running server.
    Bench(Box<BenchArgs>),
    /// Download a model from a hub such as Hugging Face.
    Pull(PullArgs),
    /// List, check and remove the models on this machine.
    Models(ModelsArgs),
    /// Run this machine's agent, which starts ranks for trusted coordinators.
    Agent(machines::AgentArgs),
    /// Run the server or the agent as a system service.
    Service(service::ServiceArgs),
    /// Run one rank of a cluster whose `serve` was started with `--by-hand`.
    Rank(machines::RankArgs),
    /// Run as LocalAI's backend mlx-distributed, or as one of its workers.
    Worker(worker::WorkerArgs),
    /// Install jackalope on machines over SSH.
    Bootstrap(install::BootstrapArgs),
    /// Install this version and this machine's secret on every machine.
    Sync(install::SyncArgs),
    /// Remove jackalope from machines; models are kept.
    Uninstall(install::UninstallArgs),
    /// Show and change which machines this one trusts.
    Trust(trust::TrustArgs),
    /// Create or show the token with which machines without SSH join a cluster.
    Token(token::TokenArgs),
    /// Run a program on all machines with the environment variables that distributed MLX programs read.
    Launch(machines::LaunchArgs),
    /// Check and measure the collectives between ranks, without a model.
    Link(LinkArgs),
    /// Check, convert and create hostfiles.
    Hosts(hosts::HostsArgs),
    /// Show whether a model fits, on which machines, and the expected speed.
    Plan(plan::PlanArgs),
    /// Create a checkpoint with a real model's dimensions and random weights, for benchmarks.
    Synth(SynthArgs),
    /// Find the machines of this cluster on the local networks.
    Discover(DiscoverArgs),
    /// Diagnose this machine or a cluster and suggest commands that fix problems.
    Doctor(DoctorArgs),
    /// Detect Thunderbolt cables between Macs, assign addresses to them, and write a hostfile.
    Autoconfig(AutoconfigArgs),
    /// Compare machines side by side, with differences marked.
    ClusterInfo(ClusterInfoArgs),
    /// Print the hardware and software of this machine.
    Fingerprint(FingerprintArgs),
}

/// A model and how it is computed.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ModelArgs {
    /// Directory of the checkpoint, or ORG/NAME of a model on this machine (see `models ls`).
    #[arg(long, value_name = "DIR|ORG/NAME")]
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) ranks: RankArgs,
}

/// How a model is split and computed.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RankArgs {
    /// Number of ranks on this machine over which the model is split.
    #[arg(long, alias = "dist-num-ranks", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) ranks: u32,
    /// Relative share of every layer that each rank holds, e.g. `3,1`.
    /// Default: by the memory of the machines; equal shares on one machine and with `--by-hand`.
    #[arg(long, value_delimiter = ',', value_name = "WEIGHTS", value_parser = clap::value_parser!(u32).range(..=1_000_000), conflicts_with = "layers")]
    pub(crate) share: Vec<u32>,
    /// Split every layer over the ranks (`tensor`), or give each rank whole layers (`pipeline`).
    /// Default: the one with the faster estimate on several machines; `tensor` on one machine and with
    /// `--by-hand`.
    #[arg(long, value_enum)]
    pub(crate) split: Option<SplitArg>,
    /// Number of layers of each rank, e.g. `20,12`; implies a pipeline. Rank 0 has the last layers.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(..=10_000), value_name = "NUMBERS")]
    pub(crate) layers: Vec<u32>,
    /// Transport of the collectives. Default: the one in the hostfile, else tcp.
    #[arg(long, alias = "dist-backend", value_enum)]
    pub(crate) backend: Option<BackendArg>,
    #[command(flatten)]
    pub(crate) hosts: machines::HostsArgs,
    /// Device to compute on.
    #[arg(long, value_enum, default_value_t = DeviceArg::Auto)]
    pub(crate) device: DeviceArg,
    /// Number of threads of each rank's CPU kernels. Default: the cores, divided by the number of ranks
    /// on the machine.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,
    /// Maximum length of a sequence in tokens, prompt and answer together; limited by the model's
    /// context length. Default: the model's context length.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) context: Option<u32>,
    /// Memory for the KV cache of each rank, in MiB. Default: four fifths of the memory that is
    /// free after loading, divided by the number of ranks on the machine; with several models or a
    /// memory budget, enough for four sequences of `--context` tokens (8192 without it).
    #[arg(
        long,
        alias = "cache-memory-mb",
        value_name = "MIB",
        value_parser = clap::value_parser!(u64).range(1..=1 << 24)
    )]
    pub(crate) kv_mib: Option<u64>,
    #[command(flatten)]
    pub(crate) memory: PressureArgs,
    /// Maximum number of tokens computed in one step, over all sequences; never less than `--running-max`.
    /// Default: 512, and up to 2048 in steps that only read prompts, as long as they take less than two
    /// seconds and every rank has 8 GiB left after loading.
    #[arg(long, alias = "chunked-prefill-tokens", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) step_tokens: Option<u32>,
    /// Maximum number of sequences computed together.
    #[arg(long, alias = "max-num-seqs", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) running_max: u32,
    /// Maximum number of requests that wait in the queue, in addition to running ones.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(0..=65536))]
    pub(crate) queue_max: u32,
    /// Free the KV cache of finished sequences at once instead of reusing it for prompts with the same
    /// prefix.
    #[arg(long)]
    pub(crate) no_prefix_cache: bool,
    /// Verify a checksum of every payload of the native (tcp) group.
    #[arg(long)]
    pub(crate) checksums: bool,
    /// Let each rank round its part of a sum: CPU kernels read prompts up to a few percent faster, but
    /// answers may change with the number of ranks and their shares.
    #[arg(long)]
    pub(crate) no_exact_sums: bool,
    /// Which connections between ranks to encrypt. `auto`: all except loopback and cables that connect
    /// exactly two machines.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = EncryptArg::Auto)]
    pub(crate) encrypt_data: EncryptArg,
    /// Accepted for compatibility and ignored: batching is always continuous.
    #[arg(long, hide = true, action = clap::ArgAction::Count)]
    #[arg(aliases = ["distributed", "use-paged-cache", "enable-auto-tool-choice"])]
    pub(crate) continuous_batching: u8,
    /// Time without progress after which a rank counts as frozen and is replaced, in seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) stall_timeout: u64,
}

/// Limits below which a machine counts as short of memory.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct PressureArgs {
    /// Free memory of a machine below which cached prefixes are evicted and at most a quarter of
    /// `--running-max` sequences run together, e.g. `2GiB`; 0 turns this limit off. Default: a
    /// sixteenth of the memory, at most 1 GiB; none on macOS, whose own memory pressure always
    /// counts.
    #[arg(long, value_name = "SIZE", value_parser = plan::parse_bytes)]
    pub(crate) memory_warn: Option<u64>,
    /// Free memory of a machine below which all sequences but one wait; if that lasts, new requests
    /// are refused; 0 turns this limit off. Default: a 32nd of the memory, at most 512 MiB; none on
    /// macOS, whose own memory pressure always counts.
    #[arg(long, value_name = "SIZE", value_parser = plan::parse_bytes)]
    pub(crate) memory_critical: Option<u64>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum BackendArg {
    /// Jackalope's native group over TCP.
    Tcp,
    /// Stock MLX over TCP.
    Ring,
    /// Stock MLX over RDMA over Thunderbolt.
    Jaccl,
    /// Stock MLX over NVIDIA's NCCL.
    Nccl,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum SplitArg {
    /// Part of every layer on each rank: all ranks compute at once and synchronise twice per layer.
    Tensor,
    /// Whole layers on each rank: one transfer between neighbours per token, so slow links matter little.
    Pipeline,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum EncryptArg {
    /// Connections that a third party could listen to.
    Auto,
    /// All connections.
    On,
    /// No connection.
    Off,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum DeviceArg {
    /// The GPU if there is one, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU.
    Gpu,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) models: ServedModelsArgs,
    #[command(flatten)]
    pub(crate) ranks: RankArgs,
    /// IP address to listen on. Any other value names machines to use, as `--hosts` does, and the server
    /// listens on 127.0.0.1.
    #[arg(long, value_name = "ADDRESS|NAMES", default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Port to listen on; 0 selects a free port.
    #[arg(long, default_value_t = 8080)]
    pub(crate) port: u16,
    #[command(flatten)]
    pub(crate) edge: EdgeArgs,
    /// Maximum number of tokens to generate for requests that set none. Default: 16 for `/v1/completions`,
    /// else what is left of the context.
    #[arg(long, alias = "max-tokens", value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) default_max_tokens: Option<u32>,
    /// Maximum time from the start of a request to the end of its answer, in seconds. Default: unlimited.
    #[arg(long, alias = "timeout", value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) request_timeout: Option<Duration>,
    /// Whether models with a reasoning mode reason, for requests that do not set it. Default: the chat
    /// template's.
    #[arg(long, value_name = "YES|NO", value_parser = clap::builder::BoolishValueParser::new())]
    pub(crate) thinking: Option<bool>,
    /// Format of tool calls: a name, `auto` to detect it from the model's files, or `none`.
    #[arg(long, alias = "tool-call-parser", value_name = "NAME", default_value = "auto", value_parser = tool_parser)]
    pub(crate) tool_parser: String,
    /// Format of reasoning: a name, `auto` to detect it from the model's files, or `none`.
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = reasoning_parser)]
    pub(crate) reasoning_parser: String,
    /// Parse special tokens such as `<|im_end|>` in the text of messages, as most servers do: a message
    /// can then end its turn and begin another one. Default: treat them as plain text.
    #[arg(long)]
    pub(crate) parse_special_tokens: bool,
    /// Print one line of JSON instead of text when ready.
    #[arg(long)]
    pub(crate) json: bool,
    /// Read settings from the environment variables of another program, or from a `.env` file with them.
    #[arg(long, value_enum)]
    pub(crate) profile: Option<Profile>,
    /// Detach from the session and the terminal (used by `start`).
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
    /// Check the arguments, models and keys, and end (used by `start` and `restart`).
    #[arg(long, hide = true)]
    pub(crate) only_check: bool,
}

/// Program whose environment variables are read.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Profile {
    /// Scripts around mlx-jaccl-cluster: MODEL_DIR, HOSTFILE, HTTP_PORT, …
    JacclCluster,
    /// Distributed inference over MLX's ring: MODEL_REPO, API_PORT, WORKER_SSH, …
    Ring,
}

/// Checks that `name` is one that [`ToolFormat::chosen`] accepts.
pub(crate) fn tool_parser(name: &str) -> Result<String, UnknownFormat> {
    ToolFormat::chosen(name, None).map(|_| name.to_owned())
}

/// Checks that `name` is one that [`ReasoningFormat::chosen`] accepts.
pub(crate) fn reasoning_parser(name: &str) -> Result<String, UnknownFormat> {
    ReasoningFormat::chosen(name, None).map(|_| name.to_owned())
}

#[derive(Debug, clap::Args)]
pub(crate) struct ChatArgs {
    /// URL of the server. Default: http://127.0.0.1:8080, unless only `--model` is given.
    #[arg(long)]
    pub(crate) url: Option<String>,
    #[command(flatten)]
    pub(crate) key: keys::ClientKeyArgs,
    /// Model to run without a server: its directory, or ORG/NAME. With `--url`: name of the model on
    /// the server.
    #[arg(long, value_name = "DIR|ORG/NAME")]
    pub(crate) model: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) ranks: RankArgs,
    /// System prompt.
    #[arg(long)]
    pub(crate) system: Option<String>,
    /// Sampling temperature, 0 to 2; 0 always selects the most likely token.
    #[arg(long, value_parser = parse_temperature)]
    pub(crate) temperature: Option<f32>,
    /// Maximum number of tokens to generate for each answer.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_tokens: u32,
}

/// Serve the small model that ships over two ranks, ask it three questions over HTTP, print which rank
/// held what, and stop.
#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Model to show instead.
    #[arg(long, value_name = "DIR|ORG/NAME")]
    pub(crate) model: Option<PathBuf>,
    /// Number of ranks on this machine over which the model is split.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) ranks: u32,
}

/// Maximum size of a payload that `link` sends, in bytes.
const PAYLOAD_BYTES_MAX: u64 = 1 << 32;

fn parse_payload_bytes(text: &str) -> Result<u64, String> {
    let bytes = text.trim().parse().ok().filter(|it| (1..=PAYLOAD_BYTES_MAX).contains(it));
    bytes.ok_or_else(|| {
        format!("expected numbers from 1 to {PAYLOAD_BYTES_MAX}, separated by commas")
    })
}

fn parse_token_id(text: &str) -> Result<TokenId, String> {
    text.trim().parse().map_err(|_| "expected token ids, separated by commas".to_owned())
}

#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("input").required(true).args(["prompt", "prompt_ids"])))]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Text to continue, without a chat template; `-` reads standard input.
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) prompt: Option<String>,
    /// Token ids to continue, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "IDS", value_parser = parse_token_id)]
    pub(crate) prompt_ids: Option<Vec<TokenId>>,
    /// Treat the prompt as a user message and apply the chat template.
    #[arg(long, requires = "prompt")]
    pub(crate) chat: bool,
    /// System prompt for `--chat`.
    #[arg(long, requires = "chat")]
    pub(crate) system: Option<String>,
    /// Maximum number of tokens to generate.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_tokens: u32,
    /// Sampling temperature, 0 to 2; 0 always selects the most likely token.
    #[arg(long, default_value_t = 0.0, value_parser = parse_temperature)]
    pub(crate) temperature: f32,
    /// Cumulative probability of the most likely tokens to sample from, above 0 and at most 1.
    #[arg(long, default_value_t = 1.0, value_parser = parse_top_p)]
    pub(crate) top_p: f32,
    /// Sample from the k most likely tokens; 0 disables.
    #[arg(long, default_value_t = 0)]
    pub(crate) top_k: u32,
    /// Minimum probability of a token, relative to that of the most likely token, 0 to 1.
    #[arg(long, default_value_t = 0.0, value_parser = parse_min_p)]
    pub(crate) min_p: f32,
    /// Seed of the random number generator. Default: random.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Report log-probabilities of each token and of this number of alternatives (with `--json`).
    #[arg(long)]
    pub(crate) logprobs: Option<u8>,
    /// Continue past the model's end-of-sequence tokens.
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Print a shell script that completes commands and options. With bash:
/// `source <(jackalope completions bash)`.
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// Shell to print the script for.
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, clap::Args)]
pub(crate) struct LinkArgs {
    /// Machines to measure, one rank per entry: a hostfile, or SSH host names separated by commas.
    /// Default: ranks on this machine.
    #[arg(long, value_name = "FILE|NAMES", visible_alias = "hostfile", conflicts_with = "ranks")]
    pub(crate) hosts: Option<String>,
    #[command(flatten)]
    pub(crate) reach: machines::ReachArgs,
    /// Number of ranks on this machine, without `--hosts`.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=8))]
    pub(crate) ranks: u32,
    /// Payload sizes in bytes, separated by commas.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "BYTES",
        default_value = "4096,65536,1048576,67108864",
        value_parser = parse_payload_bytes
    )]
    pub(crate) sizes: Vec<u64>,
    /// Stock transports to measure in addition to the native group. Those that this machine's libmlx
    /// lacks are reported and skipped.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "ring,jaccl,nccl")]
    pub(crate) backend: Vec<BackendArg>,
    /// Verify a checksum of every payload of the native (tcp) group.
    #[arg(long)]
    pub(crate) checksums: bool,
    /// Which connections between ranks to encrypt. `auto`: measure unencrypted, and measure sums in an
    /// encrypted group as well.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = EncryptArg::Auto)]
    pub(crate) encrypt_data: EncryptArg,
    /// Ports for the connections between ranks; each rank uses one of them.
    #[arg(long, value_name = "FIRST-LAST", default_value_t = jackalope_deploy::PortRange::DATA)]
    pub(crate) data_ports: jackalope_deploy::PortRange,
    /// Time to measure each row of the table, in milliseconds.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(10..=60000))]
    pub(crate) budget_ms: u64,
    /// Number of measurements of each row, instead of a time.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=20000))]
    pub(crate) rounds: Option<u32>,
    /// Also print the time of each round.
    #[arg(long, requires = "rounds")]
    pub(crate) every_round: bool,
    /// Print lines of JSON instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SynthArgs {
    /// Dimensions of a Qwen3 model of this size, in parameters.
    #[arg(long, value_enum, ignore_case = true, default_value = "0.6b")]
    pub(crate) size: SynthSize,
    /// Dimensions of the model that this `config.json` describes, instead of `--size`.
    #[arg(long, value_name = "FILE", conflicts_with = "size")]
    pub(crate) config: Option<PathBuf>,
    /// Number of layers, instead of the model's own.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) layers: Option<u32>,
    /// Bits per weight: 2, 3, 4, 5, 6 or 8 in groups of 64, or 16 for bfloat16.
    #[arg(long, default_value_t = 4, value_parser = parse_bits)]
    pub(crate) bits: u32,
    /// Directory to write the checkpoint to.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum SynthSize {
    /// 0.6 billion parameters.
    #[value(name = "0.6b")]
    B0_6,
    /// 1.7 billion parameters.
    #[value(name = "1.7b")]
    B1_7,
    /// 4 billion parameters.
    #[value(name = "4b")]
    B4,
    /// 8 billion parameters.
    #[value(name = "8b")]
    B8,
    /// 30 billion parameters in 128 experts, of which a token uses 3 billion.
    #[value(name = "30b-a3b")]
    B30A3,
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| 0.0 < *seconds && *seconds <= 86400.0);
    let seconds = seconds.ok_or("expected a number above 0 and at most 86400")?;
    Ok(Duration::from_secs_f64(seconds))
}

fn parse_number(text: &str, is_legal: impl Fn(f32) -> bool, range: &str) -> Result<f32, String> {
    let number = text.parse().ok().filter(|it| is_legal(*it));
    number.ok_or_else(|| format!("expected a number {range}"))
}

fn parse_temperature(text: &str) -> Result<f32, String> {
    parse_number(text, |it| (0.0..=2.0).contains(&it), "from 0 to 2")
}

fn parse_top_p(text: &str) -> Result<f32, String> {
    parse_number(text, |it| 0.0 < it && it <= 1.0, "above 0 and at most 1")
}

fn parse_min_p(text: &str) -> Result<f32, String> {
    parse_number(text, |it| (0.0..=1.0).contains(&it), "from 0 to 1")
}

fn parse_bits(text: &str) -> Result<u32, String> {
    let bits = text.parse().ok().filter(|bits| [2, 3, 4, 5, 6, 8, 16].contains(bits));
    bits.ok_or_else(|| "expected 2, 3, 4, 5, 6, 8 or 16".to_owned())
}
