//! The metric families and their values. vLLM's names come first, so that its dashboards work.

use jackalope_engine::{Buckets, EngineState, RankStatus, Status};

use crate::journal::{AnswerEnding, ModelTotals, Totals};
use crate::memory::memory_of;

/// A loaded model with its status and totals.
pub(super) struct ModelMetrics {
    pub(super) name: String,
    pub(super) status: Status,
    pub(super) totals: ModelTotals,
}

/// A metric of one number, under one name.
pub(super) struct Family<T> {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) value: fn(&T) -> f64,
}

/// Creates a table of metrics: the name, the help, and the value as an expression of `$it`.
macro_rules! metrics {
    ($it:ident: $of:ty; $($name:literal, $help:literal => $value:expr;)*) => {
        &[$(Family {
            name: $name,
            help: $help,
            value: |$it: &$of| {
                // The value of a constant metric does not use `$it`.
                let _ = $it;
                $value as f64
            },
        }),*]
    };
}

/// A histogram of a model, under one name.
pub(super) struct HistogramFamily {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) value: fn(&ModelMetrics) -> &Buckets,
}

/// Creates a table of histograms, like `metrics!`.
macro_rules! histograms {
    ($it:ident: $of:ty; $($name:literal, $help:literal => $value:expr;)*) => {
        &[$(HistogramFamily { name: $name, help: $help, value: |$it: &$of| &$value }),*]
    };
}

fn kv_usage(status: &Status) -> f64 {
    let kv = &status.kv;
    (kv.running_bytes + kv.kept_bytes) as f64 / kv.budget_bytes.max(1) as f64
}

fn computed_prompt_tokens(totals: &ModelTotals) -> u64 {
    totals.prompt_tokens.saturating_sub(totals.cached_tokens)
}

