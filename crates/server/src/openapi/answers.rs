//! Schemas of answers that are written field by field. Answers may have more fields than these;
//! clients may read them, but they are not guaranteed.

#![expect(dead_code, reason = "the types are only described")]

use std::collections::BTreeMap;

use utoipa::openapi::schema::Type;
use utoipa::openapi::{ObjectBuilder, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// An object whose fields are not described.
pub(crate) struct Fields;

impl PartialSchema for Fields {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new().schema_type(Type::Object).into()
    }
}

impl ToSchema for Fields {}

/// One event of a stream.
#[derive(ToSchema)]
pub(crate) struct ServerSentEvent {
    /// Name of the event, if the API names its events.
    event: Option<String>,
    /// A line of JSON, or `[DONE]`.
    data: String,
}

/// A complete response.
#[derive(ToSchema)]
pub(crate) struct ResponseAnswer {
    id: String,
    object: String,
    created_at: u64,
    /// `completed`, `incomplete`, `cancelled`, `failed` or `in_progress`.
    status: String,
    model: String,
    /// Items of the types `reasoning`, `message` and `function_call`.
    output: Vec<Fields>,
    error: Option<Fields>,
    incomplete_details: Option<Fields>,
    usage: Option<ResponseUsage>,
    instructions: Option<String>,
    metadata: BTreeMap<String, String>,
    previous_response_id: Option<String>,
    store: bool,
    temperature: f64,
    top_p: f64,
    tools: Vec<Fields>,
    user: Option<String>,
}

#[derive(ToSchema)]
pub(crate) struct ResponseUsage {
    input_tokens: u32,
    output_tokens: u32,
    total_tokens: u32,
}

#[derive(ToSchema)]
pub(crate) struct DeletedResponse {
    id: String,
    object: String,
    deleted: bool,
}

#[derive(ToSchema)]
pub(crate) struct InputItems {
    object: String,
    data: Vec<Fields>,
    first_id: Option<String>,
    last_id: Option<String>,
    has_more: bool,
}

/// A complete message.
#[derive(ToSchema)]
pub(crate) struct MessageAnswer {
    id: String,
    r#type: String,
    role: String,
    model: String,
    /// Blocks of the types `thinking`, `text` and `tool_use`.
    content: Vec<Fields>,
    /// `end_turn`, `max_tokens`, `stop_sequence`, `tool_use` or `model_context_window_exceeded`.
    stop_reason: Option<String>,
    stop_sequence: Option<String>,
    usage: MessageUsage,
}

#[derive(ToSchema)]
pub(crate) struct MessageUsage {
    input_tokens: u32,
    cache_creation_input_tokens: u32,
    cache_read_input_tokens: u32,
    output_tokens: u32,
}

/// An answer of `/api/chat`, or one line of it.
#[derive(ToSchema)]
pub(crate) struct OllamaChatAnswer {
    model: String,
    created_at: String,
    message: OllamaAnswerMessage,
    done: bool,
    /// `stop`, `length`, `load` or `unload`.
    #[serde(skip_serializing_if = "Option::is_none")]
    done_reason: Option<String>,
    #[serde(flatten)]
    metrics: OllamaMetrics,
}

#[derive(ToSchema)]
pub(crate) struct OllamaAnswerMessage {
    role: String,
    content: String,
    thinking: Option<String>,
    tool_calls: Option<Vec<Fields>>,
}

/// An answer of `/api/generate`, or one line of it.
#[derive(ToSchema)]
pub(crate) struct OllamaGenerateAnswer {
    model: String,
    created_at: String,
    response: String,
    thinking: Option<String>,
    done: bool,
    /// `stop`, `length`, `load` or `unload`.
    done_reason: Option<String>,
    #[serde(flatten)]
    metrics: OllamaMetrics,
}

/// Token counts and times of an answer. Times are in nanoseconds.
#[derive(ToSchema)]
pub(crate) struct OllamaMetrics {
    total_duration: Option<u64>,
    load_duration: Option<u64>,
    prompt_eval_count: Option<u32>,
    prompt_eval_duration: Option<u64>,
    eval_count: Option<u32>,
    eval_duration: Option<u64>,
}

