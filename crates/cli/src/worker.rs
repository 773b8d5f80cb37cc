//! `jackalope worker`: ranks and backends under LocalAI's names.

mod open;
mod rank_loop;

use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use jackalope_deploy::RankConfig;
use jackalope_deploy::loading::ClusterLoader;
use jackalope_deploy::served::HttpServer;
use jackalope_protocol::Backend;
use jackalope_server::{
    ApiKeys, Ending, Models, ModelsConfig, ServerConfig, ServerLimits, ServerState,
};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::machines::AgentArgs;
use crate::args::worker::{
    MlxDistributedArgs, P2pMlxArgs, WorkerArgs, WorkerBackend, WorkerCommand,
};
use crate::environment::Environment;
use crate::{agent, edge, keys, output};
use open::OrderedModels;

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
    let args = with_environment(typed, environment)?;
    match args.rank {
        None | Some(0) => backend(args, is_started_by_localai, environment).await,
        Some(rank) => rank_loop::run(rank, &args, environment).await,
    }
}

/// Completes the arguments that were typed with values from the environment.
fn with_environment(
    typed: MlxDistributedArgs,
    environment: &Environment,
) -> anyhow::Result<MlxDistributedArgs> {
    let said = &environment.localai;
    let backend = match (typed.backend, said.backend.as_deref()) {
        (Some(typed), _) => Some(typed),
        (None, Some(word)) => Some(open::backend(word)?),
        (None, None) => None,
    };
    let api_key = match (&typed.api_key_file, typed.api_key.is_empty()) {
        (Some(path), _) => keys::read_file(path)?,
        (None, true) => said.grpc_token.iter().cloned().collect(),
        (None, false) => typed.api_key,
    };
    Ok(MlxDistributedArgs {
        hostfile: typed.hostfile.or_else(|| said.hostfile.clone()),
        rank: typed.rank.or(environment.mlx.rank),
        backend,
        addr: typed.addr.or_else(|| said.addr.clone()),
        coordinator: typed.coordinator.or_else(|| environment.mlx.coordinator.clone()),
        api_key,
        ..typed
    })
}

/// Runs LocalAI's backend: coordinator and rank 0. It has no model until LocalAI names one.
async fn backend(
    args: MlxDistributedArgs,
    is_started_by_localai: bool,
    environment: &Environment,
) -> anyhow::Result<ExitCode> {
    let keys = ApiKeys::new(&args.api_key);
    let addr = args.addr.as_deref().unwrap_or(ADDR);
    let listener = listen(addr, &keys, args.insecure).await?;
    let addr = listener.local_addr()?;
    if args.hostfile.is_some() {
        // The other ranks need the secret before there is a model.
        environment.home()?.secret()?;
    }
    let loader = ClusterLoader::empty(RankConfig::default(), &environment.local);
    let registry = loader.models();
    let models = Models::new(Arc::new(loader), Vec::new(), ModelsConfig::default());
    let limits = ServerLimits { load_wait: args.load_wait, ..ServerLimits::default() };
    let opener = OrderedModels::new(args, models.clone(), registry, environment);
    let config = ServerConfig {
        limits,
        api_keys: keys,
        opener: Some(Arc::new(opener)),
        ..ServerConfig::default()
    };
    let server =
        HttpServer::start_grpc(listener, ServerState::with_models(models.clone(), config))?;
    output::note(&format!("LocalAI's backend mlx-distributed listens on {addr}"));
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        () = parent_gone(is_started_by_localai) => output::note("LocalAI has ended; stopping"),
    }
    tokio::join!(models.end(Ending::Shutdown), server.stop());
    Ok(ExitCode::SUCCESS)
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
            "a token is needed\nhint: pass `--token TOKEN`, or set LOCALAI_TOKEN or TOKEN; \
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

/// Converts LocalAI's name of a transport.
fn transport(backend: Option<WorkerBackend>) -> Backend {
    match backend {
        None | Some(WorkerBackend::Ring) => Backend::Tcp,
        Some(WorkerBackend::Jaccl) => Backend::Jaccl,
    }
}
