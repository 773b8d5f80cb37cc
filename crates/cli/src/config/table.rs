//! Tables of the variables of other programs, and what each means here.

/// A variable of another program.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Variable {
    pub(super) name: &'static str,
    pub(super) rule: Rule,
    pub(super) effect: Effect,
    /// Default of the other program; empty if it has none.
    pub(super) default: &'static str,
    /// Whether that default applies here too if the profile is chosen.
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
    /// One of these, ignoring case.
    OneOf(&'static [&'static str]),
    /// These values are known; others are left out with a warning.
    Known(&'static [&'static str]),
}

/// Effect of a variable.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Effect {
    /// Sets this flag of `serve`.
    Flag(&'static str),
    /// Is read, but does not correspond to a flag.
    Read,
    /// Has no effect, for this reason.
    Nothing(&'static str),
}

const fn variable(
    name: &'static str,
    rule: Rule,
    effect: Effect,
    default: &'static str,
    about: &'static str,
) -> Variable {
    Variable { name, rule, effect, default, applies_default: false, about }
}

const fn applied(it: Variable) -> Variable {
    Variable { applies_default: true, ..it }
}

const ANY: Rule = Rule::Whole { least: 0, most: u64::MAX };
const SOME: Rule = Rule::Whole { least: 1, most: u64::MAX };
const TOKENS: Rule = Rule::Whole { least: 1, most: u32::MAX as u64 };
const SECONDS: Rule = Rule::Decimal { above: 0, most: 86400 };
const READ: Effect = Effect::Read;

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
pub(super) const JACCL_CLUSTER: &[Variable] = &[
    variable(
        "MODEL_DIR",
        Rule::Text,
        Effect::Flag("model"),
        "",
        "directory of the model; required",
    ),
    variable("MODEL_ID", Rule::Text, Effect::Flag("model-id"), "", "name of the model in the API"),
    variable(
        "HOSTFILE",
        Rule::Text,
        Effect::Flag("hosts"),
        "",
        "hostfile, or SSH host names separated by commas",
    ),
    variable(
        "HTTP_HOST",
        Rule::Host,
        Effect::Flag("host"),
        "",
        "address to listen on, by default 127.0.0.1; any other address needs API keys or `--insecure`",
    ),
    applied(variable("HTTP_PORT", Rule::Port, Effect::Flag("port"), "8080", "port to listen on")),
    variable("CTRL_HOST", Rule::Host, DERIVED, "", "address for the ranks' control connections"),
    applied(variable(
        "CTRL_PORT",
        Rule::Port,
        Effect::Flag("control-port"),
        "18080",
        "port for the ranks' control connections",
    )),
    applied(variable(
        "QUEUE_MAX",
        Rule::Whole { least: 0, most: 65536 },
        Effect::Flag("queue-max"),
        "8",
        "maximum number of waiting requests",
    )),
    applied(variable(
        "REQ_TIMEOUT",
        SECONDS,
        Effect::Flag("request-timeout"),
        "120",
        "maximum duration of a request, in seconds",
    )),
    applied(variable(
        "MAX_TOKENS",
        TOKENS,
        Effect::Flag("default-max-tokens"),
        "512",
        "maximum number of tokens to generate for requests that set none",
    )),
    variable("MODELS_DIR", Rule::Text, READ, "~/models_mlx", "directory of models"),
    variable("MODEL", Rule::Text, READ, "", "model that `make download` downloads"),
    variable("REMOTE", Rule::Text, READ, "", "machine for `make bootstrap`"),
    variable("RDMA_DEVICES", Rule::Text, DERIVED, "", "RDMA devices by rank"),
    variable(
        "MLX_METAL_FAST_SYNCH",
        Rule::YesNo,
        FORWARDED,
        "",
        "faster GPU synchronisation in MLX",
    ),
    variable("HF_HUB_OFFLINE", Rule::YesNo, READ, "", "do not contact the hub"),
    variable("TRANSFORMERS_OFFLINE", Rule::YesNo, READ, "", "do not contact the hub"),
    variable("VENV_DIR", Rule::Text, BUILT_IN, "", "Python virtual environment"),
    variable("SERVER_PY", Rule::Text, BUILT_IN, "", "Python program of the server"),
    variable("MONITOR_INTERVAL", SOME, READ, "5", "interval of `monitor`, in seconds"),
    variable(
        "MACMON_INTERVAL",
        SOME,
        READ,
        "1000",
        "interval between hardware samples, in milliseconds",
    ),
    variable("RDMA_ROUNDS", SOME, READ, "20", "number of rounds of `make rdma-test`"),
    variable(
        "RDMA_SIZES",
        Rule::Text,
        READ,
        "",
        "payload sizes of `make rdma-test`, as numbers of float32 values",
    ),
    variable(
        "RDMA_VERBOSE",
        Rule::YesNo,
        READ,
        "0",
        "whether `make rdma-test` prints the time of each round",
    ),
    variable("RDMA_MAX_MB", SOME, READ, "256", "maximum payload of `make rdma-test`, in MiB"),
    variable("BENCH_PROMPT", Rule::Text, NO_PROMPT, "", "prompt of `make bench`"),
    variable(
        "BENCH_TOKENS",
        SOME,
        READ,
        "256",
        "number of tokens that `make bench` generates per prompt",
    ),
    variable("BENCH_RUNS", SOME, READ, "3", "number of runs of `make bench`"),
    variable("BENCH_WARMUP", ANY, READ, "1", "number of warm-up runs of `make bench`"),
    variable("MLX_HARD_MAX_TOKENS", SOME, MEMORY, "4096", "maximum number of tokens to generate"),
    variable("MLX_SYSTEM_RESERVE_GB", GB, MEMORY, "6", "memory reserved for the system, in GB"),
    variable(
        "MLX_MAX_RAM_FRACTION",
        FRACTION,
        MEMORY,
        "0.70",
        "maximum fraction of the memory to use",
    ),
    variable(
        "MLX_CACHE_FRACTION",
        FRACTION,
        MEMORY,
        "0.50",
        "fraction of that memory for MLX's cache",
    ),
    variable("MLX_WIRED_LIMIT_GB", ANY, MEMORY, "0", "limit of wired memory, in GB"),
    variable(
        "MLX_PRESSURE_WARN",
        FRACTION,
        MEMORY,
        "",
        "fraction of memory in use at which it warns",
    ),
    variable(
        "MLX_PRESSURE_CRITICAL",
        FRACTION,
        MEMORY,
        "",
        "fraction of memory in use at which it refuses requests",
    ),
    variable(
        "MEMORY_THRESHOLD",
        FRACTION,
        MEMORY,
        "",
        "fraction of the machine's memory in use at which it refuses requests",
    ),
    variable("OVERRIDE_MEMORY_MB", SOME, MEMORY, "", "assumed memory of the machine, in MB"),
    variable(
        "MEMORY_POLL_INTERVAL",
        SECONDS,
        EVENTS,
        "1.5",
        "interval between memory readings, in seconds",
    ),
    variable(
        "REQUEST_LOG_PATH",
        Rule::Text,
        Effect::Flag("request-log"),
        "logs/requests.jsonl",
        "request log, one line per request; off unless set",
    ),
    variable(
        "REQUEST_LOG_MAX",
        SOME,
        LOG_BYTES,
        "10000",
        "maximum number of lines of the request log",
    ),
    applied(variable(
        "QWEN3_ENABLE_THINKING",
        Rule::YesNo,
        Effect::Flag("thinking"),
        "0",
        "whether models reason, for requests that do not set it",
    )),
];

/// Variables of distributed inference over MLX's ring.
pub(super) const RING: &[Variable] = &[
    variable("MODEL_REPO", Rule::Text, Effect::Flag("model"), "", "model as ORG/NAME; required"),
    variable("MODEL_CACHE_DIR", Rule::Text, READ, "", "directory of models"),
    variable(
        "API_HOST",
        Rule::Host,
        Effect::Flag("host"),
        "",
        "address to listen on, by default 127.0.0.1; any other address needs API keys or `--insecure`",
    ),
    applied(variable("API_PORT", Rule::Port, Effect::Flag("port"), "8100", "port to listen on")),
    variable("WORKER_HOSTS", Rule::Names, READ, "", "addresses of the other machines"),
    variable(
        "WORKER_SSH",
        Rule::Names,
        READ,
        "",
        "SSH host names of these machines, in the same order",
    ),
    variable(
        "SOCKET_PATH",
        Rule::Text,
        Effect::Nothing("engine and API are one process; `restart` keeps the weights"),
        "/tmp/mlx_ring.sock",
        "Unix socket of the engine",
    ),
    variable("NUM_DEVICES", Rule::Whole { least: 1, most: 64 }, READ, "", "number of ranks"),
    variable(
        "DISTRIBUTED_BACKEND",
        Rule::Known(&["tcp", "ring", "jaccl", "nccl"]),
        Effect::Flag("backend"),
        "",
        "transport of the collectives",
    ),
    variable("KV_CACHE_MAX_SIZE", SOME, MEMORY, "", "maximum number of tokens in the KV cache"),
    variable("KV_CACHE_RESERVED_MEMORY_MB", ANY, MEMORY, "2048", "memory to leave free, in MB"),
    variable(
        "MAX_SEQUENCE_LENGTH",
        TOKENS,
        Effect::Flag("context"),
        "",
        "maximum sequence length in tokens; by default the model's context length",
    ),
    variable(
        "MAX_PROMPT_LEN_BYTES",
        SOME,
        Effect::Nothing("prompts are limited by the context, and never truncated"),
        "4096",
        "maximum length of a prompt, in bytes",
    ),
    applied(variable(
        "REQUEST_TIMEOUT_SECONDS",
        SECONDS,
        Effect::Flag("request-timeout"),
        "120",
        "maximum duration of a request, in seconds",
    )),
    variable(
        "POLL_INTERVAL_SECONDS",
        Rule::Decimal { above: 0, most: 10 },
        EVENTS,
        "0.1",
        "interval of looking for work, in seconds",
    ),
    applied(variable(
        "DEFAULT_MAX_TOKENS",
        TOKENS,
        Effect::Flag("default-max-tokens"),
        "50",
        "maximum number of tokens to generate for requests that set none",
    )),
    variable(
        "FILE_DESCRIPTOR_SOFT_LIMIT",
        SOME,
        READ,
        "2048",
        "soft limit of open files, at least",
    ),
    variable(
        "FILE_DESCRIPTOR_HARD_LIMIT",
        SOME,
        READ,
        "4096",
        "hard limit of open files, at least",
    ),
    variable(
        "MODEL_LOAD_WAIT_SECONDS",
        SECONDS,
        READINESS,
        "15",
        "time to wait for the model to load, in seconds",
    ),
    variable(
        "LOG_LEVEL",
        Rule::OneOf(&["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]),
        READ,
        "",
        "log level on standard error",
    ),
    variable("PYTHONUNBUFFERED", Rule::Text, BUILT_IN, "", "unbuffered output of Python"),
    variable("SERVER_LOG_PATH", Rule::Text, LOG_PATH, "", "log file of the server"),
    variable("API_LOG_PATH", Rule::Text, LOG_PATH, "", "log file of the API"),
    variable("REQUEST_FILE_PATH", Rule::Text, EVENTS, "", "file for requests between processes"),
    variable("RESPONSE_FILE_PATH", Rule::Text, EVENTS, "", "file for responses between processes"),
];

const FORWARDED: Effect = Effect::Flag("env");
const LOG_PATH: Effect = Effect::Nothing("`start` writes ~/.jackalope/logs/serve.log");
const GB: Rule = Rule::Decimal { above: 0, most: 1 << 20 };
const FRACTION: Rule = Rule::Decimal { above: 0, most: 1 };