#[derive(ToSchema)]
pub(crate) struct OllamaModels {
    models: Vec<OllamaModel>,
}

#[derive(ToSchema)]
pub(crate) struct OllamaModel {
    name: String,
    model: String,
    size: u64,
    digest: String,
    details: Fields,
}

#[derive(ToSchema)]
pub(crate) struct OllamaVersion {
    version: String,
}

#[derive(ToSchema)]
pub(crate) struct OllamaShown {
    modelfile: String,
    parameters: String,
    details: Fields,
    model_info: Fields,
    capabilities: Vec<String>,
    modified_at: String,
}

/// Progress of a download, or one line of it.
#[derive(ToSchema)]
pub(crate) struct OllamaPulled {
    /// `success` in the last line.
    status: Option<String>,
    error: Option<String>,
    digest: Option<String>,
    total: Option<u64>,
    completed: Option<u64>,
}

/// A model that is loaded or loading.
#[derive(ToSchema)]
pub(crate) struct LoadedModel {
    /// `loaded` or `loading`.
    status: String,
    model_id: String,
}

/// An unloaded model. Numbers are gigabytes over all ranks.
#[derive(ToSchema)]
pub(crate) struct UnloadedModel {
    /// `unloaded` or `no_model`.
    status: String,
    model_id: Option<String>,
    before_active_gb: Option<f64>,
    before_cache_gb: Option<f64>,
    after_active_gb: Option<f64>,
    after_cache_gb: Option<f64>,
    freed_gb: Option<f64>,
}

/// Unloaded models. Numbers are gigabytes over all ranks.
#[derive(ToSchema)]
pub(crate) struct UnloadedModels {
    unloaded: Vec<String>,
    before_active_gb: f64,
    after_active_gb: f64,
    freed_gb: f64,
    memory: Fields,
}

/// The server and its default model.
#[derive(ToSchema)]
pub(crate) struct HealthAnswer {
    /// `healthy`, `recovering`, `idle`, `starting`, `failed`, `stopping`, `unloading` or `memory_short`.
    status: String,
    ok: bool,
    reason: Option<String>,
    model: String,
    model_loaded: bool,
    context_tokens: Option<u32>,
    version: String,
    uptime_seconds: u64,
    world_size: usize,
    /// The ranks, among others with `host`, `phase`, `facts`, `memory`, `transport` (of collectives:
    /// `tcp`, `ring`, `jaccl` or `nccl`; null if there is no other rank) and `rdma` (its RDMA devices
    /// towards the others, with `jaccl`).
    ranks: Vec<Fields>,
    open_streams: usize,
    running: usize,
    queue_size: usize,
    queue_max: usize,
    /// Memory pressure on the machines; `tier` is `normal`, `warn` or `critical`.
    memory_pressure: Option<Fields>,
    /// Temperature, power and GPU load of the machines: `host` (null for the server's own), `thermal`
    /// (such as `54 °C`, or `normal` on a Mac), `cpu_watts`, `gpu_watts` and `gpu_percent` (the load
    /// of the busiest GPU); null where the system does not report them.
    machines: Vec<Fields>,
    counters: Option<Fields>,
    /// Broken links between machines, with `between`, `reason` and `seconds`.
    broken_links: Vec<Fields>,
    models: Vec<Fields>,
}

#[derive(ToSchema)]
pub(crate) struct LiveAnswer {
    status: String,
}

#[derive(ToSchema)]
pub(crate) struct ReadyAnswer {
    ready: bool,
    status: String,
    reason: Option<String>,
}

#[derive(ToSchema)]
pub(crate) struct VersionAnswer {
    name: String,
    version: String,
}

/// Description of the service.
#[derive(ToSchema)]
pub(crate) struct ServiceCard {
    name: String,
    server: String,
    version: String,
    endpoints: BTreeMap<String, String>,
}

