//! What `top` shows of a server, from its health report and its counters.

use std::fmt::Write;

use serde_json::{Value, json};

/// State of a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overview {
    pub(crate) url: String,
    pub(crate) version: String,
    pub(crate) status: String,
    /// Why the server is not healthy.
    pub(crate) reason: Option<String>,
    pub(crate) uptime_seconds: u64,
    pub(crate) model: String,
    pub(crate) running: u64,
    pub(crate) running_max: u64,
    pub(crate) waiting: u64,
    pub(crate) waiting_max: u64,
    /// Tokens per second of the last minute: average and peak.
    pub(crate) average_speed: f64,
    pub(crate) peak_speed: f64,
    /// Number of tokens sampled since the start.
    pub(crate) num_tokens: u64,
    pub(crate) num_requests: u64,
    pub(crate) num_errors: u64,
    pub(crate) num_recoveries: u64,
    pub(crate) kv_used_bytes: u64,
    pub(crate) kv_budget_bytes: u64,
    pub(crate) ranks: Vec<RankRow>,
    /// Temperature, power and GPU load of the machines that report them, as sentences.
    pub(crate) machines: Vec<String>,
    /// Models besides the default one, with their states.
    pub(crate) others: Vec<String>,
    /// Broken links, as sentences.
    pub(crate) links: Vec<String>,
}

/// A rank, as a row of the table.
#[derive(Clone, Debug, Default)]
pub(crate) struct RankRow {
    pub(crate) rank: u64,
    pub(crate) host: String,
    pub(crate) phase: String,
    /// The part of the model that the rank holds.
    pub(crate) part: String,
    pub(crate) weights_bytes: u64,
    pub(crate) kv_bytes: u64,
    pub(crate) free_bytes: u64,
    pub(crate) round_trip_us: Option<u64>,
    pub(crate) silent_ms: u64,
    /// Percentage of the steps' time that the rank spends in collectives.
    pub(crate) collectives_percent: f64,
    /// Transport of the collectives and its RDMA devices; empty if there is no other rank.
    pub(crate) transport: String,
}

impl Overview {
    pub(crate) fn new(url: &str, health: &Value, snapshot: &Value) -> Overview {
        let text = |key: &str| health[key].as_str().unwrap_or_default().to_owned();
        let number = |key: &str| health[key].as_u64().unwrap_or_default();
        let counted = |key: &str| snapshot[key].as_u64().unwrap_or_default();
        let speed = |key: &str| snapshot[key].as_f64().unwrap_or_default();
        let list = |key: &str| health[key].as_array().cloned().unwrap_or_default();
        let kv = |key: &str| health["kv"][key].as_u64().unwrap_or_default();
        let models = list("models");
        let others = models.iter().filter(|it| it["default"] != true);
        Overview {
            url: url.to_owned(),
            version: text("version"),
            status: text("status"),
            reason: health["reason"].as_str().map(str::to_owned),
            uptime_seconds: number("uptime_seconds"),
            model: text("model"),
            running: number("running"),
            running_max: number("running_max"),
            waiting: number("queue_size"),
            waiting_max: number("queue_max"),
            average_speed: speed("avg_tps_60s"),
            peak_speed: speed("peak_tps_60s"),
            num_tokens: counted("sampled_tokens"),
            num_requests: counted("total_requests"),
            num_errors: counted("error_count"),
            num_recoveries: number("recoveries"),
            kv_used_bytes: kv("running_bytes"),
            kv_budget_bytes: kv("budget_bytes"),
            ranks: list("ranks").iter().map(RankRow::new).collect(),
            machines: list("machines").iter().filter_map(heat).collect(),
            others: others
                .map(|it| format!("{}: {}", plain(&it["id"]), plain(&it["state"])))
                .collect(),
            links: list("broken_links").iter().map(link).collect(),
        }
    }

    /// Returns the state as JSON.
    pub(crate) fn json(&self) -> Value {
        let rank = |it: &RankRow| {
            json!({
                "rank": it.rank, "host": it.host, "phase": it.phase, "part": it.part,
                "weights_bytes": it.weights_bytes, "kv_bytes": it.kv_bytes,
                "free_bytes": it.free_bytes, "round_trip_us": it.round_trip_us,
                "silent_ms": it.silent_ms, "collectives_percent": it.collectives_percent,
                "transport": it.transport,
            })
        };
        json!({
            "url": self.url, "version": self.version, "status": self.status, "reason": self.reason,
            "uptime_seconds": self.uptime_seconds, "model": self.model,
            "running": self.running, "running_max": self.running_max,
            "waiting": self.waiting, "waiting_max": self.waiting_max,
            "tokens_per_second": {"average": self.average_speed, "peak": self.peak_speed},
            "tokens": self.num_tokens, "requests": self.num_requests, "errors": self.num_errors,
            "recoveries": self.num_recoveries,
            "kv": {"used_bytes": self.kv_used_bytes, "budget_bytes": self.kv_budget_bytes},
            "ranks": self.ranks.iter().map(rank).collect::<Vec<_>>(),
            "machines": self.machines, "other_models": self.others, "broken_links": self.links,
        })
    }

