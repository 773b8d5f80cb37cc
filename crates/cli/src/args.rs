//! What was typed: a plain image of the command line.

mod autoconfig;
mod bench;
mod discover;
mod doctor;
mod edge;
pub(crate) mod foreign;
pub(crate) mod hosts;
pub(crate) mod install;
pub(crate) mod keys;
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
use jackalope_fleet::routes::Encryption;
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
pub(crate) use served::{ServedModelsArgs, parse_time};

#[derive(Debug, Parser)]
#[command(name = "jackalope", version, about = "Several machines, one LLM endpoint")]
pub(crate) struct Args {
    /// Tell on standard error what happens (RUST_LOG refines it).
    #[arg(long, short, global = true)]
    pub(crate) verbose: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// `jackalope openapi`
#[derive(Debug, clap::Args)]
pub(crate) struct OpenapiArgs {
    /// Print this page with its tables made anew.
    #[arg(long, value_name = "FILE", hide = true)]
    pub(crate) page: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve a model over HTTP: the OpenAI API at /v1.
    Serve(Box<ServeArgs>),
    /// Serve in the background, and come back when the server is ready.
    Start(Box<operate::StartArgs>),
    /// End the server of this machine and its ranks.
    Stop(operate::StopArgs),
    /// Replace the server by one with the arguments of the last start. Ranks of agents keep their weights, others
    /// load them again.
    Restart(operate::RestartArgs),
    /// After a reboot: give cables their addresses again and start the last server.
    Resume(operate::ResumeArgs),
    /// Tell how the server, its ranks and its machines are. Fails unless all is well.
    Status(operate::StatusArgs),
    /// Tell the status again and again until Ctrl-C.
    Monitor(operate::MonitorArgs),
    /// Show what the server in the background has written.
    Logs(operate::LogsArgs),
    /// Ask a server for its health. Fails unless it is well.
    Health(operate::AskArgs),
    /// Ask a server what it has done and what its ranks hold.
    Metrics(operate::AskArgs),
    /// Ask a server for the length of its queue.
    Queue(operate::AskArgs),
    /// Ask a server which models it serves.
    Served(operate::AskArgs),
    /// Ask a server for one short answer. Fails unless there is one.
    Test(operate::AskArgs),
    /// Put what somebody else needs to find a fault into a folder.
    Support(operate::SupportArgs),
    /// End the server and the agents of all machines, and all they look after.
    KillAll(operate::KillAllArgs),
    /// Print each setting of `serve` with its value and where that comes from.
    Config(operate::ConfigArgs),
    /// Print the OpenAPI description of the HTTP API.
    Openapi(OpenapiArgs),
    /// Print what a shell needs to complete commands and options.
    Completions(CompletionsArgs),
    /// Print docs/commands.md.
    #[command(hide = true)]
    CommandsPage,
    /// Talk to a model in the terminal.
    Chat(ChatArgs),
    /// Continue one prompt and print the result.
    Generate(GenerateArgs),
    /// Measure a model's speed, or that of a running server.
    Bench(Box<BenchArgs>),
    /// Fetch a model from a hub, so that it can be served.
    Pull(PullArgs),
    /// List, check and remove the models on this machine.
    Models(ModelsArgs),
    /// Look after this machine's programs for the coordinators that it trusts.
    Agent(machines::AgentArgs),
    /// Run the server or the agent as a service of this machine.
    Service(service::ServiceArgs),
    /// Be one rank of a cluster whose `serve` runs with `--by-hand`.
    Rank(machines::RankArgs),
    /// Be LocalAI's backend mlx-distributed, or one of its workers.
    Worker(worker::WorkerArgs),
    /// Put these programs on machines that have nothing but an SSH login.
    Bootstrap(install::BootstrapArgs),
    /// Bring every machine to this version and to this machine's secret.
    Sync(install::SyncArgs),
    /// Remove jackalope from machines; models stay.
    Uninstall(install::UninstallArgs),
    /// Show and change which machines this one trusts.
    Trust(trust::TrustArgs),
    /// Make and show the token by which machines without SSH join a cluster.
    Token(token::TokenArgs),
    /// Run any program on all machines, with the variables that MLX's distributed programs read.
    Launch(machines::LaunchArgs),
    /// Check and measure the group that ranks compute over, without a model.
    Link(LinkArgs),
    /// Check, rewrite and make hostfiles.
    Hosts(hosts::HostsArgs),
    /// Tell whether a model fits, on which machines, and what to expect.
    Plan(plan::PlanArgs),
    /// Make a checkpoint of a real model's dimensions with random weights, to measure speed.
    Synth(SynthArgs),
    /// Find the machines of this cluster on the networks that this one is in.
    Discover(DiscoverArgs),
    /// Find what is wrong with this machine or a cluster, and what to type.
    Doctor(DoctorArgs),
    /// Find the cables between Macs, give them addresses, and write a hostfile.
    Autoconfig(AutoconfigArgs),
    /// Machines side by side, with what differs marked.
    ClusterInfo(ClusterInfoArgs),
    /// What this machine is.
    Fingerprint(FingerprintArgs),
}

/// The model and how it is computed.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ModelArgs {
    /// Directory of the checkpoint, or ORG/NAME of a model on this machine (see `models ls`).
    #[arg(long, value_name = "DIR|ORG/NAME")]
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) ranks: RankArgs,
}

