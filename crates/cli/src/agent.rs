//! `jackalope agent`: starts, watches and stops this machine's rank programs.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use jackalope_console::output;
use jackalope_deploy::agent::{
    AgentHere, AgentServiceConfig, END_GRACE, RECORD, Silence, listen_list, reachable,
};
use jackalope_deploy::log_file::keep_short;
use jackalope_deploy::server_record::ServeRecord;
use jackalope_fleet::agent::Trust;
use jackalope_fleet::home::{Home, secret_of_token};
use jackalope_fleet::install::{Activated, versions};
use jackalope_fleet::listen::add_to_list;
use jackalope_fleet::nodes::own_program;
use jackalope_fleet::process::Spawn;
use jackalope_fleet::record::{EndRequest, KILL_GRACE, Recorded, is_alive};
use jackalope_fleet::service::{ServiceKind, is_installed};
use jackalope_fleet::trust::TrustStore;
use jackalope_protocol::secure::{Build, Peer};
use jackalope_protocol::{PublicKey, Secret};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::machines::{AgentArgs, AgentCommand};
use crate::args::service::{ServiceArg, ServiceInstallArgs};
use crate::environment::Environment;
use crate::service;

/// Maximum time in which a started agent must answer on its own machine.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout of one attempt to reach an agent that was just started.
const KNOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Time for which a running agent may be silent on its own machine before it counts as hung; longer
/// than one attempt to connect.
const HUNG_TIMEOUT: Duration = Duration::from_secs(4);

/// Size beyond which the log of an agent that runs in the background is started anew.
const LOG_BYTES_MAX: u64 = 8 << 20;

pub(crate) async fn run(args: &AgentArgs, environment: &Environment) -> anyhow::Result<()> {
    let home = environment.home()?;
    match &args.command {
        Some(AgentCommand::Stop) => stop(&home),
        Some(AgentCommand::Status { json }) => status(&home, *json),
        Some(AgentCommand::Install { announce, dry_run, listen }) => {
            let announce = args.announce || *announce;
            let listen = args.listen.iter().chain(listen).copied().collect();
            let how = AgentArgs { announce, listen, ..args.clone() };
            service::install(&as_service(&how, *dry_run), environment)
        }
        Some(AgentCommand::Uninstall) => service::remove_own(ServiceKind::Agent),
        Some(AgentCommand::Activate { id, .. }) => {
            let id = id.clone();
            tokio::task::spawn_blocking(move || activate(id.as_deref(), &home)).await?
        }
        None if args.start => {
            let listen = reachable(&args.listen, environment.ssh_came_to);
            let args = AgentArgs { listen, ..args.clone() };
            tokio::task::spawn_blocking(move || start(&args, &home)).await?
        }
        None => {
            let trust = Trust::Listed(TrustStore::new(&home));
            serve(args, home.secret()?, trust, environment).await
        }
    }
}

/// Runs the agent of a cluster whose secret is derived from a token. Holders of the token may start
/// ranks on this machine and copy models to it.
pub(crate) async fn serve_with_token(
    args: &AgentArgs,
    token: &str,
    environment: &Environment,
) -> anyhow::Result<()> {
    serve(args, secret_of_token(token)?, Trust::TokenHolders, environment).await
}

/// Runs the agent until it is stopped or has been idle for `--linger`.
async fn serve(
    args: &AgentArgs,
    secret: Secret,
    trust: Trust,
    environment: &Environment,
) -> anyhow::Result<()> {
    if args.detached {
        // Fails only if this process leads a session already, which is as good.
        rustix::process::setsid().ok();
    }
    let config = AgentServiceConfig {
        secret,
        trust,
        listen: args.listen.clone(),
        port: args.port,
        linger: args.linger.map(Duration::from_secs),
        announces: args.announce,
    };
    let home = environment.home()?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let end = async {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            () = keep_log_short(args.detached, &home) => {}
        }
    };
    Ok(jackalope_deploy::agent::serve(config, &environment.local, end).await?)
}

/// Never returns. Keeps the log short if the agent is detached.
async fn keep_log_short(is_detached: bool, home: &Home) {
    if is_detached {
        keep_short(&home.join("logs/agent.log")).await;
    }
    std::future::pending().await
}

/// Returns the arguments of `jackalope service install agent` for an agent with these arguments.
fn as_service(args: &AgentArgs, dry_run: bool) -> ServiceInstallArgs {
    ServiceInstallArgs {
        service: ServiceArg::Agent,
        dir: None,
        system: false,
        user: None,
        dry_run,
        manager: None,
        args: words_of(args),
    }
}

