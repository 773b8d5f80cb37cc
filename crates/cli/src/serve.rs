//! `jackalope serve`: serves models over HTTP.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, ensure};
use jackalope_console::output;
use jackalope_deploy::log_file::{keep_short, serve_log};
use jackalope_deploy::served_models::ServedModels;
use jackalope_deploy::server_record::{ServeDescription, ServeRecord, ServerStart};
use jackalope_deploy::{Cluster, Deployment, machines};
use jackalope_engine::Status;
use jackalope_fleet::home::Home;
use jackalope_fleet::open_files;
use jackalope_localai::LocalAi;
use jackalope_protocol::Secret;
use jackalope_server::{ApiKeys, ShutdownMode};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{EdgeArgs, ServeArgs};
use crate::config::Resolved;
use crate::environment::Environment;
use crate::progress::Loading;
use crate::report::Interrupted;
use crate::{edge, split, worker};

/// Returns the address to listen on. Any other value of `--host` names machines.
fn listen_ip(args: &mut ServeArgs) -> anyhow::Result<IpAddr> {
    if let Ok(ip) = args.host.parse() {
        return Ok(ip);
    }
    let hosts = &mut args.ranks.hosts;
    let other = if hosts.discover.is_some() { "--discover" } else { "--hosts" };
    ensure!(
        hosts.hosts.is_none() && hosts.discover.is_none(),
        "`--host {}` and `{other}` both name machines\nhint: give one of them",
        args.host
    );
    hosts.hosts = Some(args.host.clone());
    Ok(Ipv4Addr::LOCALHOST.into())
}

/// Checks what a server checks at its start, as far as that needs neither its ranks nor its port.
pub(crate) fn check(mut args: ServeArgs, environment: &Environment) -> anyhow::Result<()> {
    let host = listen_ip(&mut args)?;
    edge::config(host, &args)?;
    let served = ServedModels::of(&(&args.models).into(), &environment.local)?;
    // The others are loaded on demand.
    let default = served.models.iter().find(|it| it.id == served.default);
    default.map_or(Ok(()), |it| Ok(Cluster::check(&it.located)?))
}

pub(crate) async fn run(
    mut args: ServeArgs,
    resolved: &Resolved,
    environment: &Environment,
) -> anyhow::Result<()> {
    if args.detached {
        // Fails only if this process leads a session already, which is as good.
        rustix::process::setsid().ok();
    }
    print_notes(resolved, environment);
    open_files::raise_limits(resolved.open_files);
    let host = listen_ip(&mut args)?;
    let mut ranks = args.ranks.config(environment)?;
    machines::take_discovered(&mut ranks.hosts, &environment.local).await?;
    args.ranks.hosts.hosts.clone_from(&ranks.hosts.hosts);
    let mut http = edge::config(host, &args)?;
    let operator_key = Secret::random().context("generating the operator's key")?.to_hex();
    http.api_keys = http.api_keys.with_operator(&operator_key);
    let grpc = localai_listener(&args.edge, &http.api_keys).await?;
    let reporting = edge::reporting(&args.edge, environment)?;
    let scheme = if http.tls.is_some() { "https" } else { "http" };
    let models = ServedModels::of(&(&args.models).into(), &environment.local)?;
    let models = models.with_defaults(&(&args).into());
    let listener = listen(SocketAddr::new(host, args.port)).await?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hand_over = signal(SignalKind::user_defined1())?;
    let start = ServerStart::here(&resolved.typed, environment.settings());
    let url = format!("{scheme}://{}", listener.local_addr()?);
    let hosts = &args.ranks.hosts;
    let serving = ServeDescription {
        start: &start,
        url: &url,
        model: &models.default,
        hosts: hosts.hosts.as_deref(),
        agent_port: hosts.reach.agent_port,
        ssh: hosts.reach.ssh.as_deref(),
        operator_key: &operator_key,
    };
    let _record = Written::new(environment, serving);
    let memory_budgets = args.models.memory_budget.iter().map(Into::into).collect();
    let load_on_demand = args.models.load_on_demand;
    let deployment = Deployment { models, ranks, memory_budgets, load_on_demand, http, reporting };
    let server = deployment.start(listener, &environment.local).await?;
    let grpc =
        grpc.map(|it| jackalope_localai::start(it, LocalAi::new(server.state()))).transpose()?;
    let grpc_addr = grpc.as_ref().map(|it| it.addr);
    let is_ready = AtomicBool::new(false);
    let serving = async {
        let loading = Loading::new();
        let status = server.ready(|status| loading.show(status)).await;
        loading.finish();
        let status = status?;
        is_ready.store(true, Ordering::Relaxed);
        if let Some(Err(err)) = environment.home().ok().map(|home| start.remember(&home)) {
            tracing::warn!(%err, "these arguments were not recorded for `restart`");
        }
        announce(&args, &server.offered, &url, grpc_addr, &status).await;
        anyhow::Ok(server.look_after().await?)
    };
    let (result, ending) = tokio::select! {
        result = serving => (result, ShutdownMode::Shutdown),
        _ = interrupt.recv() => (interrupted(&is_ready), ShutdownMode::Shutdown),
        _ = terminate.recv() => (Ok(()), ShutdownMode::Shutdown),
        _ = hand_over.recv() => (Ok(()), ShutdownMode::HandOver),
        () = keep_log_short(args.detached, environment) => (Ok(()), ShutdownMode::Shutdown),
    };
    let grpc_stopped = async {
        if let Some(grpc) = grpc {
            grpc.stop().await;
        }
    };
    server.stop(ending, grpc_stopped).await;
    result
}