fn per_second(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

/// Gigabits per second that a rank sent and received while it communicated; NaN before any traffic,
/// and where the transport does not count its bytes.
fn bandwidth_gbps(rank: &RankStatus) -> f64 {
    let timings = &rank.timings;
    let bytes = timings.sent_bytes + timings.received_bytes;
    let busy_us = timings.collectives_us.saturating_sub(timings.waiting_us);
    if bytes == 0 || busy_us == 0 { f64::NAN } else { bytes as f64 * 8.0 / 1e3 / busy_us as f64 }
}

fn hit_rate(status: &Status) -> f64 {
    status.prefix.found_tokens as f64 / status.prefix.wanted_tokens.max(1) as f64
}

/// Metrics of a model, with the label `model_name`.
pub(super) const MODEL: &[Family<ModelMetrics>] = metrics! { it: ModelMetrics;
    "vllm:num_requests_running", "Requests being computed." => it.status.running;
    "vllm:num_requests_waiting", "Requests waiting to be computed." => it.status.queued;
    "vllm:kv_cache_usage_perc", "Fraction of the KV cache in use, from 0 to 1." =>
        kv_usage(&it.status);
    "vllm:prefix_cache_queries_total", "Tokens looked up in the prefix cache." =>
        it.status.prefix.wanted_tokens;
    "vllm:prefix_cache_hits_total", "Tokens found in the prefix cache." =>
        it.status.prefix.found_tokens;
    "vllm:num_preemptions_total", "Preemptions." => it.status.counters.preemptions;
    "vllm:prompt_tokens_total", "Prompt tokens of accepted requests." =>
        it.status.counters.prompt_tokens;
    "vllm:generation_tokens_total", "Tokens sampled." => it.status.counters.sampled_tokens;
    "llamacpp:prompt_tokens_total", "Prompt tokens of ended requests." => it.totals.prompt_tokens;
    "llamacpp:prompt_seconds_total", "Seconds spent on prompts." => it.totals.prompt_seconds;
    "llamacpp:tokens_predicted_total", "Tokens of ended requests." => it.totals.completion_tokens;
    "llamacpp:tokens_predicted_seconds_total", "Seconds spent on answers." =>
        it.totals.decode_seconds;
    "llamacpp:n_decode_total", "Steps computed." => it.status.steps.steps;
    "llamacpp:n_busy_slots_per_decode", "Tokens computed per step." =>
        it.status.steps.computed_tokens as f64 / it.status.steps.steps.max(1) as f64;
    "llamacpp:prompt_tokens_seconds", "Prompt tokens per second." =>
        per_second(computed_prompt_tokens(&it.totals), it.totals.prompt_seconds);
    "llamacpp:predicted_tokens_seconds", "Tokens sampled per second." =>
        per_second(it.totals.completion_tokens, it.totals.decode_seconds);
    "vllm_mlx_model_loaded", "1 if requests are accepted." =>
        f64::from(u8::from(it.status.limits.is_some()));
    "vllm_mlx_engine_is_mllm", "1 if the model accepts images; always 0." => 0.0;
    "vllm_mlx_model_registry_active_owners", "Requests that use the model." =>
        it.status.running + it.status.queued;
    "vllm_mlx_cache_entry_count", "Cached sequences." => it.status.kv.num_kept;
    "vllm_mlx_cache_hits", "Sequences that reuse a cached prefix." =>
        it.status.prefix.taken_over + it.status.prefix.forked;
    "vllm_mlx_cache_hit_rate", "Fraction of the looked-up tokens that was found." =>
        hit_rate(&it.status);
    "jackalope_up", "1 if all ranks are ready." =>
        f64::from(u8::from(it.status.state == EngineState::Ready));
    "jackalope_ranks", "Ranks of the model." => it.status.ranks.len();
    "jackalope_requests_taken_total", "Requests accepted by the engine." =>
        it.status.counters.requests;
    "jackalope_requests_refused_total", "Requests refused for lack of capacity." =>
        it.status.counters.refused;
    "jackalope_dropped_tokens_total", "Tokens sampled one step too late, and dropped." =>
        it.status.counters.dropped_tokens;
    "jackalope_not_a_number_total", "Requests that failed because of logits that are not numbers." =>
        it.status.counters.not_a_number;
    "jackalope_rank_failures_total", "Losses of ranks." => it.status.counters.failures;
    "jackalope_recoveries_total", "Recoveries from losses of ranks." =>
        it.status.counters.recoveries;
    "jackalope_recovery_seconds_total", "Seconds without all ranks." =>
        it.status.recovery.total.as_secs_f64();
    "jackalope_last_recovery_seconds", "Duration of the last recovery." =>
        it.status.recovery.took.map_or(0.0, |took| took.as_secs_f64());
    "jackalope_step_plan_seconds_total", "Seconds spent planning steps." =>
        it.status.steps.plan_ns as f64 / 1e9;
    "jackalope_step_send_seconds_total", "Seconds spent sending plans." =>
        it.status.steps.send_ns as f64 / 1e9;
    "jackalope_step_commit_seconds_total", "Seconds spent processing the outputs of steps." =>
        it.status.steps.commit_ns as f64 / 1e9;
    "jackalope_prefix_evictions_total", "Evicted cached sequences." => it.status.prefix.evicted;
    "jackalope_prefix_reused_ratio", "Fraction of prompt tokens found in the cache." =>
        hit_rate(&it.status);
    "jackalope_prefix_kept_states_total", "Lengths at which states were kept." =>
        it.status.prefix.kept_lengths;
    "jackalope_prefix_forgotten_states_total", "Evicted kept states." =>
        it.status.prefix.forgotten_lengths;
    "jackalope_kv_running_bytes", "KV cache of running requests." => it.status.kv.running_bytes;
    "jackalope_kv_kept_bytes", "KV cache of finished sequences." => it.status.kv.kept_bytes;
    "jackalope_memory_pressure", "Memory pressure: 0 normal, 1 warning, 2 critical." =>
        f64::from(it.status.pressure.reading.tier as u8);
    "jackalope_memory_free_bytes", "Free memory of the machine that has the least." =>
        it.status.pressure.reading.free_bytes;
    "jackalope_kv_budget_bytes", "Maximum size of the KV cache." => it.status.kv.budget_bytes;
};

/// Histograms of a model, with the label `model_name`.
pub(super) const MODEL_HISTOGRAMS: &[HistogramFamily] = histograms! { it: ModelMetrics;
    "vllm:time_to_first_token_seconds", "From request to first token." =>
        it.status.requests.first_token_s;
    "vllm:inter_token_latency_seconds", "Between two tokens." =>
        it.status.requests.between_tokens_s;
    "vllm:request_time_per_output_token_seconds", "Mean time between tokens of a request." =>
        it.status.requests.per_output_token_s;
    "vllm:e2e_request_latency_seconds", "From request to end." => it.status.requests.total_s;
    "vllm:request_queue_time_seconds", "From request to first step." => it.status.requests.queue_s;
    "vllm:request_inference_time_seconds", "From first step to end." =>
        it.status.requests.inference_s;
    "vllm:request_prefill_time_seconds", "From first step to first token." =>
        it.status.requests.prefill_s;
    "vllm:request_decode_time_seconds", "From first token to last." => it.status.requests.decode_s;
    "vllm:request_prompt_tokens", "Prompt tokens of a request." => it.status.requests.prompt_tokens;
    "vllm:request_generation_tokens", "Tokens sampled for a request." =>
        it.status.requests.generation_tokens;
    "vllm:request_params_max_tokens", "Tokens asked for." => it.status.requests.max_tokens;
    "vllm:request_max_num_generation_tokens", "Tokens asked for." => it.status.requests.max_tokens;
    "vllm:request_params_n", "Requested choices." => it.totals.choices;
    "vllm:iteration_tokens_total", "Tokens computed per step." => it.status.steps.iteration_tokens;
};

/// Names by which other programs look for a metric of a model, each with the metric's name above.
pub(super) const MODEL_ALIASES: &[(&str, &str)] = &[
    ("vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc"),
    ("vllm:gpu_prefix_cache_queries_total", "vllm:prefix_cache_queries_total"),
    ("vllm:gpu_prefix_cache_hits_total", "vllm:prefix_cache_hits_total"),
    ("llamacpp:requests_processing", "vllm:num_requests_running"),
    ("llamacpp:requests_deferred", "vllm:num_requests_waiting"),
    ("vllm_mlx_scheduler_running_requests", "vllm:num_requests_running"),
    ("vllm_mlx_scheduler_waiting_requests", "vllm:num_requests_waiting"),
    ("vllm_mlx_engine_steps_executed", "llamacpp:n_decode_total"),
    ("vllm_mlx_prompt_tokens_total", "llamacpp:prompt_tokens_total"),
    ("vllm_mlx_completion_tokens_total", "llamacpp:tokens_predicted_total"),
    ("vllm_mlx_cache_utilization_ratio", "vllm:kv_cache_usage_perc"),
    ("vllm_mlx_cache_tokens_saved", "vllm:prefix_cache_hits_total"),
    ("vllm_mlx_cache_evictions", "jackalope_prefix_evictions_total"),
    ("vllm_mlx_cache_memory_bytes", "jackalope_kv_kept_bytes"),
    ("vllm_mlx_cache_memory_limit_bytes", "jackalope_kv_budget_bytes"),
];

/// Additional names of histograms.
pub(super) const HISTOGRAM_ALIASES: &[(&str, &str)] = &[
    ("vllm:time_per_output_token_seconds", "vllm:inter_token_latency_seconds"),
    ("vllm_mlx_inference_ttft_seconds", "vllm:time_to_first_token_seconds"),
    ("vllm_mlx_inference_request_duration_seconds", "vllm:e2e_request_latency_seconds"),
];

/// Metrics of a rank of a model, with the labels `model_name`, `rank` and `host`.
pub(super) const RANK: &[Family<RankStatus>] = metrics! { it: RankStatus;
    "mlx_cluster_memory_used_bytes", "Memory of live arrays." => it.memory.active_bytes;
    "mlx_cluster_rdma_bandwidth_gbps",
    "Mean rate of the collectives' own traffic, over whatever link, in Gbit/s." =>
        bandwidth_gbps(it);
    "jackalope_rank_active_bytes", "Memory of live arrays." => it.memory.active_bytes;
    "jackalope_rank_peak_bytes", "Maximum of the memory of live arrays." => it.memory.peak_bytes;
    "jackalope_rank_cache_bytes", "Memory that MLX keeps for reuse." => it.memory.cache_bytes;
    "jackalope_rank_kv_bytes", "Memory of the KV cache." => it.memory.kv_bytes;
    "jackalope_rank_resident_bytes", "Memory of the process." => it.memory.resident_bytes;
    "jackalope_rank_weights_bytes", "Memory of the weights." =>
        it.facts.as_ref().map_or(0.0, |facts| facts.weights_bytes as f64);
    "jackalope_rank_silent_seconds", "Time since the last message from the rank." =>
        it.last_message_at.map_or(f64::NAN, |at| at.elapsed().as_secs_f64());
    "jackalope_rank_round_trip_seconds", "Round-trip time of a message to the rank." =>
        it.round_trip.map_or(f64::NAN, |it| it.as_secs_f64());
    "jackalope_rank_steps_total", "Steps computed by the rank." => it.steps;
    "jackalope_rank_step_seconds_total", "Seconds in steps." => it.timings.total_us as f64 / 1e6;
    "jackalope_rank_collectives_seconds_total", "Seconds in collectives." =>
        it.timings.collectives_us as f64 / 1e6;
    "jackalope_rank_waiting_seconds_total", "Seconds in collectives spent waiting for other ranks." =>
        it.timings.waiting_us as f64 / 1e6;
    "jackalope_rank_sent_bytes_total", "Bytes sent to other ranks." => it.timings.sent_bytes;
    "jackalope_rank_received_bytes_total", "Bytes received from other ranks." =>
        it.timings.received_bytes;
    "jackalope_rank_sampling_seconds_total", "Seconds in sampling." =>
        it.timings.sampling_us as f64 / 1e6;
    "jackalope_rank_planning_seconds_total", "Seconds building graphs." =>
        it.timings.planning_us as f64 / 1e6;
    "jackalope_rank_graph_nodes_total", "Operations added to graphs." => it.timings.host.nodes;
    "jackalope_rank_device_waits_total", "Times that the rank's host waited for its device." =>
        it.timings.host.device_waits;
    "jackalope_rank_device_wait_seconds_total",
    "Seconds in which the rank's host waited for its device, if it submits steps ahead." =>
        it.timings.host.device_wait_us as f64 / 1e6;
    "jackalope_rank_copied_bytes_total",
    "Bytes that the rank's host wrote into arrays and read from them." =>
        it.timings.host.copied_bytes;
};

/// Everything that the metrics of the whole server are computed from.
pub(super) struct ServerMetrics {
    pub(super) totals: Totals,
    pub(super) models: Vec<ModelMetrics>,
    pub(super) uptime_seconds: f64,
}

impl ServerMetrics {
    fn ended_tokens(&self) -> u64 {
        self.totals.models.values().map(|it| it.completion_tokens).sum()
    }
}

/// Metrics of the whole server, without labels.
pub(super) const SERVER: &[Family<ServerMetrics>] = metrics! { it: ServerMetrics;
    "mlx_cluster_requests_total", "Requests answered." =>
        it.totals.models.values().map(ModelTotals::num_ended).sum::<u64>();
    "mlx_cluster_tokens_generated_total", "Tokens of ended requests." => it.ended_tokens();
    "mlx_cluster_tokens_per_second", "Mean rate of a request." =>
        per_second(it.ended_tokens(), it.totals.models.values().map(|it| it.wall_seconds).sum());
    "mlx_cluster_queue_depth", "Requests waiting to be computed." =>
        it.models.iter().map(|it| it.status.queued).sum::<usize>();
    "vllm_mlx_engine_uptime_seconds", "Time since the start." => it.uptime_seconds;
    "jackalope_uptime_seconds", "Time since the start." => it.uptime_seconds;
    "vllm_mlx_model_registry_entries", "Models served." => it.models.len();
    "vllm_mlx_http_requests_in_flight", "HTTP requests being answered." => it.totals.http_open;
    "jackalope_errors_total", "Errors of the server, and requests refused for lack of capacity." =>
        it.totals.num_errors;
    "jackalope_request_log_dropped_total", "Lines that the request log dropped." =>
        it.totals.log_dropped.unwrap_or(0);
    "jackalope_spans_dropped_total", "Spans that were not exported." =>
        it.totals.spans_dropped.unwrap_or(0);
};

/// Memory by kind, summed over the ranks of a model.
pub(super) fn metal_memory(status: &Status) -> [(&'static str, f64); 3] {
    let memory = memory_of(status);
    [
        ("active", memory.active as f64),
        ("cache", memory.cache as f64),
        ("limit", memory.total as f64),
    ]
}

/// Number of choices by the reason they ended for, in vLLM's categories.
pub(super) fn finish_reasons(totals: &ModelTotals) -> [(&'static str, f64); 3] {
    let finishes = &totals.finishes;
    [
        ("stop", (finishes.stop + finishes.tool_calls) as f64),
        ("length", finishes.length as f64),
        ("abort", finishes.abort as f64),
    ]
}

/// Number of answers by how they ended.
pub(super) fn endings(totals: &ModelTotals) -> impl Iterator<Item = (&'static str, f64)> {
    AnswerEnding::NAMES.into_iter().zip(totals.endings.map(|it| it as f64))
}
