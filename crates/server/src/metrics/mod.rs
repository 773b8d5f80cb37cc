//! `GET /metrics`: metrics for Prometheus.
//!
//! ```text
//!  engine Status ─┐
//!  journal Totals ┴─▶ families (name, help, number) ─▶ exposition (text 0.0.4)
//! ```

mod exposition;
mod families;

use axum::extract::State;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use jackalope_protocol::KV_BLOCK_TOKENS;

use crate::state::ServerState;
use exposition::{Exposition, Kind};
use families::{Family, MODEL, MODEL_HISTOGRAMS, ModelMetrics, RANK, SERVER};
use jackalope_serving::caller::ApiCaller;
use jackalope_serving::journal::{HttpTotals, Totals};

/// Content type of the text format.
const TEXT_0_0_4: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Value of the label `engine`: vLLM's number for the only engine of a server.
const ENGINE: &str = "0";

/// Returns all metrics for Prometheus: `vllm:*`, `llamacpp:*`, `vllm_mlx_*`,
/// `mlx_cluster_*`, and `jackalope_*` for ranks, steps, links, recoveries, keys and HTTP.
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "state",
    responses((status = 200, description = "Prometheus text.", body = String, content_type = "text/plain")),
)]
pub(crate) async fn metrics(State(state): State<ServerState>) -> Response {
    let mut response = text(&state).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(TEXT_0_0_4));
    response
}

fn text(state: &ServerState) -> String {
    let totals = state.journal().totals();
    let loaded = state.models().list().into_iter().filter(|model| model.model.is_some());
    let seen: Vec<ModelMetrics> = loaded
        .map(|model| ModelMetrics {
            totals: totals.models.get(&model.id).cloned().unwrap_or_default(),
            status: model.engine_status(),
            name: model.id,
        })
        .collect();
    let mut text = Exposition::default();
    push_models(&mut text, &seen);
    push_infos(&mut text, &seen);
    push_ranks(&mut text, &seen);
    push_labelled(&mut text, &seen);
    push_http(&mut text, &totals);
    push_keys(&mut text, &totals);
    if let Some(num_dropped) = state.config().log_lines_dropped {
        let name = "jackalope_log_lines_dropped_total";
        text.family(name, Kind::Counter, "Lines of the log that nobody read, and were dropped.");
        text.sample(name, &[], num_dropped() as f64);
    }
    let server = (totals, seen, state.started_at().elapsed().as_secs_f64());
    for Family { name, kind, help, value } in SERVER {
        text.family(name, *kind, help);
        text.sample(name, &[], value(&server));
    }
    text.finish()
}

fn push_models(text: &mut Exposition, seen: &[ModelMetrics]) {
    for Family { name, kind, help, value } in MODEL {
        text.family(name, *kind, help);
        for model in seen {
            let labels = [("model_name", model.name.as_str()), ("engine", ENGINE)];
            text.sample(name, &labels, value(model));
        }
    }
    let name = "jackalope_prefix_misses_total";
    let help = "Requests whose prompt was not taken from the cache as far as possible.";
    text.family(name, Kind::Counter, help);
    for model in seen {
        for (reason, count) in model.status.prefix.misses() {
            let model_name = ("model_name", model.name.as_str());
            let labels = [model_name, ("engine", ENGINE), ("reason", reason.name())];
            text.sample(name, &labels, count as f64);
        }
    }
    for family in MODEL_HISTOGRAMS {
        text.family(family.name, Kind::Histogram, family.help);
        for model in seen {
            let labels = [("model_name", model.name.as_str()), ("engine", ENGINE)];
            text.histogram(family.name, &labels, (family.value)(model));
        }
    }
}

