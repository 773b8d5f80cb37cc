//! Metrics of the engines and the journal, for Prometheus.
//!
//! ```text
//!  engine Status ─┐
//!  journal Totals ┴─▶ families (name, help, number) ─▶ exposition (text 0.0.4)
//! ```

mod exposition;
mod families;

use jackalope_engine::Buckets;
use jackalope_protocol::KV_BLOCK_TOKENS;

use crate::caller::ApiCaller;
use crate::journal::{HttpClass, HttpTotals, KeyTotals, Totals};
use crate::state::ServingState;
use exposition::{Exposition, Kind};
use families::{
    Family, HISTOGRAM_ALIASES, HistogramFamily, MODEL, MODEL_ALIASES, MODEL_HISTOGRAMS,
    ModelMetrics, RANK, SERVER, ServerMetrics,
};

/// Value of the label `engine`: vLLM's number for the only engine of a server.
const ENGINE: &str = "0";

/// Writes all metrics in Prometheus' text format 0.0.4. `log_lines_dropped` is the number of lines
/// that the program's log has dropped, if it counts them.
pub fn text(state: &ServingState, log_lines_dropped: Option<u64>) -> String {
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
    if let Some(num_dropped) = log_lines_dropped {
        let name = "jackalope_log_lines_dropped_total";
        text.family(name, Kind::Counter, "Log lines dropped because the queue was full.");
        text.sample(name, &[], num_dropped as f64);
    }
    let uptime_seconds = state.started_at().elapsed().as_secs_f64();
    let server = ServerMetrics { totals, models: seen, uptime_seconds };
    for Family { name, help, value } in SERVER {
        text.family(name, Kind::of(name), help);
        text.sample(name, &[], value(&server));
    }
    text.finish()
}

fn push_models(text: &mut Exposition, seen: &[ModelMetrics]) {
    let mut push = |name: &str, help: &str, value: fn(&ModelMetrics) -> f64| {
        text.family(name, Kind::of(name), help);
        for model in seen {
            text.sample(name, &[("model_name", &model.name), ("engine", ENGINE)], value(model));
        }
    };
    for Family { name, help, value } in MODEL {
        push(name, help, *value);
    }
    for (alias, original) in MODEL_ALIASES {
        let family = MODEL.iter().find(|it| it.name == *original);
        push(alias, &format!("As {original}."), family.expect("an alias has an original").value);
    }
    push_misses(text, seen);
    let mut push = |name: &str, help: &str, value: fn(&ModelMetrics) -> &Buckets| {
        text.family(name, Kind::Histogram, help);
        for model in seen {
            text.histogram(name, &[("model_name", &model.name), ("engine", ENGINE)], value(model));
        }
    };
    for HistogramFamily { name, help, value } in MODEL_HISTOGRAMS {
        push(name, help, *value);
    }
    for (alias, original) in HISTOGRAM_ALIASES {
        let family = MODEL_HISTOGRAMS.iter().find(|it| it.name == *original);
        push(alias, &format!("As {original}."), family.expect("an alias has an original").value);
    }
}

fn push_misses(text: &mut Exposition, seen: &[ModelMetrics]) {
    let name = "jackalope_prefix_misses_total";
    text.family(
        name,
        Kind::Counter,
        "Requests whose prompt was not completely found in the cache.",
    );
    for model in seen {
        for (reason, count) in model.status.prefix.misses() {
            let labels = [
                ("model_name", model.name.as_str()),
                ("engine", ENGINE),
                ("reason", reason.name()),
            ];
            text.sample(name, &labels, count as f64);
        }
    }
}

/// Writes families whose information is in the labels; their value is always 1.
fn push_infos(text: &mut Exposition, seen: &[ModelMetrics]) {
    let blocks =
        |it: &ModelMetrics| (it.status.kv.capacity_tokens / u64::from(KV_BLOCK_TOKENS)).to_string();
    type Labels = fn(&ModelMetrics, &str) -> Vec<(&'static str, String)>;
    let infos: [(&str, &str, Labels); 3] = [
        ("vllm:cache_config_info", "Configuration of the KV cache.", |_, blocks| {
            let block_size = KV_BLOCK_TOKENS.to_string();
            vec![("block_size", block_size), ("num_gpu_blocks", blocks.to_owned())]
        }),
        ("vllm_mlx_engine_type", "Kind of engine.", |_, _| {
            vec![("engine_type", "batched".to_owned())]
        }),
        ("vllm_mlx_cache_type", "Kind of cache.", |_, _| vec![("cache_type", "prefix".to_owned())]),
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
    for Family { name, help, value } in RANK {
        text.family(name, Kind::of(name), help);
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
    let labelled: [(&str, &str, &str, Values); 4] = [
        ("vllm:request_success_total", "Choices that ended.", "finished_reason", |it| {
            families::finish_reasons(&it.totals).to_vec()
        }),
        ("vllm_mlx_inference_requests_total", "Requests that ended.", "result", |it| {
            families::endings(&it.totals).collect()
        }),
        ("vllm_mlx_metal_memory_bytes", "Memory over all ranks.", "kind", |it| {
            families::metal_memory(&it.status).to_vec()
        }),
        (
            "jackalope_step_interval_seconds",
            "Time between the outputs of two steps.",
            "quantile",
            |it| {
                let of = |quantile| it.status.steps.interval_us.quantile(quantile) as f64 / 1e6;
                vec![("0.5", of(0.5)), ("0.99", of(0.99))]
            },
        ),
    ];
    for (name, help, label, values) in labelled {
        text.family(name, Kind::of(name), help);
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
    let labels = |names: Names, class: &HttpClass| {
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
        text.family(
            name,
            Kind::Histogram,
            "Time from the head of a request to the end of its answer.",
        );
        for (class, HttpTotals { seconds }) in &totals.http {
            text.histogram(name, &borrowed(&labels(names, class)), seconds);
        }
    }
}

fn push_keys(text: &mut Exposition, totals: &Totals) {
    type Value = fn(&KeyTotals) -> u64;
    let families: [(&str, &str, Value); 4] = [
        ("jackalope_key_requests_total", "Requests answered.", |it| it.requests),
        ("jackalope_key_prompt_tokens_total", "Prompt tokens.", |it| it.prompt_tokens),
        ("jackalope_key_completion_tokens_total", "Tokens sampled.", |it| it.completion_tokens),
        ("jackalope_key_limited_total", "Requests refused because of a limit of the key.", |it| {
            it.limited
        }),
    ];
    let caller = ApiCaller::current();
    for (name, help, value) in families {
        text.family(name, Kind::Counter, help);
        for (key, key_totals) in totals.keys.iter().filter(|(key, _)| caller.sees(Some(key))) {
            text.sample(name, &[("key", key)], value(key_totals) as f64);
        }
    }
}