/// Content of standard input: the cluster's secret, and the coordinator that may command this
/// machine from now on. A login on this machine is enough to grant that.
struct Introduced {
    secret: Option<Secret>,
    coordinator: Option<Peer>,
}

impl Introduced {
    fn read() -> anyhow::Result<Introduced> {
        let mut lines = [String::new(), String::new()];
        for line in &mut lines {
            std::io::stdin().read_line(line).context("reading the secret")?;
        }
        let [secret, coordinator] = lines.each_ref().map(|line| line.trim());
        let known = Secret::from_hex(secret);
        ensure!(
            known.is_some() || secret.is_empty(),
            "standard input is neither empty nor a secret of 64 hexadecimal digits"
        );
        let coordinator = match coordinator.split_once(' ').unwrap_or((coordinator, "")) {
            ("", _) => None,
            (key, name) => {
                let key = PublicKey::from_hex(key)
                    .context("the second line of standard input is no key")?;
                Some(Peer { key, name: name.to_owned() })
            }
        };
        Ok(Introduced { secret: known, coordinator })
    }

    /// Adds the coordinator to this machine's trust list, and returns this machine's own key.
    fn trust(&self, home: &Home) -> anyhow::Result<PublicKey> {
        let own = home.identity()?.public();
        if let Some(peer) = self.coordinator.as_ref().filter(|peer| peer.key != own) {
            TrustStore::new(home).update(|list| {
                list.trust_coordinator(peer);
                Ok(())
            })?;
        }
        Ok(own)
    }
}

/// Ensures that an agent with the secret from standard input runs.
fn start(args: &AgentArgs, home: &Home) -> anyhow::Result<()> {
    let introduced = Introduced::read()?;
    let secret = introduced
        .secret
        .context("expected the secret on standard input: 64 hexadecimal digits")?;
    let key = introduced.trust(home)?.to_hex();
    if home.known_secret().ok().flatten() != Some(secret) {
        home.set_secret(&secret)?;
    }
    let list = listen_list(home, args.port)?;
    let recorded = Recorded::read(home, RECORD).filter(Recorded::runs);
    if let Some(recorded) = recorded {
        let expected = AgentHere { listen: &args.listen, port: args.port, home, secret };
        match expected.answers(HUNG_TIMEOUT) {
            Ok(()) => {
                // The running agent may have been started for other addresses.
                add_to_list(&list, &args.listen)
                    .with_context(|| format!("writing {}", list.display()))?;
                let runs = json!({"event": "runs", "port": args.port, "key": key});
                return output::line(runs).map_err(Into::into);
            }
            // A hung agent cannot end by itself, so it is killed. Its ranks keep running, and the
            // new agent adopts them.
            Err(Silence { is_hung: true, .. }) => {
                recorded.ask(EndRequest::Kill, KILL_GRACE);
            }
            // The agent holds another secret, is another version, or listens elsewhere.
            Err(_) => {
                check_unused(&recorded, home)?;
                recorded.end(END_GRACE);
            }
        }
    }
    let pid = start_and_wait(&own_program()?, args, home, secret)?;
    Ok(output::line(json!({"event": "started", "port": args.port, "pid": pid, "key": key}))?)
}

/// Checks that no server of another version on this machine uses the agent. That server would start
/// its own agent again, and the two versions would replace each other's for ever.
fn check_unused(agent: &Recorded, home: &Home) -> anyhow::Result<()> {
    let ours = Build::ours().version;
    let uses = |it: &ServeRecord| it.hosts().is_some() && it.process.version == agent.version;
    let server = ServeRecord::running(home).filter(uses);
    let Some(server) = server.filter(|_| agent.version != ours) else { return Ok(()) };
    bail!(
        "a server of jackalope {} (pid {}) runs on this machine and uses its agent; this is {ours}\n\
         hint: `jackalope restart --fresh` brings that server and its agent to this version, \
         `jackalope stop` ends it",
        agent.version,
        server.process.pid
    );
}

fn start_and_wait(
    program: &Path,
    args: &AgentArgs,
    home: &Home,
    secret: Secret,
) -> anyhow::Result<u32> {
    let pid = start_detached(program, args, home)?;
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    let expected = AgentHere { listen: &args.listen, port: args.port, home, secret };
    while let Err(Silence { reason, .. }) = expected.answers(KNOCK_TIMEOUT) {
        let runs = Recorded::read(home, RECORD).is_some_and(|it| it.runs());
        if deadline <= Instant::now() || !runs && reason.contains("efused") && !is_alive(pid) {
            let log = home.join("logs/agent.log");
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let lines: Vec<&str> = text.lines().rev().take(5).collect();
            let last = lines.into_iter().rev().collect::<Vec<_>>().join("\n");
            bail!("the agent does not answer: {reason}\nits log {} ends: {last}", log.display());
        }
    }
    Ok(pid)
}

