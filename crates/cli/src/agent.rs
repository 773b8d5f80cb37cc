//! `jackalope agent`: what looks after this machine's programs.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use jackalope_cluster::agent::{self as agents, Agent, AgentConfig};
use jackalope_cluster::discovery::{DISCOVERY_PORT, Responder};
use jackalope_cluster::exchange::Library;
use jackalope_cluster::home::{Home, secret_of_token};
use jackalope_cluster::install::{Activated, versions};
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
        Some(AgentCommand::Install { announce, dry_run }) => {
            let announce = args.announce || *announce;
            crate::service::install((args.port, announce), *dry_run, &home)
        }
        Some(AgentCommand::Uninstall) => crate::service::uninstall(&home),
        Some(AgentCommand::Activate { id, .. }) => {
            let id = id.clone();
            tokio::task::spawn_blocking(move || activate(id.as_deref(), &home)).await?
        }
        None if args.start => {
            let (args, home) = (args.clone(), home);
            tokio::task::spawn_blocking(move || start(&args, &home)).await?
        }
        None => serve(args, home.secret()?, &home, environment.library()).await,
    }
}

/// Is the agent of a cluster whose secret follows from a token.
pub(crate) async fn serve_with_token(
    args: &AgentArgs,
    token: &str,
    environment: &Environment,
) -> anyhow::Result<()> {
    let home = environment.home()?;
    serve(args, secret_of_token(token)?, &home, environment.library()).await
}

/// Is the agent, until it is told to end.
async fn serve(
    args: &AgentArgs,
    secret: Secret,
    home: &Home,
    library: Library,
) -> anyhow::Result<()> {
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
        secret,
        rank_program: find_rank_program()?,
        files_dir: home.dir("run")?,
        library,
        linger: args.linger.map(Duration::from_secs),
        is_over: Arc::clone(&is_over),
    };
    let program = std::fs::canonicalize(own_program()?)?;
    let addr = listener.local_addr()?;
    let about = json!({
        "addr": addr.to_string(), "program": program, "linger": args.linger,
        "announce": args.announce,
    });
    let _responder = match args.announce {
        true => Some(
            Responder::start(config.secret, addr.port())
                .with_context(|| format!("listening for queries on UDP port {DISCOVERY_PORT}"))?,
        ),
        false => None,
    };
    let record = Recorded::this(about);
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
    let recorded = Recorded::read(home, RECORD).filter(Recorded::runs);
    if recorded.is_some() && answers(args, secret).is_ok() {
        return output::line(json!({"event": "runs", "port": args.port})).map_err(Into::into);
    }
    // It holds another secret, is another version, or listens elsewhere.
    if let Some(recorded) = recorded {
        recorded.end(END_GRACE);
    }
    let pid = start_and_wait(&own_program()?, args, (home, secret))?;
    Ok(output::line(json!({"event": "started", "port": args.port, "pid": pid}))?)
}

/// Whether an agent that has this secret answers here, else why not.
fn answers(args: &AgentArgs, secret: Secret) -> Result<(), String> {
    let is_everywhere = args.listen.is_unspecified();
    let ip = if is_everywhere { Ipv4Addr::LOCALHOST.into() } else { args.listen };
    let addr = SocketAddr::new(ip, args.port);
    let agent = Agent::connect("this machine", vec![addr], secret, Box::new(|_, _, _| {}));
    agent.wait_until_up(Duration::from_secs(1))
}

fn start_and_wait(
    program: &Path,
    args: &AgentArgs,
    (home, secret): (&Home, Secret),
) -> anyhow::Result<u32> {
    let pid = start_detached(program, args, home)?;
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    while let Err(reason) = answers(args, secret) {
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

/// Uses a version that has arrived, or the one from before; an agent of another version, or with another
/// secret, makes room for one of this program, which is of that version.
fn activate(id: Option<&str>, home: &Home) -> anyhow::Result<()> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).context("reading the secret")?;
    let given = Secret::from_hex(&line);
    ensure!(
        given.is_some() || line.trim().is_empty(),
        "standard input holds neither a secret nor nothing"
    );
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
        // A service comes again by itself.
        if !crate::service::is_installed(home)? {
            start_and_wait(&program, &args_of(recorded)?, (home, home.secret()?))?;
        }
    }
    let (current, previous, switched) = (switched.current, switched.previous, switched.changed);
    let agent_restarted = agent.is_some();
    let activated = Activated { current, previous, switched, secret_changed, agent_restarted };
    Ok(output::line(serde_json::to_string(&activated)?)?)
}

/// How an agent was started.
fn args_of(recorded: &Recorded) -> anyhow::Result<AgentArgs> {
    let addr: SocketAddr = recorded.about["addr"].as_str().unwrap_or_default().parse()?;
    let linger = recorded.about["linger"].as_u64();
    let announce = recorded.about["announce"].as_bool().unwrap_or(false);
    let (listen, port) = (addr.ip(), addr.port());
    let (start, detached, command) = (false, false, None);
    Ok(AgentArgs { listen, port, linger, announce, start, detached, command })
}

/// Whether a process that we started has not ended.
pub(crate) fn is_alive(pid: u32) -> bool {
    jackalope_cluster::platform::current::process_began(pid).is_some_and(|it| it != "ended")
}

fn start_detached(program: &Path, args: &AgentArgs, home: &Home) -> anyhow::Result<u32> {
    let path = home.dir("logs")?.join("agent.log");
    let is_long = std::fs::metadata(&path).is_ok_and(|it| LOG_BYTES_MAX < it.len());
    let mut options = std::fs::OpenOptions::new();
    let options = options.create(true).append(!is_long).write(true).truncate(is_long);
    let log = options.open(&path).with_context(|| format!("opening {}", path.display()))?;
    let mut spawn = Spawn::new(program, "agent");
    let mut words: Vec<String> = ["agent", "--detached", "--listen"].map(str::to_owned).to_vec();
    words.extend([args.listen.to_string(), "--port".to_owned(), args.port.to_string()]);
    if let Some(linger) = args.linger {
        words.extend(["--linger".to_owned(), linger.to_string()]);
    }
    words.extend(args.announce.then(|| "--announce".to_owned()));
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
