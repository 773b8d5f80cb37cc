//! Tables of the variables of other programs, and what each means here.

/// A variable of another program.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Variable {
    pub(super) name: &'static str,
    pub(super) rule: Rule,
    pub(super) effect: Effect,
    /// Default of the other program; empty if it has none.
    pub(super) default: &'static str,
    /// Whether `default` applies here too if the profile is chosen.
    pub(super) applies_default: bool,
    pub(super) about: &'static str,
}

impl Variable {
    /// Whether the variable sets this flag of `serve`.
    pub(super) fn is_flag(&self, flag: &str) -> bool {
        matches!(self.effect, Effect::Flag(it) if it == flag)
    }
}

/// Rule that values must satisfy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Rule {
    Text,
    Host,
    /// Host names separated by commas.
    Names,
    Port,
    Whole {
        least: u64,
        most: u64,
    },
    Decimal {
        above: u32,
        most: u32,
    },
    YesNo,
    /// One of these words, ignoring case.
    OneOf(&'static [&'static str]),
    /// These values are known; others are left out with a warning.
    Known(&'static [&'static str]),
}

/// Effect of a variable.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Effect {
    /// Sets this flag of `serve`.
    Flag(&'static str),
    /// The variable is read, but does not correspond to a flag.
    Read,
    /// Has no effect, for this reason.
    Nothing(&'static str),
}

/// Creates a table of variables: the name, the rule, the effect, the default of the other program (with
/// `applied` if it applies here too), and what the variable is about.
macro_rules! variables {
    (@applies) => { false };
    (@applies applied) => { true };
    ($($name:literal: $rule:expr, $effect:expr, $default:literal $(, $applied:ident)?
        => $about:literal;)*) => {
        &[$(Variable {
            name: $name,
            rule: $rule,
            effect: $effect,
            default: $default,
            applies_default: variables!(@applies $($applied)?),
            about: $about,
        }),*]
    };
}

const ANY: Rule = Rule::Whole { least: 0, most: u64::MAX };
const SOME: Rule = Rule::Whole { least: 1, most: u64::MAX };
const TOKENS: Rule = Rule::Whole { least: 1, most: u32::MAX as u64 };
const SECONDS: Rule = Rule::Decimal { above: 0, most: 86400 };
const GB: Rule = Rule::Decimal { above: 0, most: 1 << 20 };
const FRACTION: Rule = Rule::Decimal { above: 0, most: 1 };
const READ: Effect = Effect::Read;
const FORWARDED: Effect = Effect::Flag("env");
const LOG_PATH: Effect = Effect::Nothing("`start` writes ~/.jackalope/logs/serve.log");

const DERIVED: Effect = Effect::Nothing("derived from the hostfile and the agents");
const MEMORY: Effect =
    Effect::Nothing("memory is planned exactly; `--kv-mib` and `--context` limit it");
const BUILT_IN: Effect = Effect::Nothing("Jackalope does not use Python");
const READINESS: Effect = Effect::Nothing("Jackalope waits for readiness, not for a fixed time");
const EVENTS: Effect = Effect::Nothing("Jackalope does not poll");
const NO_PROMPT: Effect = Effect::Nothing("prompts consist of BENCH_PROMPT_TOKENS random tokens");
const LOG_BYTES: Effect =
    Effect::Nothing("the request log is rotated at 64 MiB; one older file is kept");

/// Variables of mlx-jaccl-cluster's scripts and server.
pub(super) const JACCL_CLUSTER: &[Variable] = variables! {
    "MODEL_DIR": Rule::Text, Effect::Flag("model"), "" => "directory of the model; required";
    "MODEL_ID": Rule::Text, Effect::Flag("model-id"), "" => "name of the model in the API";
    "HOSTFILE": Rule::Text, Effect::Flag("hosts"), "" =>
        "hostfile, or SSH host names separated by commas";
    "HTTP_HOST": Rule::Host, Effect::Flag("host"), "" =>
        "address to listen on, by default 127.0.0.1; any other address needs API keys or `--insecure`";
    "HTTP_PORT": Rule::Port, Effect::Flag("port"), "8080", applied => "port to listen on";
    "CTRL_HOST": Rule::Host, DERIVED, "" => "address for the ranks' control connections";
    "CTRL_PORT": Rule::Port, Effect::Flag("control-port"), "18080", applied =>
        "port for the ranks' control connections";
    "QUEUE_MAX": Rule::Whole { least: 0, most: 65536 }, Effect::Flag("queue-max"), "8", applied =>
        "maximum number of waiting requests";
    "REQ_TIMEOUT": SECONDS, Effect::Flag("request-timeout"), "120", applied =>
        "maximum duration of a request, in seconds";
    "MAX_TOKENS": TOKENS, Effect::Flag("default-max-tokens"), "512", applied =>
        "maximum number of tokens to generate for requests that set none";
    "MODELS_DIR": Rule::Text, READ, "~/models_mlx" => "directory of models";
    "MODEL": Rule::Text, READ, "" => "model that `make download` downloads";
    "REMOTE": Rule::Text, READ, "" => "machine for `make bootstrap`";
    "RDMA_DEVICES": Rule::Text, DERIVED, "" => "RDMA devices by rank";
    "MLX_METAL_FAST_SYNCH": Rule::YesNo, FORWARDED, "" => "faster GPU synchronisation in MLX";
    "HF_HUB_OFFLINE": Rule::YesNo, READ, "" => "do not contact the hub";
    "TRANSFORMERS_OFFLINE": Rule::YesNo, READ, "" => "do not contact the hub";
    "VENV_DIR": Rule::Text, BUILT_IN, "" => "Python virtual environment";
    "SERVER_PY": Rule::Text, BUILT_IN, "" => "Python program of the server";
    "MONITOR_INTERVAL": SOME, READ, "5" => "interval of `monitor`, in seconds";
    "MACMON_INTERVAL": SOME, READ, "1000" => "interval between hardware samples, in milliseconds";
    "RDMA_ROUNDS": SOME, READ, "20" => "number of rounds of `make rdma-test`";
    "RDMA_SIZES": Rule::Text, READ, "" =>
        "payload sizes of `make rdma-test`, as numbers of float32 values";
    "RDMA_VERBOSE": Rule::YesNo, READ, "0" =>
        "whether `make rdma-test` prints the time of each round";
    "RDMA_MAX_MB": SOME, READ, "256" => "maximum payload of `make rdma-test`, in MiB";
    "BENCH_PROMPT": Rule::Text, NO_PROMPT, "" => "prompt of `make bench`";
    "BENCH_TOKENS": SOME, READ, "256" => "number of tokens that `make bench` generates per prompt";
    "BENCH_RUNS": SOME, READ, "3" => "number of runs of `make bench`";
    "BENCH_WARMUP": ANY, READ, "1" => "number of warm-up runs of `make bench`";
    "MLX_HARD_MAX_TOKENS": SOME, MEMORY, "4096" => "maximum number of tokens to generate";
    "MLX_SYSTEM_RESERVE_GB": GB, MEMORY, "6" => "memory reserved for the system, in GB";
    "MLX_MAX_RAM_FRACTION": FRACTION, MEMORY, "0.70" => "maximum fraction of the memory to use";
    "MLX_CACHE_FRACTION": FRACTION, MEMORY, "0.50" => "fraction of that memory for MLX's cache";
    "MLX_WIRED_LIMIT_GB": ANY, MEMORY, "0" => "limit of wired memory, in GB";
    "MLX_PRESSURE_WARN": FRACTION, MEMORY, "" => "fraction of memory in use at which it warns";
    "MLX_PRESSURE_CRITICAL": FRACTION, MEMORY, "" =>
        "fraction of memory in use at which it refuses requests";
    "MEMORY_THRESHOLD": FRACTION, MEMORY, "" =>
        "fraction of the machine's memory in use at which it refuses requests";
    "OVERRIDE_MEMORY_MB": SOME, MEMORY, "" => "assumed memory of the machine, in MB";
    "MEMORY_POLL_INTERVAL": SECONDS, EVENTS, "1.5" =>
        "interval between memory readings, in seconds";
    "REQUEST_LOG_PATH": Rule::Text, Effect::Flag("request-log"), "logs/requests.jsonl" =>
        "request log, one line per request; off unless set";
    "REQUEST_LOG_MAX": SOME, LOG_BYTES, "10000" => "maximum number of lines of the request log";
    "QWEN3_ENABLE_THINKING": Rule::YesNo, Effect::Flag("thinking"), "0", applied =>
        "whether models reason, for requests that do not set it";
};

/// Variables of distributed inference over MLX's ring.
pub(super) const RING: &[Variable] = variables! {
    "MODEL_REPO": Rule::Text, Effect::Flag("model"), "" => "model as ORG/NAME; required";
    "MODEL_CACHE_DIR": Rule::Text, READ, "" => "directory of models";
    "API_HOST": Rule::Host, Effect::Flag("host"), "" =>
        "address to listen on, by default 127.0.0.1; any other address needs API keys or `--insecure`";
    "API_PORT": Rule::Port, Effect::Flag("port"), "8100", applied => "port to listen on";
    "WORKER_HOSTS": Rule::Names, READ, "" => "addresses of the other machines";
    "WORKER_SSH": Rule::Names, READ, "" => "SSH host names of these machines, in the same order";
    "SOCKET_PATH": Rule::Text, Effect::Nothing("engine and API are one process; `restart` keeps the weights"), "/tmp/mlx_ring.sock" =>
        "Unix socket of the engine";
    "NUM_DEVICES": Rule::Whole { least: 1, most: 64 }, READ, "" => "number of ranks";
    "DISTRIBUTED_BACKEND": Rule::Known(&["tcp", "ring", "jaccl", "nccl"]), Effect::Flag("backend"), "" =>
        "transport of the collectives";
    "KV_CACHE_MAX_SIZE": SOME, MEMORY, "" => "maximum number of tokens in the KV cache";
    "KV_CACHE_RESERVED_MEMORY_MB": ANY, MEMORY, "2048" => "memory to leave free, in MB";
    "MAX_SEQUENCE_LENGTH": TOKENS, Effect::Flag("context"), "" =>
        "maximum sequence length in tokens; by default the model's context length";
    "MAX_PROMPT_LEN_BYTES": SOME, Effect::Nothing("prompts are limited by the context, and never truncated"), "4096" =>
        "maximum length of a prompt, in bytes";
    "REQUEST_TIMEOUT_SECONDS": SECONDS, Effect::Flag("request-timeout"), "120", applied =>
        "maximum duration of a request, in seconds";
    "POLL_INTERVAL_SECONDS": Rule::Decimal { above: 0, most: 10 }, EVENTS, "0.1" =>
        "interval of looking for work, in seconds";
    "DEFAULT_MAX_TOKENS": TOKENS, Effect::Flag("default-max-tokens"), "50", applied =>
        "maximum number of tokens to generate for requests that set none";
    "FILE_DESCRIPTOR_SOFT_LIMIT": SOME, READ, "2048" => "soft limit of open files, at least";
    "FILE_DESCRIPTOR_HARD_LIMIT": SOME, READ, "4096" => "hard limit of open files, at least";
    "MODEL_LOAD_WAIT_SECONDS": SECONDS, READINESS, "15" =>
        "time to wait for the model to load, in seconds";
    "LOG_LEVEL": Rule::OneOf(&["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]), READ, "" =>
        "log level on standard error";
    "PYTHONUNBUFFERED": Rule::Text, BUILT_IN, "" => "unbuffered output of Python";
    "SERVER_LOG_PATH": Rule::Text, LOG_PATH, "" => "log file of the server";
    "API_LOG_PATH": Rule::Text, LOG_PATH, "" => "log file of the API";
    "REQUEST_FILE_PATH": Rule::Text, EVENTS, "" => "file for requests between processes";
    "RESPONSE_FILE_PATH": Rule::Text, EVENTS, "" => "file for responses between processes";
};