/// Activates an installed version, or the previous one if `id` is `None`. If an agent of another
/// version or with another secret runs, it is replaced by one of the activated version.
fn activate(id: Option<&str>, home: &Home) -> anyhow::Result<()> {
    let introduced = Introduced::read()?;
    let given = introduced.secret;
    let key = Some(introduced.trust(home)?);
    let known = home.known_secret().ok().flatten();
    let secret_changed = given.is_some() && given != known;
    if let Some(secret) = given.filter(|_| secret_changed) {
        home.set_secret(&secret)?;
    }
    let switched = match id {
        Some(id) => versions::activate(home, id)?,
        None => versions::roll_back(home)?,
    };
    let program = std::fs::canonicalize(home.join("current/bin/jackalope"))?;
    let agent = Recorded::read(home, RECORD).filter(Recorded::runs).filter(|it| {
        secret_changed || it.about["program"].as_str() != Some(&*program.to_string_lossy())
    });
    if let Some(recorded) = &agent {
        recorded.end(END_GRACE);
        // A service restarts by itself.
        if !is_installed(ServiceKind::Agent)? {
            start_and_wait(&program, &args_of(recorded)?, home, home.secret()?)?;
        }
    }
    let (current, previous, switched) = (switched.current, switched.previous, switched.changed);
    let agent_restarted = agent.is_some();
    let activated = Activated { current, previous, switched, secret_changed, agent_restarted, key };
    Ok(output::line(serde_json::to_string(&activated)?)?)
}

/// Returns the arguments with which the recorded agent was started.
fn args_of(recorded: &Recorded) -> anyhow::Result<AgentArgs> {
    let addr: SocketAddr = recorded.about["addr"].as_str().unwrap_or_default().parse()?;
    let linger = recorded.about["linger"].as_u64();
    let announce = recorded.about["announce"].as_bool().unwrap_or(false);
    let listen = recorded.about["listen"].as_array().into_iter().flatten();
    let listen = listen.filter_map(|ip| ip.as_str()?.parse().ok()).collect();
    let port = addr.port();
    let (start, detached, command) = (false, false, None);
    Ok(AgentArgs { listen, port, linger, announce, start, detached, command })
}

/// Returns the arguments of an agent that listens and announces itself like this one.
fn words_of(args: &AgentArgs) -> Vec<String> {
    let mut words = vec!["--port".to_owned(), args.port.to_string()];
    words.extend(args.announce.then(|| "--announce".to_owned()));
    words.extend(args.listen.iter().flat_map(|ip| ["--listen".to_owned(), ip.to_string()]));
    words.extend(args.linger.iter().flat_map(|it| ["--linger".to_owned(), it.to_string()]));
    words
}

fn start_detached(program: &Path, args: &AgentArgs, home: &Home) -> anyhow::Result<u32> {
    let path = home.dir("logs")?.join("agent.log");
    let is_long = std::fs::metadata(&path).is_ok_and(|it| LOG_BYTES_MAX < it.len());
    let mut options = std::fs::OpenOptions::new();
    let options = options.create(true).append(!is_long).write(true).truncate(is_long);
    let log = options.open(&path).with_context(|| format!("opening {}", path.display()))?;
    let mut spawn = Spawn::new(program, "agent");
    let mut words = ["agent", "--detached"].map(str::to_owned).to_vec();
    words.extend(words_of(args));
    words.push("--verbose".to_owned());
    spawn.args = words.into_iter().map(Into::into).collect();
    spawn.start_detached(log).context("starting the agent")
}

fn stop(home: &Home) -> anyhow::Result<()> {
    let ended = Recorded::read(home, RECORD).is_some_and(|recorded| recorded.end(END_GRACE));
    Ok(output::line(if ended { "the agent has ended" } else { "no agent runs here" })?)
}

fn status(home: &Home, json: bool) -> anyhow::Result<()> {
    let recorded = Recorded::read(home, RECORD).filter(Recorded::runs);
    if json {
        let agent = recorded
            .map(|it| json!({"pid": it.pid, "version": it.version, "addr": it.about["addr"]}));
        return Ok(output::line(json!({ "agent": agent }))?);
    }
    let text = recorded.map_or_else(
        || "no agent runs here".to_owned(),
        |it| {
            let addr = it.about["addr"].as_str().unwrap_or("an unknown address");
            format!("an agent runs: pid {}, version {}, on {addr}", it.pid, it.version)
        },
    );
    Ok(output::line(text)?)
}
