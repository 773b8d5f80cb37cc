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

const DERIVED: Effect =
    Effect::Nothing("it follows from the machines and from how they are reached");
const MEMORY: Effect =
    Effect::Nothing("memory is accounted for exactly; `--kv-mib` and `--context` bound it");
const BUILT_IN: Effect = Effect::Nothing("there is no Python here");
const READINESS: Effect = Effect::Nothing("readiness is waited for, not a time");
const EVENTS: Effect = Effect::Nothing("nothing is polled");
const NO_PROMPT: Effect = Effect::Nothing("prompts are made of BENCH_PROMPT_TOKENS tokens");
const LOG_BYTES: Effect =
    Effect::Nothing("the request log is bounded by its length: 64 MiB, and as much before");

/// Variables of mlx-jaccl-cluster's scripts and server.
pub(super) const JACCL_CLUSTER: &[Variable] = &[
    variable(
        "MODEL_DIR",
        Rule::Text,
        Effect::Flag("model"),
        "",
        "directory of the model; required",
    ),
    variable("MODEL_ID", Rule::Text, Effect::Flag("model-id"), "", "its name in the API"),
    variable("HOSTFILE", Rule::Text, Effect::Flag("hosts"), "", "the machines"),
    variable(
        "HTTP_HOST",
        Rule::Host,
        Effect::Flag("host"),
        "",
        "address to listen on; only this machine unless it is set, and others only with a key",
    ),
    applied(variable("HTTP_PORT", Rule::Port, Effect::Flag("port"), "8080", "port to listen on")),
    variable("CTRL_HOST", Rule::Host, DERIVED, "", "where ranks connect to"),
    applied(variable(
        "CTRL_PORT",
        Rule::Port,
        Effect::Flag("control-port"),
        "18080",
        "where ranks connect to on this machine",
    )),
    applied(variable(
        "QUEUE_MAX",
        Rule::Whole { least: 0, most: 65536 },
        Effect::Flag("queue-max"),
        "8",
        "requests that may wait",
    )),
    applied(variable(
        "REQ_TIMEOUT",
        SECONDS,
        Effect::Flag("request-timeout"),
        "120",
        "seconds of a request",
    )),
    applied(variable(
        "MAX_TOKENS",
        TOKENS,
        Effect::Flag("default-max-tokens"),
        "512",
        "tokens of an answer that does not say",
    )),
    variable("MODELS_DIR", Rule::Text, READ, "~/models_mlx", "a folder of models"),
    variable("MODEL", Rule::Text, READ, "", "what `make download` fetches"),
    variable("REMOTE", Rule::Text, READ, "", "the machine of `make bootstrap`"),
    variable("RDMA_DEVICES", Rule::Text, DERIVED, "", "devices by rank"),
    variable("MLX_METAL_FAST_SYNCH", Rule::YesNo, FORWARDED, "", "a mode of MLX's GPU code"),
    variable("HF_HUB_OFFLINE", Rule::YesNo, READ, "", "no word to the hub"),
    variable("TRANSFORMERS_OFFLINE", Rule::YesNo, READ, "", "the same"),
    variable("VENV_DIR", Rule::Text, BUILT_IN, "", "a Python environment"),
    variable("SERVER_PY", Rule::Text, BUILT_IN, "", "the server's program"),
    variable("MONITOR_INTERVAL", SOME, READ, "5", "seconds between two looks of `monitor`"),
    variable(
        "MACMON_INTERVAL",
        SOME,
        READ,
        "1000",
        "milliseconds between two samples of the hardware",
    ),
    variable("RDMA_ROUNDS", SOME, READ, "20", "rounds of `make rdma-test`"),
    variable("RDMA_SIZES", Rule::Text, READ, "", "its payloads, in numbers of float32"),
    variable("RDMA_VERBOSE", Rule::YesNo, READ, "0", "whether it prints the time of each round"),
    variable("RDMA_MAX_MB", SOME, READ, "256", "its largest payload"),
    variable("BENCH_PROMPT", Rule::Text, NO_PROMPT, "", "prompt of `make bench`"),
    variable("BENCH_TOKENS", SOME, READ, "256", "tokens of its answers"),
    variable("BENCH_RUNS", SOME, READ, "3", "its runs"),
    variable("BENCH_WARMUP", ANY, READ, "1", "its runs that do not count"),
    variable("MLX_HARD_MAX_TOKENS", SOME, MEMORY, "4096", "most tokens of an answer"),
    variable("MLX_SYSTEM_RESERVE_GB", GB, MEMORY, "6", "memory left to the system"),
    variable("MLX_MAX_RAM_FRACTION", FRACTION, MEMORY, "0.70", "most of the memory that is used"),
    variable("MLX_CACHE_FRACTION", FRACTION, MEMORY, "0.50", "part of it for MLX's cache"),
    variable("MLX_WIRED_LIMIT_GB", ANY, MEMORY, "0", "memory that is wired down"),
    variable("MLX_PRESSURE_WARN", FRACTION, MEMORY, "", "memory at which it warns"),
    variable("MLX_PRESSURE_CRITICAL", FRACTION, MEMORY, "", "memory at which it refuses"),
    variable("MEMORY_THRESHOLD", FRACTION, MEMORY, "", "the same for the machine"),
    variable("OVERRIDE_MEMORY_MB", SOME, MEMORY, "", "memory it is to believe in"),
    variable("MEMORY_POLL_INTERVAL", SECONDS, EVENTS, "1.5", "seconds between two looks at it"),
    variable(
        "REQUEST_LOG_PATH",
        Rule::Text,
        Effect::Flag("request-log"),
        "logs/requests.jsonl",
        "a line for every request; none unless it is set",
    ),
    variable("REQUEST_LOG_MAX", SOME, LOG_BYTES, "10000", "its length"),
    applied(variable(
        "QWEN3_ENABLE_THINKING",
        Rule::YesNo,
        Effect::Flag("thinking"),
        "0",
        "whether models think aloud, for requests that do not say",
    )),
];