/// How a model is cut and computed.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RankArgs {
    /// Number of ranks the model is cut over.
    #[arg(long, alias = "dist-num-ranks", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) ranks: u32,
    /// How much each rank holds of every layer, relative to the others: `3,1`.
    /// Default: what their machines' memory allows; the same on one machine.
    #[arg(long, value_delimiter = ',', value_name = "WEIGHTS", conflicts_with = "layers")]
    pub(crate) share: Vec<u32>,
    /// Whether ranks hold a part of every layer or whole layers.
    /// Default: on several machines what is expected to answer sooner, on one `tensor`.
    #[arg(long, value_enum)]
    pub(crate) split: Option<SplitArg>,
    /// Layers of each rank, which makes a pipeline: `20,12`. Rank 0 has the last ones.
    #[arg(long, value_delimiter = ',', value_name = "NUMBERS")]
    pub(crate) layers: Vec<u32>,
    /// Transport of the collectives.
    /// Default: the hostfile's, else tcp.
    #[arg(long, alias = "dist-backend", value_enum)]
    pub(crate) backend: Option<BackendArg>,
    #[command(flatten)]
    pub(crate) hosts: machines::HostsArgs,
    /// Where to compute.
    #[arg(long, value_enum, default_value_t = DeviceArg::Auto)]
    pub(crate) device: DeviceArg,
    /// Threads of each rank's CPU kernels. Default: the cores, divided among the ranks.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,
    /// Maximum number of tokens of a sequence, prompt and answer together; at most what the model was
    /// made for. Default: the model's.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) context: Option<u32>,
    /// Memory for keys and values on each rank. Default: a good part of what is free.
    #[arg(
        long,
        alias = "cache-memory-mb",
        value_name = "MIB",
        value_parser = clap::value_parser!(u64).range(1..=1 << 24)
    )]
    pub(crate) kv_mib: Option<u64>,
    #[command(flatten)]
    pub(crate) memory: PressureArgs,
    /// Tokens computed per step over all sequences.
    #[arg(long, alias = "chunked-prefill-tokens", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) step_tokens: u32,
    /// Sequences computed side by side.
    #[arg(long, alias = "max-num-seqs", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) running_max: u32,
    /// Requests that may wait beyond those.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(0..=65536))]
    pub(crate) queue_max: u32,
    /// Forget finished sequences at once instead of keeping them for prompts that begin alike.
    #[arg(long)]
    pub(crate) no_prefix_cache: bool,
    /// Check every payload of the native group.
    #[arg(long)]
    pub(crate) checksums: bool,
    /// Encrypt the connections between ranks. `auto`: all except loopback and cables that join
    /// exactly two machines.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = EncryptArg::Auto)]
    pub(crate) encrypt_data: EncryptArg,
    /// Accepted for those who are used to it: requests are always batched as they come.
    #[arg(long, hide = true, action = clap::ArgAction::Count)]
    #[arg(aliases = ["distributed", "use-paged-cache", "enable-auto-tool-choice"])]
    pub(crate) continuous_batching: u8,
    /// Seconds without progress after which a rank counts as frozen.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) stall_timeout: u64,
}

