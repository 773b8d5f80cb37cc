//! The overview of the cluster: machines, ranks, links, memory, rates, recoveries and models, in one
//! answer.

use std::collections::BTreeMap;
use std::time::Instant;

use jackalope_engine::{EngineState, MachineHeat, RankStatus, Status};
use jackalope_serving::ids::unix_time;
use jackalope_serving::memory::MemoryUse;
use jackalope_serving::models::ModelStatus;
use jackalope_serving::numbers::rounded;
use jackalope_serving::state::ServingState;
use serde_json::{Value, json};

use crate::activity::Activity;

/// Name of the machine of ranks that run beside the coordinator.
const HERE: &str = "this machine";

/// Returns the overview, with the last `num_samples` samples of the rates.
pub fn overview(state: &ServingState, activity: &Activity, num_samples: usize) -> Value {
    let now = Instant::now();
    let models = state.models().list();
    let engines: Vec<(&ModelStatus, Status)> =
        models.iter().map(|model| (model, model.engine_status())).collect();
    let sum = |of: fn(&Status) -> usize| engines.iter().map(|(_, it)| of(it)).sum::<usize>();
    json!({
        "time": rounded(unix_time(), 3),
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_s": now.duration_since(state.started_at()).as_secs(),
        "default_model": state.default_model().id,
        "running": sum(|it| it.running),
        "running_max": sum(|it| it.running_max),
        "waiting": sum(|it| it.queued),
        "waiting_max": sum(|it| it.queue_max),
        "open_streams": state.num_open_streams(),
        "samples": activity.samples(num_samples),
        "recoveries": activity.recoveries(),
        "machines": machines(&engines, now),
        "links": links(&engines, now),
        "models": engines.iter().map(|(model, status)| model_json(model, status, now)).collect::<Vec<_>>(),
    })
}

/// Returns temperature, power and GPU load of the machines that report them, each with its host.
pub fn heat_json(status: &Status) -> Vec<Value> {
    let object = |it: &MachineHeat| {
        json!({
            "host": Some(&it.host).filter(|host| !host.is_empty()),
            "thermal": it.heat.thermal.map(|thermal| thermal.to_string()),
            "cpu_watts": it.heat.cpu_watts,
            "gpu_watts": it.heat.gpu_watts,
            "gpu_percent": it.heat.gpu_percent,
        })
    };
    status.heat.iter().map(object).collect()
}

fn host_of(rank: &RankStatus) -> &str {
    named(&rank.host)
}

/// Returns the name of a machine for people.
fn named(host: &str) -> &str {
    if host.is_empty() { HERE } else { host }
}

/// The machines, by name, with the ranks of all models on them.
fn machines(engines: &[(&ModelStatus, Status)], now: Instant) -> Vec<Value> {
    #[derive(Default)]
    struct Machine {
        memory: MemoryUse,
        free: Option<u64>,
        ranks: Vec<Value>,
    }
    let mut machines: BTreeMap<&str, Machine> = BTreeMap::new();
    for (model, status) in engines {
        for (rank, it) in status.ranks.iter().enumerate() {
            let machine = machines.entry(host_of(it)).or_default();
            machine.memory = machine.memory.plus(MemoryUse::of_rank(it));
            let free = it.facts.as_ref().map(|facts| facts.free_bytes).filter(|free| 0 < *free);
            machine.free = machine.free.into_iter().chain(free).min();
            machine.ranks.push(rank_json(&model.id, rank, it, now));
        }
    }
    // All engines receive the same readings of a machine.
    let heat_of = |name: &str| {
        let all = engines.iter().flat_map(|(_, status)| &status.heat);
        let mut of_machine = all.filter(|it| named(&it.host) == name);
        of_machine.next().map(|it| it.heat).unwrap_or_default()
    };
    let entry = |(name, it): (&str, Machine)| {
        let heat = heat_of(name);
        let total = it.free.map(|free| free + it.memory.weights);
        json!({
            "name": name,
            "weights_bytes": it.memory.weights,
            "kv_bytes": it.memory.kv,
            "active_bytes": it.memory.active,
            "reusable_bytes": it.memory.cache,
            "total_bytes": total,
            "thermal": heat.thermal.map(|it| it.to_string()),
            "cpu_watts": heat.cpu_watts,
            "gpu_watts": heat.gpu_watts,
            "gpu_percent": heat.gpu_percent,
            "ranks": it.ranks,
        })
    };
    machines.into_iter().map(entry).collect()
}

