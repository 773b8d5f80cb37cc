//! `jackalope worker`: ranks and backends under LocalAI's names.

use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use jackalope_console::output;
use jackalope_localai::{RunningBackend, WorkerConfig, parse_backend, run_rank};
use jackalope_protocol::Backend;
use jackalope_server::{ApiKeys, ServerConfig, ServerLimits};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::machines::AgentArgs;
use crate::args::worker::{
    MlxDistributedArgs, P2pMlxArgs, WorkerArgs, WorkerBackend, WorkerCommand,
};
use crate::environment::Environment;
use crate::{agent, edge, keys};

/// Address at which LocalAI expects a backend that was started by hand.
const ADDR: &str = "localhost:50051";

/// Default port of LocalAI's workers.
const LISTEN_PORT: u16 = 5555;

/// Interval of checking for the parent process.
const PARENT_POLL: Duration = Duration::from_secs(2);

pub(crate) async fn run(args: WorkerArgs, environment: &Environment) -> anyhow::Result<ExitCode> {
    match args.command {
        WorkerCommand::MlxDistributed(args) => mlx_distributed(*args, environment).await,
        WorkerCommand::P2pMlx(args) => p2p_mlx(args, environment).await,
    }
}

async fn mlx_distributed(
    typed: MlxDistributedArgs,
    environment: &Environment,
) -> anyhow::Result<ExitCode> {
    // LocalAI itself passes nothing but the address.
    let is_started_by_localai = typed.hostfile.is_none() && typed.rank.is_none();
    let said = &environment.localai;
    let api_key = match (&typed.api_key_file, typed.api_key.is_empty()) {
        (Some(path), _) => keys::read_file(path)?,
        (None, true) => said.grpc_token.iter().cloned().collect(),
        (None, false) => typed.api_key,
    };
    let backend = match (typed.backend, said.backend.as_deref()) {
        (Some(typed), _) => Some(transport(typed)),
        (None, Some(word)) => Some(parse_backend(word)?),
        (None, None) => None,
    };
    let config = WorkerConfig {
        hostfile: typed.hostfile.or_else(|| said.hostfile.clone()),
        backend,
        coordinator: typed.coordinator.or_else(|| environment.mlx.coordinator.clone()),
        kv_mib: typed.kv_mib,
        data_ports: typed.data_ports,
    };
    if let Some(rank @ 1..) = typed.rank.or(environment.mlx.rank) {
        run_rank(rank, &config, &environment.local, interrupted()?).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let keys = ApiKeys::new(&api_key);
    let addr = typed.addr.as_deref().or(said.addr.as_deref()).unwrap_or(ADDR);
    let listener = listen(addr, &keys, typed.insecure).await?;
    let limits = ServerLimits { load_wait: typed.load_wait, ..ServerLimits::default() };
    let server = ServerConfig { limits, api_keys: keys, ..ServerConfig::default() };
    let backend = RunningBackend::start(listener, config, server, &environment.local)?;
    output::note(&format!("LocalAI's backend mlx-distributed listens on {}", backend.addr));
    tokio::select! {
        () = interrupted()? => {}
        () = parent_gone(is_started_by_localai) => output::note("LocalAI has ended; stopping"),
    }
    backend.stop().await;
    Ok(ExitCode::SUCCESS)
}

/// Completes at Ctrl-C and SIGTERM.
fn interrupted() -> anyhow::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Listens for LocalAI. Listening beyond this machine requires keys, unless `insecure` allows it.
pub(crate) async fn listen(
    addr: &str,
    keys: &ApiKeys,
    insecure: bool,
) -> anyhow::Result<TcpListener> {
    let found: Vec<SocketAddr> = addr
        .to_socket_addrs()
        .with_context(|| format!("looking up {addr}\nhint: write HOST:PORT"))?
        .collect();
    // LocalAI connects over IPv4 if a name has both.
    let first = found.iter().find(|it| it.is_ipv4()).or(found.first());
    let addr = *first.with_context(|| format!("{addr} has no address"))?;
    edge::check_exposure(addr.ip(), keys, insecure)?;
    let listening =
        || format!("cannot listen on {addr} for LocalAI\nhint: another program has the port");
    TcpListener::bind(addr).await.with_context(listening)
}

/// Waits until the parent process is gone, if it is watched: LocalAI ends its backends itself,
/// unless it is killed.
async fn parent_gone(is_watched: bool) {
    let parent = rustix::process::getppid();
    while is_watched && rustix::process::getppid() == parent {
        tokio::time::sleep(PARENT_POLL).await;
    }
    if !is_watched {
        std::future::pending().await
    }
}

/// Runs LocalAI's token-based worker: an agent whose secret is derived from the token.
async fn p2p_mlx(args: P2pMlxArgs, environment: &Environment) -> anyhow::Result<ExitCode> {
    let said = &environment.localai;
    let Some(token) = args.token.or_else(|| said.token.clone()) else {
        bail!(
            "a token is needed\nhint: set JACKALOPE_TOKEN, LOCALAI_TOKEN, LOCALAI_P2P_TOKEN or TOKEN; \
             `jackalope token new` makes one on the machine that serves"
        )
    };
    let port = args.mlx_listen_port.or(said.listen_port).unwrap_or(LISTEN_PORT);
    let agent = AgentArgs {
        listen: Vec::new(),
        port,
        linger: None,
        // LocalAI's machines know nothing of each other but the token.
        announce: true,
        start: false,
        detached: false,
        command: None,
    };
    agent::serve_with_token(&agent, &token, environment).await?;
    Ok(ExitCode::SUCCESS)
}

fn transport(backend: WorkerBackend) -> Backend {
    match backend {
        WorkerBackend::Ring => Backend::Tcp,
        WorkerBackend::Jaccl => Backend::Jaccl,
    }
}