/// What counts as short of memory when other programs take it.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct PressureArgs {
    /// With less memory left on a machine, kept caches are given back and requests take turns: `2GiB`;
    /// 0 is never. Default: what macOS says, elsewhere a sixteenth of the memory, at most 1 GiB.
    #[arg(long, value_name = "SIZE", value_parser = plan::parse_bytes)]
    pub(crate) memory_warn: Option<u64>,
    /// With less left, all requests but one wait; if it lasts, new ones are refused. Default: what macOS
    /// says, elsewhere a 32nd of the memory, at most 512 MiB.
    #[arg(long, value_name = "SIZE", value_parser = plan::parse_bytes)]
    pub(crate) memory_critical: Option<u64>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum BackendArg {
    /// Jackalope's own group over TCP.
    Tcp,
    /// Stock MLX over TCP.
    Ring,
    /// Stock MLX over RDMA on Thunderbolt.
    Jaccl,
    /// Stock MLX over NVIDIA's NCCL.
    Nccl,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum SplitArg {
    /// A part of every layer on each rank: all compute at once, and wait for each other twice a layer.
    Tensor,
    /// Whole layers on each rank: each waits once a token, and slow links matter little.
    Pipeline,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum EncryptArg {
    /// Connections that a third party could listen on.
    Auto,
    /// All connections.
    On,
    /// No connection.
    Off,
}

impl From<EncryptArg> for Encryption {
    fn from(arg: EncryptArg) -> Encryption {
        match arg {
            EncryptArg::Auto => Encryption::Auto,
            EncryptArg::On => Encryption::On,
            EncryptArg::Off => Encryption::Off,
        }
    }
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
    /// Address to listen on. Names, or several, are machines to use, as in `--hosts`.
    #[arg(long, value_name = "ADDRESS|NAMES", default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Port to listen on; 0 picks one.
    #[arg(long, default_value_t = 8080)]
    pub(crate) port: u16,
    #[command(flatten)]
    pub(crate) edge: EdgeArgs,
    /// Tokens of an answer whose request does not say. Default: 16 for a completion, else the context.
    #[arg(long, alias = "max-tokens", value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) default_max_tokens: Option<u32>,
    /// Seconds after which a request that is not answered ends. Default: none.
    #[arg(long, alias = "timeout", value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) request_timeout: Option<Duration>,
    /// Whether models that can think aloud do, for requests that do not say. Default: the template's.
    #[arg(long, value_name = "YES|NO", value_parser = clap::builder::BoolishValueParser::new())]
    pub(crate) thinking: Option<bool>,
    /// How models write tool calls: a format's name, `auto` for what their files tell, or `none`.
    #[arg(long, alias = "tool-call-parser", value_name = "NAME", default_value = "auto", value_parser = tool_parser)]
    pub(crate) tool_parser: String,
    /// How models mark their reasoning: a format's name, `auto` for what their files tell, or `none`.
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = reasoning_parser)]
    pub(crate) reasoning_parser: String,
    /// Let texts of messages write special tokens such as `<|im_end|>`, as most servers do: a message
    /// can then end its turn and begin another one. By default they are plain text.
    #[arg(long)]
    pub(crate) parse_special_tokens: bool,
    /// Print one JSON line when ready instead of text.
    #[arg(long)]
    pub(crate) json: bool,
    /// Take settings from the environment variables of another program, or a file `.env` with them.
    #[arg(long, value_enum)]
    pub(crate) profile: Option<crate::config::Profile>,
    /// Leave the session and the terminal behind (what `start` runs).
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
}

/// A name by which [`ToolFormat`] chooses.
pub(crate) fn tool_parser(name: &str) -> Result<String, UnknownFormat> {
    ToolFormat::chosen(name, None).map(|_| name.to_owned())
}

/// A name by which [`ReasoningFormat`] chooses.
pub(crate) fn reasoning_parser(name: &str) -> Result<String, UnknownFormat> {
    ReasoningFormat::chosen(name, None).map(|_| name.to_owned())
}

#[derive(Debug, clap::Args)]
pub(crate) struct ChatArgs {
    /// Server to talk to. Default: http://127.0.0.1:8080, unless `--model` is given alone.
    #[arg(long)]
    pub(crate) url: Option<String>,
    #[command(flatten)]
    pub(crate) key: keys::ClientKeyArgs,
    /// Run this model instead of talking to a server: its directory, or ORG/NAME. With `--url`: the
    /// server's name of the model to talk to.
    #[arg(long, value_name = "DIR|ORG/NAME")]
    pub(crate) model: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) ranks: RankArgs,
    /// System prompt.
    #[arg(long)]
    pub(crate) system: Option<String>,
    /// Sampling temperature, 0 to 2; 0 always takes the most likely token.
    #[arg(long, value_parser = parse_temperature)]
    pub(crate) temperature: Option<f32>,
    /// Maximum number of tokens of an answer.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_tokens: u32,
}