#[derive(ToSchema)]
pub(crate) struct QueueAnswer {
    size: usize,
    max: usize,
    running: usize,
    running_max: usize,
    oldest_open_s: Option<f64>,
}

#[derive(ToSchema)]
pub(crate) struct ModelInfo {
    id: String,
    model_id: String,
    loaded: bool,
    slot: Fields,
    memory: Fields,
    architecture: Option<String>,
    num_layers: Option<u32>,
    vocab_size: Option<u32>,
    max_context_length: Option<u32>,
    num_devices: usize,
    models: Vec<Fields>,
}

/// Rates of the last minute, the last answers, and the state of the ranks.
#[derive(ToSchema)]
pub(crate) struct SnapshotAnswer {
    uptime_s: u64,
    total_requests: u64,
    total_tokens: u64,
    total_prompt_tokens: u64,
    error_count: u64,
    recent_count: usize,
    avg_tps_60s: f64,
    peak_tps_60s: f64,
    avg_latency_60s: f64,
    history: Vec<Fields>,
    queue_size: usize,
    running: usize,
    model: String,
    state: String,
    memory: Fields,
    nodes: Fields,
}

#[derive(ToSchema)]
pub(crate) struct MemoryAnswer {
    ok: bool,
    mlx: Fields,
    system: Fields,
    slot: Fields,
    limits: Fields,
    monitor: Fields,
    /// Facts of each rank, by its number.
    ranks: Fields,
}

/// Recent memory samples, one per second.
#[derive(ToSchema)]
pub(crate) struct MemorySamples {
    ok: bool,
    source: String,
    count: usize,
    data: Vec<MemorySample>,
}

#[derive(ToSchema)]
pub(crate) struct MemorySample {
    timestamp: f64,
    mlx_active_gb: f64,
    mlx_pressure_pct: f64,
    model_loaded: bool,
}

#[derive(ToSchema)]
pub(crate) struct RecentRequests {
    ok: bool,
    count: usize,
    requests: Vec<RecentRequest>,
}

#[derive(ToSchema)]
pub(crate) struct RecentRequest {
    request_id: String,
    timestamp: f64,
    kind: String,
    model_id: String,
    prompt_tokens: u32,
    generated_tokens: u32,
    max_tokens_requested: Option<u32>,
    wall_time_s: f64,
    tokens_per_second: f64,
    /// `ok`, `error`, `timeout` or `cancelled`.
    status: String,
    error_message: Option<String>,
    finish_reason: Option<String>,
    is_stream: bool,
    answer_id: Option<String>,
    key: Option<String>,
    num_choices: usize,
    cached_tokens: u32,
    /// Reason why the other prompt tokens were computed.
    miss_reason: Option<String>,
    /// Number of leading tokens that the prompt shares with a cached one.
    diverged_at: Option<u32>,
    queue_s: f64,
    time_to_first_token_s: Option<f64>,
}

#[derive(ToSchema)]
pub(crate) struct RecentErrors {
    ok: bool,
    count: usize,
    errors: Vec<Fields>,
}

/// Totals since the start, and times of the recorded requests.
#[derive(ToSchema)]
pub(crate) struct RequestStats {
    ok: u64,
    total_requests: u64,
    errors: u64,
    timeouts: u64,
    cancelled: u64,
    error_rate: f64,
    total_generated_tokens: u64,
    buffer_size: usize,
    avg_tps: f64,
    p50_tps: f64,
    p95_tps: f64,
    avg_latency_s: f64,
    p50_latency_s: f64,
    p95_latency_s: f64,
    kv_cache_hit_rate: f64,
}

/// The engine, and the requests being answered.
#[derive(ToSchema)]
pub(crate) struct EngineStatus {
    /// `running`, `not_loaded` or `stopped`.
    status: String,
    model: String,
    uptime_s: f64,
    steps_executed: u64,
    num_running: usize,
    num_waiting: usize,
    total_requests_processed: u64,
    cache: CacheStats,
    requests: Vec<Fields>,
}