/// Variables of distributed inference over MLX's ring.
pub(super) const RING: &[Variable] = &[
    variable("MODEL_REPO", Rule::Text, Effect::Flag("model"), "", "the model: ORG/NAME; required"),
    variable("MODEL_CACHE_DIR", Rule::Text, READ, "", "where models lie"),
    variable(
        "API_HOST",
        Rule::Host,
        Effect::Flag("host"),
        "",
        "address to listen on; only this machine unless it is set, and others only with a key",
    ),
    applied(variable("API_PORT", Rule::Port, Effect::Flag("port"), "8100", "port to listen on")),
    variable("WORKER_HOSTS", Rule::Names, READ, "", "addresses of the other machines"),
    variable("WORKER_SSH", Rule::Names, READ, "", "their names for ssh, in the same order"),
    variable(
        "SOCKET_PATH",
        Rule::Text,
        Effect::Nothing("the engine and the API are one process; `restart` keeps the weights"),
        "/tmp/mlx_ring.sock",
        "the engine's socket",
    ),
    variable("NUM_DEVICES", Rule::Whole { least: 1, most: 64 }, READ, "", "number of ranks"),
    variable(
        "DISTRIBUTED_BACKEND",
        Rule::Known(&["tcp", "ring", "jaccl", "nccl"]),
        Effect::Flag("backend"),
        "",
        "transport of the collectives",
    ),
    variable("KV_CACHE_MAX_SIZE", SOME, MEMORY, "", "most tokens of a cache"),
    variable("KV_CACHE_RESERVED_MEMORY_MB", ANY, MEMORY, "2048", "memory left free"),
    variable(
        "MAX_SEQUENCE_LENGTH",
        TOKENS,
        Effect::Flag("context"),
        "",
        "longest sequence in tokens; the model's own without it",
    ),
    variable(
        "MAX_PROMPT_LEN_BYTES",
        SOME,
        Effect::Nothing("no prompt is cut; the context bounds it"),
        "4096",
        "longest prompt",
    ),
    applied(variable(
        "REQUEST_TIMEOUT_SECONDS",
        SECONDS,
        Effect::Flag("request-timeout"),
        "120",
        "seconds of a request",
    )),
    variable(
        "POLL_INTERVAL_SECONDS",
        Rule::Decimal { above: 0, most: 10 },
        EVENTS,
        "0.1",
        "seconds between two looks for work",
    ),
    applied(variable(
        "DEFAULT_MAX_TOKENS",
        TOKENS,
        Effect::Flag("default-max-tokens"),
        "50",
        "tokens of an answer that does not say",
    )),
    variable("FILE_DESCRIPTOR_SOFT_LIMIT", SOME, READ, "2048", "open files, at least"),
    variable("FILE_DESCRIPTOR_HARD_LIMIT", SOME, READ, "4096", "open files, the hard limit"),
    variable("MODEL_LOAD_WAIT_SECONDS", SECONDS, READINESS, "15", "a pause while it loads"),
    variable(
        "LOG_LEVEL",
        Rule::OneOf(&["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]),
        READ,
        "",
        "what is told on standard error",
    ),
    variable("PYTHONUNBUFFERED", Rule::Text, BUILT_IN, "", "how Python writes"),
    variable("SERVER_LOG_PATH", Rule::Text, LOG_PATH, "", "a log"),
    variable("API_LOG_PATH", Rule::Text, LOG_PATH, "", "another"),
    variable("REQUEST_FILE_PATH", Rule::Text, EVENTS, "", "a file between processes"),
    variable("RESPONSE_FILE_PATH", Rule::Text, EVENTS, "", "another"),
];

const FORWARDED: Effect = Effect::Flag("env");
const LOG_PATH: Effect = Effect::Nothing("`start` writes ~/.jackalope/logs/serve.log");
const GB: Rule = Rule::Decimal { above: 0, most: 1 << 20 };
const FRACTION: Rule = Rule::Decimal { above: 0, most: 1 };