#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("input").required(true).args(["prompt", "prompt_ids"])))]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Text to continue, as it is; `-` reads standard input.
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) prompt: Option<String>,
    /// Token ids to continue, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "IDS")]
    pub(crate) prompt_ids: Option<Vec<TokenId>>,
    /// Treat the prompt as a user's message and answer it through the chat template.
    #[arg(long, requires = "prompt")]
    pub(crate) chat: bool,
    /// System prompt for `--chat`.
    #[arg(long, requires = "chat")]
    pub(crate) system: Option<String>,
    /// Maximum number of tokens to generate.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_tokens: u32,
    /// Sampling temperature, 0 to 2; 0 always takes the most likely token.
    #[arg(long, default_value_t = 0.0, value_parser = parse_temperature)]
    pub(crate) temperature: f32,
    /// Cumulative probability of the tokens to sample from, above 0 and at most 1.
    #[arg(long, default_value_t = 1.0, value_parser = parse_top_p)]
    pub(crate) top_p: f32,
    /// Number of best tokens kept; 0 is off.
    #[arg(long, default_value_t = 0)]
    pub(crate) top_k: u32,
    /// Minimum probability relative to the most likely token's, 0 to 1.
    #[arg(long, default_value_t = 0.0, value_parser = parse_min_p)]
    pub(crate) min_p: f32,
    /// Key of the random numbers.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Report log-probabilities with so many alternatives (with `--json`).
    #[arg(long)]
    pub(crate) logprobs: Option<u8>,
    /// Go on past the model's end tokens.
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Print what a shell needs to complete commands and options. With bash:
/// `source <(jackalope completions bash)`.
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, clap::Args)]
pub(crate) struct LinkArgs {
    /// Machines to measure, one rank on each entry: a hostfile, or names for ssh separated by commas.
    /// Default: ranks of this machine.
    #[arg(long, value_name = "FILE|NAMES", visible_alias = "hostfile", conflicts_with = "ranks")]
    pub(crate) hosts: Option<String>,
    #[command(flatten)]
    pub(crate) reach: machines::ReachArgs,
    /// Number of ranks of this machine.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=8))]
    pub(crate) ranks: u32,
    /// Payload sizes in bytes. Default: 4 KB to 64 MB.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "BYTES",
        default_value = "4096,65536,1048576,67108864"
    )]
    pub(crate) sizes: Vec<usize>,
    /// Stock transports to measure beside the native group. What this machine's libmlx lacks is
    /// named.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "ring,jaccl,nccl")]
    pub(crate) backend: Vec<BackendArg>,
    /// Check every payload of the native group.
    #[arg(long)]
    pub(crate) checksums: bool,
    /// Encrypt the connections between ranks. `auto`: measure in clear, and measure sums also in a
    /// second, encrypted group.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = EncryptArg::Auto)]
    pub(crate) encrypt_data: EncryptArg,
    /// Ports for the connections between ranks; each rank takes one of them.
    #[arg(long, value_name = "FIRST-LAST", default_value_t = machines::PortRange::DATA)]
    pub(crate) data_ports: machines::PortRange,
    /// Time spent on each row, in milliseconds.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(10..=60000))]
    pub(crate) budget_ms: u64,
    /// Run each row so often, instead of for a time.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=20000))]
    pub(crate) rounds: Option<u32>,
    /// Also tell the time of each of these rounds.
    #[arg(long, requires = "rounds")]
    pub(crate) every_round: bool,
    /// Print JSON lines.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SynthArgs {
    /// Architecture.
    #[arg(long, value_enum, default_value_t = SynthArch::Qwen3)]
    pub(crate) arch: SynthArch,
    /// Which of its models.
    #[arg(long, value_enum, ignore_case = true, default_value = "0.6b")]
    pub(crate) size: SynthSize,
    /// Bits of a weight: 2, 3, 4, 5, 6 or 8 in groups of 64, or 16 for bfloat16.
    #[arg(long, default_value_t = 4, value_parser = parse_bits)]
    pub(crate) bits: u32,
    /// Where to write it.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum SynthArch {
    /// Dense Qwen3.
    Qwen3,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum SynthSize {
    /// 0.6 billion parameters.
    #[value(name = "0.6b")]
    B0_6,
    /// 1.7 billion.
    #[value(name = "1.7b")]
    B1_7,
    /// 4 billion.
    #[value(name = "4b")]
    B4,
    /// 8 billion.
    #[value(name = "8b")]
    B8,
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