    /// Returns the first line: the server's URL, its model, its state with the reason, and its
    /// uptime.
    pub(crate) fn title(&self) -> String {
        let Overview { url, model, status, uptime_seconds: up, .. } = self;
        let (hours, minutes, seconds) = (up / 3600, up / 60 % 60, up % 60);
        let reason = self.reason.as_ref().map(|it| format!(" ({it})")).unwrap_or_default();
        format!("{url}  {model}  {status}{reason}  up {hours}:{minutes:02}:{seconds:02}")
    }

    /// Returns the counters as one line.
    pub(crate) fn counters(&self) -> String {
        format!(
            "{} requests, {} errors, {} tokens, {} recoveries",
            self.num_requests, self.num_errors, self.num_tokens, self.num_recoveries
        )
    }

    /// Returns the state for people, without a screen.
    pub(crate) fn text(&self) -> String {
        let mut text = self.title();
        let mut add = |line: String| write!(text, "\n{line}").expect("text takes all");
        add(format!(
            "{:.1} tokens/s in the last minute, at most {:.1}",
            self.average_speed, self.peak_speed
        ));
        add(format!(
            "{} of {} running, {} of {} waiting; {}",
            self.running,
            self.running_max,
            self.waiting,
            self.waiting_max,
            self.counters()
        ));
        add(format!("KV cache {} of {}", size(self.kv_used_bytes), size(self.kv_budget_bytes)));
        for rank in &self.ranks {
            add(format!("{}: {}", rank.cells()[0], rank.cells()[1..].join(", ")));
        }
        for line in self.machines.iter().chain(&self.others).chain(&self.links) {
            add(line.clone());
        }
        text
    }
}

impl RankRow {
    /// Names of the columns.
    pub(crate) const HEADS: [&str; 10] = [
        "rank",
        "machine",
        "state",
        "holds",
        "weights",
        "KV",
        "free",
        "round trip",
        "collectives",
        "transport",
    ];

    fn new(rank: &Value) -> RankRow {
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        let facts = &rank["facts"];
        let range = |key: &str| {
            let range = &facts[key];
            match (range["start"].as_u64()?, range["end"].as_u64()?) {
                (start, end) if start < end => Some(format!("{start}–{}", end - 1)),
                _ => Some("none".to_owned()),
            }
        };
        let parts = [("layers", range("layers")), ("heads", range("heads"))];
        let part: Vec<String> = parts
            .into_iter()
            .filter_map(|(name, range)| Some(format!("{name} {}", range?)))
            .collect();
        let micros = |key: &str| rank[key].as_f64().unwrap_or_default();
        RankRow {
            rank: number(&rank["rank"]),
            host: if rank["host"].is_string() { plain(&rank["host"]) } else { "here".to_owned() },
            phase: plain(&rank["phase"]),
            part: part.join(", "),
            weights_bytes: number(&facts["weights_bytes"]),
            kv_bytes: number(&rank["memory"]["kv_bytes"]),
            free_bytes: number(&facts["free_bytes"]),
            round_trip_us: rank["round_trip_us"].as_u64(),
            silent_ms: number(&rank["silent_ms"]),
            transport: transport(rank),
            collectives_percent: 100.0 * micros("collectives_us") / micros("total_us").max(1.0),
        }
    }

    /// Returns the texts of the columns.
    pub(crate) fn cells(&self) -> [String; 10] {
        let trip = self.round_trip_us.map(|it| format!("{:.1} ms", it as f64 / 1000.0));
        // Below the interval of heartbeats, silence is normal.
        let silent = if self.silent_ms < 5000 {
            String::new()
        } else {
            format!(", silent {} s", self.silent_ms / 1000)
        };
        [
            format!("rank {}", self.rank),
            self.host.clone(),
            format!("{}{silent}", self.phase),
            self.part.clone(),
            size(self.weights_bytes),
            size(self.kv_bytes),
            size(self.free_bytes),
            trip.unwrap_or_else(|| "?".to_owned()),
            format!("{:.0} %", self.collectives_percent),
            self.transport.clone(),
        ]
    }
}