/// Writes families whose information is in the labels; their value is always 1.
fn push_infos(text: &mut Exposition, seen: &[ModelMetrics]) {
    let blocks =
        |it: &ModelMetrics| (it.status.kv.capacity_tokens / u64::from(KV_BLOCK_TOKENS)).to_string();
    type Labels = fn(&ModelMetrics, &str) -> Vec<(&'static str, String)>;
    let infos: [(&str, &str, Labels); 3] = [
        ("vllm:cache_config_info", "How the cache is made.", |_, blocks| {
            let block_size = KV_BLOCK_TOKENS.to_string();
            vec![("block_size", block_size), ("num_gpu_blocks", blocks.to_owned())]
        }),
        ("vllm_mlx_engine_type", "How requests are computed.", |_, _| {
            vec![("engine_type", "batched".to_owned())]
        }),
        ("vllm_mlx_cache_type", "What is kept of requests.", |_, _| {
            vec![("cache_type", "prefix".to_owned())]
        }),
    ];
    for (name, help, labels) in infos {
        text.family(name, Kind::Gauge, help);
        for model in seen {
            let labels = labels(model, &blocks(model));
            let own = labels.iter().map(|(name, value)| (*name, value.as_str()));
            let common = [("model_name", model.name.as_str()), ("engine", ENGINE)];
            let all: Vec<(&str, &str)> = common.into_iter().chain(own).collect();
            text.sample(name, &all, 1.0);
        }
    }
}

fn push_ranks(text: &mut Exposition, seen: &[ModelMetrics]) {
    for Family { name, kind, help, value } in RANK {
        text.family(name, *kind, help);
        for model in seen {
            for (rank_idx, rank) in model.status.ranks.iter().enumerate() {
                let rank_name = rank_idx.to_string();
                let labels = [
                    ("model_name", model.name.as_str()),
                    ("rank", rank_name.as_str()),
                    ("host", rank.host.as_str()),
                ];
                text.sample(name, &labels, value(rank));
            }
        }
    }
}

/// Writes families with one more label than the model's name.
fn push_labelled(text: &mut Exposition, seen: &[ModelMetrics]) {
    type Values = fn(&ModelMetrics) -> Vec<(&'static str, f64)>;
    let labelled: [(&str, Kind, &str, &str, Values); 4] = [
        (
            "vllm:request_success_total",
            Kind::Counter,
            "Choices that ended.",
            "finished_reason",
            |it| families::finish_reasons(&it.totals).to_vec(),
        ),
        (
            "vllm_mlx_inference_requests_total",
            Kind::Counter,
            "Requests that ended.",
            "result",
            |it| families::endings(&it.totals).collect(),
        ),
        ("vllm_mlx_metal_memory_bytes", Kind::Gauge, "Memory over all ranks.", "kind", |it| {
            families::metal_memory(&it.status).to_vec()
        }),
        (
            "jackalope_step_interval_seconds",
            Kind::Gauge,
            "Time from one answer of the ranks to the next one.",
            "quantile",
            |it| {
                let of = |quantile| it.status.steps.interval_us.quantile(quantile) as f64 / 1e6;
                vec![("0.5", of(0.5)), ("0.99", of(0.99))]
            },
        ),
    ];
    for (name, kind, help, label, values) in labelled {
        text.family(name, kind, help);
        for model in seen {
            for (word, value) in values(model) {
                text.sample(name, &[("model_name", &model.name), (label, word)], value);
            }
        }
    }
}

fn push_http(text: &mut Exposition, totals: &Totals) {
    type Names = [&'static str; 3];
    let counters: [(&str, Names); 3] = [
        ("http_requests_total", ["method", "handler", "status"]),
        ("vllm_mlx_http_requests_total", ["method", "path", "status_code"]),
        ("jackalope_http_requests_total", ["method", "path", "status"]),
    ];
    let labels = |names: Names, class: &jackalope_serving::journal::HttpClass| {
        let (method, path, status) = class;
        names
            .into_iter()
            .zip([(*method).to_owned(), path.clone(), status.to_string()])
            .collect::<Vec<(&'static str, String)>>()
    };
    fn borrowed<'a>(labels: &'a [(&'static str, String)]) -> Vec<(&'static str, &'a str)> {
        labels.iter().map(|(name, value)| (*name, value.as_str())).collect()
    }
    for (name, names) in counters {
        text.family(name, Kind::Counter, "HTTP requests answered.");
        for (class, HttpTotals { seconds }) in &totals.http {
            text.sample(name, &borrowed(&labels(names, class)), seconds.count() as f64);
        }
    }
    let histograms: [(&str, Names); 3] = [
        ("http_request_duration_seconds", counters[0].1),
        ("vllm_mlx_http_request_duration_seconds", counters[1].1),
        ("jackalope_http_request_duration_seconds", counters[2].1),
    ];
    for (name, names) in histograms {
        text.family(name, Kind::Histogram, "From the head of a request to the end of its answer.");
        for (class, HttpTotals { seconds }) in &totals.http {
            text.histogram(name, &borrowed(&labels(names, class)), seconds);
        }
    }
}

fn push_keys(text: &mut Exposition, totals: &Totals) {
    type Value = fn(&jackalope_serving::journal::KeyTotals) -> u64;
    let families: [(&str, &str, Value); 4] = [
        ("jackalope_key_requests_total", "Requests answered.", |it| it.requests),
        ("jackalope_key_prompt_tokens_total", "Prompt tokens.", |it| it.prompt_tokens),
        ("jackalope_key_completion_tokens_total", "Tokens drawn.", |it| it.completion_tokens),
        ("jackalope_key_limited_total", "Requests over a limit of the key.", |it| it.limited),
    ];
    let caller = ApiCaller::current();
    for (name, help, value) in families {
        text.family(name, Kind::Counter, help);
        for (key, key_totals) in totals.keys.iter().filter(|(key, _)| caller.sees(Some(key))) {
            text.sample(name, &[("key", key)], value(key_totals) as f64);
        }
    }
}