fn rank_json(model: &str, rank: usize, it: &RankStatus, now: Instant) -> Value {
    let facts = it.facts.as_ref();
    let silent = it.last_message_at.map(|at| now.saturating_duration_since(at).as_secs_f64());
    let loaded = it.loaded_bytes.map(|(done, total)| json!({"done": done, "total": total}));
    json!({
        "model": model,
        "rank": rank,
        "pid": it.pid,
        "phase": it.phase,
        "silent_s": silent.map(|it| rounded(it, 1)),
        "round_trip_us": it.round_trip.map(|it| it.as_micros() as u64),
        "loaded_bytes": loaded,
        "device": facts.map(|facts| &facts.device),
        "transport": it.transport.as_ref().map(|it| it.backend),
        "rdma": it.transport.as_ref().map(|it| &it.rdma),
        "architecture": facts.map(|facts| &facts.architecture),
        "num_layers": facts.map(|facts| facts.num_layers),
        "layers": facts.map(|facts| [facts.layers.start, facts.layers.end]),
        "heads": facts.map(|facts| [facts.heads.start, facts.heads.end]),
        "weights_bytes": facts.map(|facts| facts.weights_bytes),
        "load_ms": facts.map(|facts| facts.load_ms),
        "kv_bytes": it.memory.kv_bytes,
        "active_bytes": it.memory.active_bytes,
        "resident_bytes": it.memory.resident_bytes,
        "steps": it.steps,
        "computing_us": it.timings.total_us,
        "communicating_us": it.timings.collectives_us,
        "waiting_us": it.timings.waiting_us,
        "sent_bytes": it.timings.sent_bytes,
        "received_bytes": it.timings.received_bytes,
    })
}

/// The links between the ranks of each model, with the mean rate of their traffic: that of the slower
/// end, because a rank counts its traffic with all others together.
fn links(engines: &[(&ModelStatus, Status)], now: Instant) -> Vec<Value> {
    let mut links = Vec::new();
    for (model, status) in engines {
        for (from, one) in status.ranks.iter().enumerate() {
            for (to, other) in status.ranks.iter().enumerate().skip(from + 1) {
                let rates = [one, other].map(gbps);
                links.push(json!({
                    "model": model.id,
                    "ranks": [from, to],
                    "machines": [host_of(one), host_of(other)],
                    "encrypted": one.encrypts.get(to).copied(),
                    "gbps": rates[0].zip(rates[1]).map(|(one, other)| rounded(one.min(other), 3)),
                    "broken": null,
                }));
            }
        }
        for broken in &status.broken_links {
            links.push(json!({
                "model": model.id,
                "between": broken.between,
                "broken": {
                    "reason": broken.reason,
                    "seconds": now.saturating_duration_since(broken.since).as_secs(),
                },
            }));
        }
    }
    links
}

/// Gigabits per second that a rank sent and received while it communicated; none without traffic.
fn gbps(rank: &RankStatus) -> Option<f64> {
    let bytes = rank.timings.sent_bytes + rank.timings.received_bytes;
    let busy_us = rank.timings.collectives_us.saturating_sub(rank.timings.waiting_us);
    (bytes != 0 && busy_us != 0).then(|| bytes as f64 * 8.0 / 1e3 / busy_us as f64)
}

fn model_json(model: &ModelStatus, status: &Status, now: Instant) -> Value {
    let down = match &status.state {
        EngineState::Recovering { since, failure } | EngineState::Failed { since, failure } => {
            let seconds = now.saturating_duration_since(*since).as_secs_f64();
            json!({"seconds": rounded(seconds, 1), "cause": failure.to_string(), "rank": failure.rank})
        }
        EngineState::Starting | EngineState::Ready | EngineState::Stopping => Value::Null,
    };
    let details = model.details.as_ref();
    let limits = status.limits.as_ref();
    let loaded = model.loaded_bytes.map(|(done, total)| json!({"done": done, "total": total}));
    json!({
        "id": model.id,
        "aliases": model.aliases,
        "state": model.state,
        "is_default": model.is_default,
        "is_pinned": model.is_pinned,
        "failure": model.failure,
        "down": down,
        "loaded_bytes": loaded,
        "open_requests": model.num_open,
        "waiting_for_load": model.num_waiting,
        "expires_in_s": model.expires_in.map(|it| it.as_secs()),
        "load_s": model.load_time.map(|it| rounded(it.as_secs_f64(), 2)),
        "context_tokens": limits.map(|it| it.context_tokens),
        "num_ranks": status.ranks.len(),
        "details": details.map(|it| json!({
            "family": it.family,
            "num_parameters": it.num_parameters,
            "weight_bits": it.weight_bits,
            "weights_bytes": it.weights_bytes,
        })),
        "running": status.running,
        "waiting": status.queued,
        "kv": {
            "running_bytes": status.kv.running_bytes,
            "kept_bytes": status.kv.kept_bytes,
            "budget_bytes": status.kv.budget_bytes,
            "bytes_per_token": status.kv.bytes_per_token,
        },
        "prefix": {
            "queried_tokens": status.prefix.wanted_tokens,
            "found_tokens": status.prefix.found_tokens,
        },
        "pressure": {
            "tier": status.pressure.reading.tier.name(),
            "machine": Some(&status.pressure.reading.host).filter(|it| !it.is_empty()),
            "free_bytes": Some(status.pressure.reading.free_bytes).filter(|it| 0 < *it),
        },
        "counters": {
            "requests": status.counters.requests,
            "sampled_tokens": status.counters.sampled_tokens,
            "prompt_tokens": status.counters.prompt_tokens,
            "recoveries": status.counters.recoveries,
            "preemptions": status.counters.preemptions,
        },
    })
}
