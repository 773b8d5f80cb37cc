//! `jackalope agent`: what looks after this machine's programs.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use jackalope_cluster::agent::{self as agents, Agent, AgentConfig};
use jackalope_cluster::home::Home;
use jackalope_cluster::local::find_rank_program;
use jackalope_cluster::nodes::own_program;
use jackalope_cluster::process::Spawn;
use jackalope_cluster::record::Recorded;
use jackalope_protocol::Secret;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::machines::{AgentArgs, AgentCommand};
use crate::environment::Environment;
use crate::output;

/// Name of the agent's record.
pub(crate) const RECORD: &str = "agent";

/// How long an agent may take to answer on its own machine.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// How long one may take to end politely.
const END_GRACE: Duration = Duration::from_secs(3);

/// The log of one that runs in the background begins anew beyond this.
const LOG_BYTES_MAX: u64 = 8 << 20;

pub(crate) async fn run(args: &AgentArgs, environment: &Environment) -> anyhow::Result<()> {
    let home = environment.home()?;
    match &args.command {
        Some(AgentCommand::Stop) => stop(&home),
        Some(AgentCommand::Status { json }) => status(&home, *json),
        Some(AgentCommand::Install { dry_run }) => crate::service::install(args, *dry_run, &home),
        Some(AgentCommand::Uninstall) => crate::service::uninstall(&home),
        None if args.start => {
            let (args, home) = (args.clone(), home);
            tokio::task::spawn_blocking(move || start(&args, &home)).await?
        }
        None => serve(args, &home).await,
    }
}

/// Is the agent, until it is told to end.
async fn serve(args: &AgentArgs, home: &Home) -> anyhow::Result<()> {
    if args.detached {
        // Fails only if we lead a session already, which is as good.
        rustix::process::setsid().ok();
    }
    let addr = SocketAddr::new(args.listen, args.port);
    let listener = TcpListener::bind(addr).with_context(|| {
        format!(
            "listening on {addr}\nhint: another agent or program has the port; \
             `jackalope agent status` tells, `--port` names another"
        )
    })?;
    let is_over = Arc::new(AtomicBool::new(false));
    let config = AgentConfig {
        secret: home.secret()?,
        rank_program: find_rank_program()?,
        files_dir: home.dir("run")?,
        linger: args.linger.map(Duration::from_secs),
        is_over: Arc::clone(&is_over),
    };
    let record = Recorded::this(json!({ "addr": listener.local_addr()?.to_string() }));
    record.write(home, RECORD)?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut serving = tokio::task::spawn_blocking(move || agents::serve(&listener, config));
    let result = tokio::select! {
        result = &mut serving => result?.map_err(Into::into),
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    };
    // Programs end with us in any case, as their standard input does; but for those that are stopped
    // or stuck, which only a signal ends.
    is_over.store(true, Ordering::SeqCst);
    if !serving.is_finished() {
        tokio::time::timeout(END_GRACE, serving).await.ok();
    }
    record.forget(home, RECORD);
    result
}

/// Sees to it that an agent with the secret from standard input runs.
fn start(args: &AgentArgs, home: &Home) -> anyhow::Result<()> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).context("reading the secret")?;
    let secret = Secret::from_hex(&line)
        .context("expected the secret on standard input: 64 hexadecimal digits")?;
    if home.known_secret().ok().flatten() != Some(secret) {
        home.set_secret(&secret)?;
    }
    let addr = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), args.port);
    let answers = |timeout| {
        let agent = Agent::connect("this machine", vec![addr], secret, Box::new(|_, _, _| {}));
        agent.wait_until_up(timeout)
    };
    let recorded = Recorded::read(home, RECORD).filter(Recorded::runs);
    if recorded.is_some() && answers(Duration::from_secs(1)).is_ok() {
        return output::line(json!({"event": "runs", "port": args.port})).map_err(Into::into);
    }
    // It holds another secret, is another version, or listens elsewhere.
    if let Some(recorded) = recorded {
        recorded.end(END_GRACE);
    }
    let pid = start_detached(args, home)?;
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    while let Err(reason) = answers(Duration::from_secs(1)) {
        let runs = Recorded::read(home, RECORD).is_some_and(|it| it.runs());
        if deadline <= Instant::now() || !runs && reason.contains("efused") && !is_alive(pid) {
            let log = home.join("logs/agent.log");
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let lines: Vec<&str> = text.lines().rev().take(5).collect();
            let last = lines.into_iter().rev().collect::<Vec<_>>().join("\n");
            bail!("the agent does not answer: {reason}\nits log {} ends: {last}", log.display());
        }
    }
    Ok(output::line(json!({"event": "started", "port": args.port, "pid": pid}))?)
}

/// Whether a process that we started has not ended.
pub(crate) fn is_alive(pid: u32) -> bool {
    jackalope_cluster::platform::current::process_began(pid).is_some_and(|it| it != "ended")
}

fn start_detached(args: &AgentArgs, home: &Home) -> anyhow::Result<u32> {
    let path = home.dir("logs")?.join("agent.log");
    let is_long = std::fs::metadata(&path).is_ok_and(|it| LOG_BYTES_MAX < it.len());
    let mut options = std::fs::OpenOptions::new();
    let options = options.create(true).append(!is_long).write(true).truncate(is_long);
    let log = options.open(&path).with_context(|| format!("opening {}", path.display()))?;
    let mut spawn = Spawn::new(own_program()?, "agent");
    let mut words: Vec<String> = ["agent", "--detached", "--listen"].map(str::to_owned).to_vec();
    words.extend([args.listen.to_string(), "--port".to_owned(), args.port.to_string()]);
    if let Some(linger) = args.linger {
        words.extend(["--linger".to_owned(), linger.to_string()]);
    }
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
    Ok(match recorded {
        Some(it) => output::line(format_args!(
            "an agent runs: pid {}, version {}, on {}",
            it.pid,
            it.version,
            it.about["addr"].as_str().unwrap_or("an unknown address")
        ))?,
        None => output::line("no agent runs here")?,
    })
}