#[derive(ToSchema)]
pub(crate) struct CacheStats {
    r#type: String,
    entries: usize,
    memory_gb: f64,
    memory_limit_gb: f64,
    utilization: f64,
    queried_tokens: u64,
    tokens_saved: u64,
    hit_rate: f64,
    hits: u64,
    evictions: u64,
}

/// The downloads, the oldest first.
#[derive(ToSchema)]
pub(crate) struct PullList {
    /// `id`, `model`, `state` (`running`, `done`, `failed` or `cancelled`), `status`, `total_bytes`
    /// and `completed_bytes` of the files begun so far, and `began`.
    pulls: Vec<Fields>,
}

/// The copies of models to other machines, the oldest first.
#[derive(ToSchema)]
pub(crate) struct CopyList {
    /// `id`, `model`, `state` (`running`, `done`, `failed` or `cancelled`), `status`, `began`,
    /// `model_bytes`, `total_bytes` and `completed_bytes` of all machines, and `machines`, each with
    /// `host`, `state`, `completed_bytes`, `path` and `error`.
    copies: Vec<Fields>,
}

/// What the other machines hold of a model, judged by the names and sizes of its files.
#[derive(ToSchema)]
pub(crate) struct CopyMachines {
    model: String,
    /// Size of the model.
    total_bytes: u64,
    /// `host`, `state` (`complete`, `partial`, `absent`, `different` or `unreachable`),
    /// `completed_bytes`, `path` and `error`.
    machines: Vec<Fields>,
}

/// The keys, with what they have used since the server started.
#[derive(ToSchema)]
pub(crate) struct KeyList {
    /// Whether requests need a key.
    required: bool,
    /// Whether keys can be created, changed and revoked: those in the file of keys.
    editable: bool,
    /// `name`, `admin`, limits, `editable`, and counts of requests and tokens.
    keys: Vec<Fields>,
}

#[derive(ToSchema)]
pub(crate) struct CreatedKey {
    name: String,
    key: String,
}

/// The last lines of the log, in order; at most 500 are kept.
#[derive(ToSchema)]
pub(crate) struct LogLines {
    /// `number`, from 1 on since the server started, and `text`.
    lines: Vec<Fields>,
}

/// The memory that a model takes.
#[derive(ToSchema)]
pub(crate) struct ModelFitAnswer {
    model: String,
    /// Whether it fits if no other model is loaded.
    fits: bool,
    /// `machine`, `needed_bytes`, `budget_bytes` (null: unbounded) and `taken_bytes` by other models.
    machines: Vec<Fields>,
}

/// The machines, their ranks and links, and what they compute. Without a value, a field is null.
#[derive(ToSchema)]
pub(crate) struct ClusterOverview {
    /// Time of the server in seconds since 1970.
    time: f64,
    version: String,
    uptime_s: u64,
    default_model: String,
    running: usize,
    running_max: usize,
    waiting: usize,
    waiting_max: usize,
    open_streams: usize,
    /// One list per second: time, tokens sampled per second, prompt tokens computed per second,
    /// running and waiting requests.
    samples: Vec<Vec<f64>>,
    /// Losses of ranks: `model`, `at`, `rank`, `cause` and `seconds` until the ranks were up again.
    recoveries: Vec<Fields>,
    /// Memory in bytes, and `ranks` with their part of the model, phase, memory and times.
    machines: Vec<Fields>,
    /// Links between ranks with the mean rate of their traffic, and links known to be broken.
    links: Vec<Fields>,
    models: Vec<Fields>,
}

#[derive(ToSchema)]
pub(crate) struct ClearedCache {
    status: String,
    caches: Vec<String>,
    cleared_entries: u64,
}

#[derive(ToSchema)]
pub(crate) struct CancelledRequest {
    object: String,
    id: String,
    cancelled: bool,
    model: String,
}

/// An error in Ollama's form.
#[derive(ToSchema)]
pub(crate) struct OllamaError {
    error: String,
}