/// Returns the result of Ctrl-C: the normal end of a server that is ready, a failure before.
fn interrupted(is_ready: &AtomicBool) -> anyhow::Result<()> {
    if is_ready.load(Ordering::Relaxed) { Ok(()) } else { Err(Interrupted.into()) }
}

/// Prints notes about settings, and warns about variables by which other launchers describe a group,
/// because `serve` ignores them.
fn print_notes(resolved: &Resolved, environment: &Environment) {
    resolved.notes.iter().for_each(|it| output::note(it));
    if !environment.ignored_by_serve.is_empty() {
        output::note(&format!(
            "warning: `serve` does not read {}\n\
             hint: `--hosts` and `--backend` name machines and transport; `jackalope rank` reads them",
            environment.ignored_by_serve.join(", ")
        ));
    }
}

async fn listen(addr: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(addr).await.with_context(|| {
        format!(
            "cannot listen on {addr}\nhint: another program has the port; choose one with `--port`"
        )
    })
}

/// Returns the listener for LocalAI, if one was requested.
async fn localai_listener(edge: &EdgeArgs, keys: &ApiKeys) -> anyhow::Result<Option<TcpListener>> {
    match &edge.grpc_addr {
        Some(addr) => worker::listen(addr, keys, edge.insecure).await.map(Some),
        None => Ok(None),
    }
}

/// Never returns. Rotates the log of a detached server.
async fn keep_log_short(is_detached: bool, environment: &Environment) {
    match environment.home().ok().filter(|_| is_detached) {
        Some(home) => keep_short(&serve_log(&home)).await,
        None => std::future::pending().await,
    }
}

/// The record of this server; it is removed when dropped.
struct Written(Option<(Home, ServeRecord)>);

impl Written {
    /// Writes the record. Failing to write it is logged, not fatal.
    fn new(environment: &Environment, serving: ServeDescription<'_>) -> Written {
        let Ok(home) = environment.home() else { return Written(None) };
        match ServeRecord::write(&home, serving) {
            Ok(Some(record)) => Written(Some((home, record))),
            Ok(None) => {
                tracing::info!("`status` and `stop` refer to another server, which runs already");
                Written(None)
            }
            Err(err) => {
                tracing::warn!(%err, "`status` and `stop` will not find this server");
                Written(None)
            }
        }
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        if let Some((home, record)) = &self.0 {
            record.forget(home);
        }
    }
}

/// Prints the address of the server. A blocked standard output delays nothing else.
async fn announce(
    args: &ServeArgs,
    offered: &ServedModels,
    url: &str,
    grpc_addr: Option<SocketAddr>,
    status: &Status,
) {
    let text = announcement(args, offered, url, grpc_addr, status);
    let printed = tokio::task::spawn_blocking(move || output::line(text)).await;
    if let Ok(Err(err)) = printed {
        // Only logged: clients over HTTP do not need the announcement.
        tracing::warn!(%err, "the announcement that the server is ready was not printed");
    }
}

fn announcement(
    args: &ServeArgs,
    offered: &ServedModels,
    url: &str,
    grpc_addr: Option<SocketAddr>,
    status: &Status,
) -> String {
    let model_id = &offered.default;
    let num_others = offered.models.len() - 1;
    if args.json {
        let ranks = split::json(status);
        let event = json!({
            "event": "ready", "url": url, "model": model_id, "pid": std::process::id(),
            "grpc_addr": grpc_addr,
            "ranks": ranks, "models": offered.models.iter().map(|it| &it.id).collect::<Vec<_>>(),
        });
        return event.to_string();
    }
    let others = match num_others {
        0 => String::new(),
        num => format!("  {num} more on demand    jackalope served --url {url}\n"),
    };
    let localai = grpc_addr.map_or(String::new(), |addr| {
        format!("  LocalAI      --external-grpc-backends mlx-distributed:{addr}\n")
    });
    format!(
        "{model_id} on {} is ready\n{}\n{others}{localai}  \
         OpenAI API   {url}/v1\n  \
         web page     {url}/\n  \
         talk to it   jackalope chat --url {url}\n  \
         stop it      Ctrl-C",
        jackalope_protocol::counted(status.ranks.len(), "rank"),
        split::text(status)
    )
}
