//! `jackalope status`: shows the server of this machine, its ranks, and the agents of its machines.

use std::process::ExitCode;

use jackalope_console::output;
use jackalope_deploy::agent::RECORD as AGENT_RECORD;
use jackalope_deploy::machines;
use jackalope_deploy::server_record::ServeRecord;
use jackalope_fleet::agent::Agent;
use jackalope_fleet::home::Home;
use jackalope_fleet::hostfile::Host;
use jackalope_fleet::nodes;
use jackalope_fleet::record::Recorded;
use jackalope_placement::size;
use jackalope_protocol::counted;
use serde_json::{Value, json};

use crate::args::machines::ReachArgs;
use crate::args::operate::StatusArgs;
use crate::client::{ASK_TIMEOUT, health_of, link_sentences, off_runtime};
use crate::environment::Environment;

pub(crate) async fn status(
    args: StatusArgs,
    environment: &Environment,
) -> anyhow::Result<ExitCode> {
    let report = Report::take(environment).await?;
    if args.json {
        output::line(&report.0)?
    } else {
        output::line(report.text())?
    }
    Ok(if report.is_well() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The complete status as JSON.
#[derive(Debug)]
pub(super) struct Report(pub(super) Value);

impl Report {
    /// Queries the server and all agents, each with a timeout.
    pub(super) async fn take(environment: &Environment) -> anyhow::Result<Report> {
        let environment = environment.clone();
        off_runtime(move || {
            let home = environment.home()?;
            let running = ServeRecord::running(&home);
            let health = running.as_ref().map(health_of);
            let agents = agents(&home, running.as_ref(), &environment);
            let serve = running.as_ref().map(|it| {
                json!({
                    "pid": it.process.pid, "version": it.process.version, "url": it.url(),
                    "model": it.model(), "hosts": it.hosts(),
                })
            });
            let is_healthy = health.as_ref().is_some_and(|it| it["ok"] == true);
            let are_up = agents.iter().all(|it| it["up"] == true);
            Ok(Report(json!({
                "ok": is_healthy && are_up, "serve": serve, "health": health, "agents": agents,
            })))
        })
        .await
    }

    fn is_well(&self) -> bool {
        self.0["ok"] == true
    }

    /// Formats the status for people.
    pub(super) fn text(&self) -> String {
        let (serve, health) = (&self.0["serve"], &self.0["health"]);
        let mut lines = Vec::new();
        if serve.is_null() {
            lines.push("server   none runs here".to_owned());
        } else {
            let uptime = health["uptime_seconds"].as_u64().map(duration).unwrap_or_default();
            lines.push(format!(
                "server   {}, pid {}, version {}{uptime}",
                text(&serve["url"]),
                serve["pid"],
                text(&serve["version"])
            ));
            let context = &health["context_tokens"];
            let context = if context.is_null() {
                String::new()
            } else {
                format!(", {}", counted(context, "token"))
            };
            lines.push(format!(
                "model    {}: {}{context}",
                text(&serve["model"]),
                text(&health["status"])
            ));
            if let Some(reason) = health["reason"].as_str() {
                lines.push(format!("         {}", reason.replace('\n', "\n         ")));
            }
        }
        lines.extend(health["ranks"].as_array().into_iter().flatten().map(rank_line));
        if health["queue_max"].is_u64() {
            lines.push(format!(
                "queue    {} of {} waiting, {} running",
                health["queue_size"], health["queue_max"], health["running"]
            ));
        }
        lines.extend(link_sentences(health).map(|it| format!("link     {it}")));
        lines.extend(other_models(health));
        lines.extend(self.0["agents"].as_array().into_iter().flatten().map(agent_line));
        lines.join("\n")
    }
}

/// Returns lines for the models other than the default one.
fn other_models(health: &Value) -> impl Iterator<Item = String> {
    let others = health["models"].as_array().into_iter().flatten();
    others.filter(|it| it["default"] != true).flat_map(|model| {
        let failure = model["failure"].as_str().map(|it| format!(", {it}"));
        let failure = failure.unwrap_or_default().replace('\n', "\n         ");
        let open = model["open_requests"].as_u64().filter(|&it| 0 < it);
        let open = open.map(|it| format!(", {}", counted(it, "request"))).unwrap_or_default();
        let line =
            format!("model    {}: {}{open}{failure}", text(&model["id"]), text(&model["state"]));
        let ranks = model["ranks"].as_array().into_iter().flatten().map(rank_line);
        std::iter::once(line).chain(ranks)
    })
}

/// Returns the agents of the server's machines; without a server, the agent of this machine if one
/// runs.
fn agents(home: &Home, running: Option<&ServeRecord>, environment: &Environment) -> Vec<Value> {
    let hosts = running.and_then(|it| machines::hostfile(it.hosts()?).ok());
    let Some(hosts) = hosts else {
        let here = Recorded::read(home, AGENT_RECORD).filter(Recorded::runs);
        return here.map(|it| recorded_json(&it)).into_iter().collect();
    };
    let running = running.expect("whose hosts are known");
    let reach = ReachArgs {
        token: None,
        agent_port: running.agent_port(),
        ssh: running.ssh().map(str::to_owned),
        no_bootstrap: true,
    };
    let machines = nodes::machines(&hosts.hosts).0;
    std::thread::scope(|scope| {
        let threads: Vec<_> = machines
            .iter()
            .map(|host| scope.spawn(|| agent_json(host, &reach, environment)))
            .collect();
        threads.into_iter().map(|it| it.join().expect("it does not panic")).collect()
    })
}

fn recorded_json(agent: &Recorded) -> Value {
    json!({"host": "127.0.0.1", "up": true, "pid": agent.pid, "programs": null})
}

/// Queries the programs of one agent. Starts none.
fn agent_json(host: &Host, reach: &ReachArgs, environment: &Environment) -> Value {
    let name = host.name();
    let asked = || -> Result<Value, String> {
        let config = machines::nodes_config(&reach.config(environment), &environment.local)
            .map_err(|err| jackalope_deploy::error::text(&err))?;
        let addrs = nodes::addresses(host, &config);
        let agent = Agent::connect(&name, addrs, config.ours, Box::new(|_, _, _| {}));
        agent.wait_until_up(ASK_TIMEOUT)?;
        let programs = agent.status(ASK_TIMEOUT)?;
        let program = |it: &jackalope_fleet::agent::ProgramStatus| json!({"name": it.name, "pid": it.pid, "owned": it.is_owned, "age_ms": it.age_ms});
        Ok(programs.iter().map(program).collect())
    };
    match asked() {
        Ok(programs) => json!({"host": name, "up": true, "programs": programs}),
        Err(reason) => json!({"host": name, "up": false, "reason": reason}),
    }
}

fn rank_line(rank: &Value) -> String {
    let weights = rank["facts"]["weights_bytes"].as_u64().or(rank["weights_bytes"].as_u64());
    let memory = weights.map(|it| format!(", {} of weights", size(it))).unwrap_or_default();
    let host = rank["host"].as_str().map(|it| format!("{it}, ")).unwrap_or_default();
    let silent = rank["silent_ms"].as_u64().filter(|&it| 5000 < it);
    let silent = silent.map(|it| format!(", silent for {} s", it / 1000)).unwrap_or_default();
    let encrypted = encrypted(rank);
    format!(
        "rank {:<3} {host}pid {}, {}{memory}{encrypted}{silent}",
        rank["rank"].to_string(),
        rank["pid"],
        text(&rank["phase"])
    )
}

/// Describes whether a rank's connections to the others are encrypted; empty if there are no
/// others.
fn encrypted(rank: &Value) -> String {
    let own = rank["rank"].as_u64().and_then(|it| usize::try_from(it).ok());
    let flags = rank["encrypts"].as_array().map_or(&[][..], Vec::as_slice);
    let peers = || flags.iter().enumerate().filter(|(peer, _)| Some(*peer) != own);
    let in_clear: Vec<String> =
        peers().filter(|(_, it)| **it == false).map(|(peer, _)| peer.to_string()).collect();
    match (peers().count(), in_clear.len()) {
        (0, _) => String::new(),
        (_, 0) => ", encrypted".to_owned(),
        (all, clear) if all == clear => ", in clear".to_owned(),
        _ => format!(", in clear to {}", in_clear.join(" and ")),
    }
}

fn agent_line(agent: &Value) -> String {
    let what = match (agent["up"] == true, agent["programs"].as_array()) {
        (false, _) => format!("cannot be reached: {}", text(&agent["reason"])),
        (true, None) => format!("runs, pid {}", agent["pid"]),
        (true, Some(programs)) => format!("runs {}", counted(programs.len(), "program")),
    };
    format!("agent    {}: {what}", text(&agent["host"]))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}

fn duration(seconds: u64) -> String {
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    format!(", up {hours}:{minutes:02}:{:02}", seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_names_every_rank_and_what_is_wrong() {
        let report = Report(json!({
            "ok": false,
            "serve": {"pid": 7, "version": "1", "url": "http://h:1", "model": "org/m"},
            "health": {
                "status": "recovering", "reason": "rank 1 died\nlast words", "uptime_seconds": 3700,
                "queue_size": 1, "queue_max": 8, "running": 2, "context_tokens": 4096,
                "broken_links": [{"between": "a and c", "reason": "no answer", "seconds": 9}],
                "ranks": [
                    {"rank": 0, "host": "a", "pid": 11, "phase": "idle", "silent_ms": 10,
                     "facts": {"weights_bytes": 3 << 20}},
                    {"rank": 1, "host": null, "pid": null, "phase": "starting", "silent_ms": 9000},
                ],
                "models": [
                    {"id": "org/m", "default": true, "state": "recovering", "ranks": []},
                    {"id": "org/n", "default": false, "state": "ready", "open_requests": 3, "ranks": [
                        {"rank": 0, "host": null, "pid": 12, "phase": "idle", "silent_ms": 10,
                         "weights_bytes": 5000},
                    ]},
                    {"id": "o", "default": false, "state": "failed", "failure": "no room\nhint: x"},
                ],
            },
            "agents": [
                {"host": "a", "up": true, "programs": [{}, {}]},
                {"host": "b", "up": false, "reason": "refused"},
            ],
        }));
        assert_eq!(
            report.text(),
            "server   http://h:1, pid 7, version 1, up 1:01:40\n\
             model    org/m: recovering, 4096 tokens\n         rank 1 died\n         last words\n\
             rank 0   a, pid 11, idle, 3.0 MiB of weights\n\
             rank 1   pid null, starting, silent for 9 s\n\
             queue    1 of 8 waiting, 2 running\n\
             link     a and c do not reach each other, for 9 s: no answer\n\
             model    org/n: ready, 3 requests\n\
             rank 0   pid 12, idle, 4.9 KiB of weights\n\
             model    o: failed, no room\n         hint: x\n\
             agent    a: runs 2 programs\n\
             agent    b: cannot be reached: refused"
        );
        assert!(!report.is_well());
        let none = Report(json!({"ok": false, "serve": null, "health": null, "agents": []}));
        assert_eq!(none.text(), "server   none runs here");
    }

    #[test]
    fn a_rank_says_which_of_its_connections_are_encrypted() {
        let said = |encrypts: Value| encrypted(&json!({"rank": 1, "encrypts": encrypts}));
        assert_eq!(said(json!([])), "");
        assert_eq!(said(json!([false, false])), ", in clear");
        assert_eq!(said(json!([true, false])), ", encrypted");
        assert_eq!(said(json!([true, false, false, false])), ", in clear to 2 and 3");
        assert_eq!(encrypted(&json!({"rank": 0, "encrypts": [false]})), "");
        assert_eq!(encrypted(&json!({"rank": 0})), "");
    }
}