/// Returns a rank's transport and RDMA devices: `jaccl rdma_en5 rdma_en4`.
fn transport(rank: &Value) -> String {
    let devices = rank["rdma"].as_array().into_iter().flatten();
    let words = Some(&rank["transport"]).into_iter().chain(devices).filter(|it| it.is_string());
    words.map(plain).collect::<Vec<_>>().join(" ")
}

/// Returns what a machine reports: `mac1: 71 °C, GPU 591 W, GPU 98 %`.
fn heat(machine: &Value) -> Option<String> {
    let number = |name: &str, key: &str, unit: &str| {
        Some(format!("{name} {} {unit}", machine[key].as_u64()?))
    };
    let thermal = machine["thermal"].is_string().then(|| plain(&machine["thermal"]));
    let parts = [
        thermal,
        number("CPU", "cpu_watts", "W"),
        number("GPU", "gpu_watts", "W"),
        number("GPU", "gpu_percent", "%"),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let host = &machine["host"];
    let name = if host.is_string() { plain(host) } else { "here".to_owned() };
    (!parts.is_empty()).then(|| format!("{name}: {}", parts.join(", ")))
}

fn link(value: &Value) -> String {
    let (between, reason) = (plain(&value["between"]), plain(&value["reason"]));
    format!("{between} do not reach each other, for {} s: {reason}", value["seconds"])
}

/// Returns a text without control characters: names come from other machines, and a terminal obeys
/// them.
fn plain(value: &Value) -> String {
    value.as_str().unwrap_or("?").chars().filter(|it| !it.is_control()).collect()
}

fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while 1024.0 <= value && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn overview() -> Overview {
        let health = json!({
            "status": "recovering", "reason": "rank 1 died", "version": "1", "uptime_seconds": 3700,
            "model": "org/m", "running": 2, "running_max": 64, "queue_size": 3, "queue_max": 256,
            "recoveries": 1, "kv": {"running_bytes": 1 << 20, "budget_bytes": 1 << 30},
            "ranks": [
                {"rank": 0, "host": "mac1\u{1b}[2J", "phase": "idle", "silent_ms": 10,
                 "round_trip_us": 1500, "collectives_us": 30, "total_us": 60,
                 "transport": "jaccl", "rdma": ["rdma_en5", "rdma_en4\u{1b}[2J"],
                 "memory": {"kv_bytes": 2048},
                 "facts": {"weights_bytes": 3 << 20, "free_bytes": 5_u64 << 30,
                           "layers": {"start": 0, "end": 4}, "heads": {"start": 0, "end": 8}}},
                {"rank": 1, "host": null, "phase": "starting", "silent_ms": 9000},
            ],
            "models": [
                {"id": "org/m", "default": true, "state": "recovering"},
                {"id": "org/n", "default": false, "state": "unloaded"},
            ],
            "machines": [
                {"host": "mac1", "thermal": "71 °C", "cpu_watts": 65, "gpu_watts": 591,
                 "gpu_percent": 98},
                {"host": null, "thermal": "normal", "cpu_watts": null, "gpu_watts": null,
                 "gpu_percent": 0},
                {"host": "mac3", "thermal": null, "cpu_watts": null, "gpu_watts": null},
            ],
            "broken_links": [{"between": "a and b", "reason": "no answer", "seconds": 9}],
        });
        let snapshot = json!({
            "avg_tps_60s": 41.5, "peak_tps_60s": 60.0, "sampled_tokens": 900, "total_requests": 7,
            "error_count": 1,
        });
        Overview::new("http://h:1", &health, &snapshot)
    }

    #[test]
    fn a_state_is_reported_for_people_and_for_programs() {
        let text = overview().text();
        for part in [
            "http://h:1  org/m  recovering (rank 1 died)  up 1:01:40",
            "41.5 tokens/s in the last minute, at most 60.0",
            "2 of 64 running, 3 of 256 waiting",
            "KV cache 1.0 MiB of 1.0 GiB",
            "layers 0–3, heads 0–7, 3.0 MiB, 2.0 KiB, 5.0 GiB, 1.5 ms, 50 %, jaccl rdma_en5 rdma_en4[2J",
            "starting, silent 9 s",
            "mac1: 71 °C, CPU 65 W, GPU 591 W, GPU 98 %\nhere: normal, GPU 0 %\norg/n: unloaded",
            "a and b do not reach each other, for 9 s: no answer",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let report = overview().json();
        assert_eq!(report["ranks"][0]["weights_bytes"], 3 << 20);
        assert_eq!(report["ranks"][1]["transport"], "");
        assert_eq!(report["tokens_per_second"]["peak"], 60.0);
        assert_eq!(report["other_models"][0], "org/n: unloaded");
    }
}
