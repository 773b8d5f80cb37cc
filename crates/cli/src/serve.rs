//! `jackalope serve`: serves models over HTTP.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};
use jackalope_engine::{SamplingOptions, Status};
use jackalope_fleet::home::Home;
use jackalope_placement::ModelFacts;
use jackalope_protocol::Secret;
use jackalope_server::{
    ApiKeys, Ending, Model, ModelDetails, Models, ModelsConfig, ServerConfig, ServerLimits,
    ServerState,
};
use jackalope_text::GenerationDefaults;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::args::{EdgeArgs, ServeArgs};
use crate::cluster::{Cluster, READY_POLL};
use crate::config::Resolved;
use crate::environment::Environment;
use crate::keeper::HubPuller;
use crate::loading::{ClusterLoader, Offered};
use crate::offer::Offer;
use crate::operate::{self, ServeRecord, Serving, Start};
use crate::output;
use crate::progress::Loading;
use crate::report::Interrupted;
use crate::{edge, machines, split, worker};

/// An HTTP server that answers for a cluster.
pub(crate) struct HttpServer {
    pub(crate) addr: SocketAddr,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl HttpServer {
    /// Starts a server on `listener`, which also answers while the ranks are loading.
    pub(crate) fn start(listener: TcpListener, state: ServerState) -> anyhow::Result<HttpServer> {
        let addr = listener.local_addr()?;
        let (stop, mut stopped) = watch::channel(false);
        let task = tokio::spawn(jackalope_server::serve(listener, state, async move {
            // An error means that the sender is gone, which is a stop as well.
            stopped.wait_for(|stop| *stop).await.ok();
        }));
        Ok(HttpServer { addr, stop, task })
    }

    /// Starts a gRPC server for LocalAI on `listener`.
    pub(crate) fn start_grpc(
        listener: TcpListener,
        state: ServerState,
    ) -> anyhow::Result<HttpServer> {
        let addr = listener.local_addr()?;
        let (stop, mut stopped) = watch::channel(false);
        let task = tokio::spawn(jackalope_server::serve_grpc(listener, state, async move {
            // An error means that the sender is gone, which is a stop as well.
            stopped.wait_for(|stop| *stop).await.ok();
        }));
        Ok(HttpServer { addr, stop, task })
    }

    /// Closes open connections and waits for them, within the server's limit.
    pub(crate) async fn stop(self) {
        self.stop.send_replace(true);
        self.task.await.ok();
    }
}

/// Maximum time in which the process ends, whatever the engines and connections do.
pub(crate) const STOP_MAX: Duration = Duration::from_secs(10);

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

pub(crate) async fn run(
    mut args: ServeArgs,
    resolved: &Resolved,
    environment: &Environment,
) -> anyhow::Result<()> {
    if args.detached {
        // Fails only if this process leads a session already, which is as good.
        rustix::process::setsid().ok();
    }
    resolved.notes.iter().for_each(|it| output::note(it));
    warn_of_launchers(environment);
    raise_open_files(resolved.open_files);
    let host = listen_ip(&mut args)?;
    machines::take_discovered(&mut args.ranks.hosts, environment).await?;
    let mut config = edge::config(host, &args)?;
    let operator_key = Secret::random().context("generating the operator's key")?.to_hex();
    config.api_keys = config.api_keys.with_operator(&operator_key);
    let grpc = localai_listener(&args.edge, &config.api_keys).await?;
    let reporting = edge::reporting(&args.edge, environment)?;
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    let offer = Offer::of(&args.models, environment)?.with_usual(&args);
    let addr = SocketAddr::new(host, args.port);
    let listener = listen(addr).await?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hand_over = signal(SignalKind::user_defined1())?;
    let start = Start::of(resolved, environment);
    let url = format!("{scheme}://{}", listener.local_addr()?);
    let serving = Serving {
        args: &args,
        start: &start,
        url: &url,
        model: &offer.default,
        operator_key: &operator_key,
    };
    let _record = Written::new(environment, serving);
    let (models, offered) = models_of(&offer, &args, environment).await?;
    let mut config = with_models(config, (&offer, host), &args);
    // As `model_control`, but also with a single model: with keys, administrators may pull models.
    if !config.api_keys.is_empty() || edge::is_loopback(host) {
        let keeper = HubPuller::new(environment, offer.models_dir.clone(), (&models, offered));
        config.puller = Some(Arc::new(keeper));
    }
    let state = ServerState::reporting(models.clone(), config, reporting);
    let server = HttpServer::start(listener, state.clone())?;
    let grpc = grpc.map(|it| HttpServer::start_grpc(it, state)).transpose()?;
    let grpc_addr = grpc.as_ref().map(|it| it.addr);
    let is_ready = AtomicBool::new(false);
    let serving = async {
        let status = ready(&models, &offer.default).await?;
        is_ready.store(true, Ordering::Relaxed);
        if let Some(Err(err)) = environment.home().ok().map(|home| start.remember(&home)) {
            tracing::warn!(%err, "these arguments were not recorded for `restart`");
        }
        announce(&args, &offer, (&url, grpc_addr), &status).await;
        look_after(&models, &offer).await
    };
    let (result, ending) = tokio::select! {
        result = serving => (result, Ending::Shutdown),
        _ = interrupt.recv() => (interrupted(&is_ready), Ending::Shutdown),
        _ = terminate.recv() => (Ok(()), Ending::Shutdown),
        _ = hand_over.recv() => (Ok(()), Ending::HandOver),
        () = keep_log_short(args.detached, environment) => (Ok(()), Ending::Shutdown),
    };
    stop(&models, ending, server, grpc).await;
    result
}

/// Stops everything that this process serves, within [`STOP_MAX`]. Streams end with their engines,
/// and connections with their streams.
async fn stop(models: &Models, ending: Ending, server: HttpServer, grpc: Option<HttpServer>) {
    let grpc_stopped = async {
        if let Some(grpc) = grpc {
            grpc.stop().await;
        }
    };
    let stopped = async { tokio::join!(models.end(ending), server.stop(), grpc_stopped) };
    if tokio::time::timeout(STOP_MAX, stopped).await.is_err() {
        tracing::warn!(?STOP_MAX, "the engine did not stop in time, and is abandoned");
    }
    // The programs of these children were never executed, and the threads that wait for that end
    // with this process.
    jackalope_fleet::platform::current::kill_unexecuted_children(Duration::ZERO);
}

/// Returns the result of Ctrl-C: the normal end of a server that is ready, a failure before.
fn interrupted(is_ready: &AtomicBool) -> anyhow::Result<()> {
    if is_ready.load(Ordering::Relaxed) { Ok(()) } else { Err(Interrupted.into()) }
}

/// Warns about variables by which other launchers describe a group, because `serve` ignores them.
fn warn_of_launchers(environment: &Environment) {
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

/// Creates the models of the server, and begins to load the default one.
async fn models_of(
    offer: &Offer,
    args: &ServeArgs,
    environment: &Environment,
) -> anyhow::Result<(Models, Offered)> {
    let typed = (&args.ranks, &args.models.memory_budget[..]);
    let loader = ClusterLoader::new(offer, typed, environment).await?;
    let config = ModelsConfig {
        budget: loader.budget(),
        load_on_demand: args.models.load_on_demand.unwrap_or(offer.is_several()),
        idle_unload: offer.idle_unload,
        default: Some(offer.default.clone()),
    };
    let offered = loader.models();
    let models = Models::new(Arc::new(loader), offer.known()?, config);
    models.begin_load(&offer.default);
    Ok((models, offered))
}

/// Returns the configuration of a server that offers these models.
fn with_models(
    config: ServerConfig,
    (offer, host): (&Offer, IpAddr),
    args: &ServeArgs,
) -> ServerConfig {
    let limits = ServerLimits { load_wait: args.models.load_wait, ..config.limits };
    // If there are keys, the server requires those of administrators.
    let takes_turns = offer.is_several() && edge::is_loopback(host);
    let model_control = !config.api_keys.is_empty() || takes_turns;
    ServerConfig { limits, model_control, ..config }
}

/// Waits until the ranks of a model can compute, showing progress on a terminal.
async fn ready(models: &Models, id: &str) -> anyhow::Result<Status> {
    let loading = Loading::new();
    let showing = async {
        loop {
            if let Some(engine) = models.engine(id) {
                loading.show(&engine.status());
            }
            tokio::time::sleep(READY_POLL).await;
        }
    };
    let loaded = tokio::select! {
        loaded = models.load(id) => loaded,
        () = showing => unreachable!("it goes on for ever"),
    };
    loading.finish();
    Ok(loaded.map_err(|err| anyhow::anyhow!(err.message))?.status())
}

/// Loads the pinned models. A server of one model ends with its engine, so that its supervisor
/// notices; a server of several models continues.
async fn look_after(models: &Models, offer: &Offer) -> anyhow::Result<()> {
    for id in offer.at_start().iter().skip(1) {
        if let Err(err) = models.load(id).await {
            tracing::warn!(id, %err, "a pinned model is not loaded");
        }
    }
    if offer.is_several() {
        return std::future::pending().await;
    }
    bail!("{}", models.ended(&offer.default).await.message)
}

/// Never returns. Rotates the log of a detached server.
async fn keep_log_short(is_detached: bool, environment: &Environment) {
    match environment.home().ok().filter(|_| is_detached) {
        Some(home) => operate::keep_serve_log_short(&home).await,
        None => std::future::pending().await,
    }
}

/// The record of this server; it is removed when dropped.
struct Written(Option<(Home, ServeRecord)>);

impl Written {
    /// Writes the record. Failing to write it is logged, not fatal.
    fn new(environment: &Environment, serving: Serving<'_>) -> Written {
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

/// Twice the number of open files that the connection limits may need.
const OPEN_FILES: u64 = 8192;

/// Raises the limits of open files to at least these, as far as the system permits.
fn raise_open_files(wanted: Option<(u64, u64)>) {
    let wanted = wanted.unwrap_or((OPEN_FILES, 0));
    let now = getrlimit(Resource::Nofile);
    // Only root may raise the hard limit.
    let set = |limit: Rlimit| setrlimit(Resource::Nofile, limit);
    let (raised, within) = (raised(now, wanted), within(now, wanted));
    if let Err(err) = set(raised).or_else(|_| set(within)) {
        tracing::warn!(%err, "the limit of open files could not be raised");
    }
}

/// Returns both limits, never lower than they are; `None` is unlimited.
fn raised(now: Rlimit, (soft, hard): (u64, u64)) -> Rlimit {
    let least = |now: Option<u64>, wanted: u64| now.map(|now| now.max(wanted));
    Rlimit { current: least(now.current, soft), maximum: least(now.maximum, hard) }
}

/// Returns the soft limit, as far as the hard one permits.
fn within(now: Rlimit, wanted: (u64, u64)) -> Rlimit {
    let current = raised(now, wanted).current;
    let bounded = current.map(|it| now.maximum.map_or(it, |most| it.min(most)));
    Rlimit { current: bounded, maximum: now.maximum }
}

/// Returns a cluster's model, with the sampling options that its checkpoint recommends.
pub(crate) fn served(model_id: &str, cluster: &Cluster) -> Model {
    Model {
        sampling_defaults: sampling_defaults(&cluster.text.generation),
        ..Model::new(model_id, cluster.engine.clone(), Arc::clone(&cluster.text))
    }
}

/// Returns the details of a checkpoint for lists of models. A server works without them.
pub(crate) fn details(dir: &Path) -> Option<ModelDetails> {
    let facts = match ModelFacts::read(dir) {
        Ok(facts) => facts,
        Err(err) => {
            tracing::warn!(%err, "lists of models will not show its size");
            return None;
        }
    };
    let modified = std::fs::metadata(dir).and_then(|it| it.modified()).unwrap_or(UNIX_EPOCH);
    Some(ModelDetails {
        num_parameters: num_parameters(&facts),
        weight_bits: Some(weight_bits(&facts)),
        weights_bytes: facts.weights_bytes(),
        hidden_size: facts.hidden_size,
        modified: modified.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        family: facts.architecture,
    })
}

fn weight_bits(facts: &ModelFacts) -> u32 {
    let plain = u32::try_from(8 * facts.element_bytes).unwrap_or(u32::MAX);
    facts.quantization.map_or(plain, |quantization| quantization.bits)
}

/// Estimates the number of parameters from the size, as if all weights were stored like most of
/// them: quantised ones have a scale and a bias for each group.
fn num_parameters(facts: &ModelFacts) -> u64 {
    let element_bits = 8.0 * facts.element_bytes as f64;
    let bits = facts.quantization.map_or(element_bits, |quantization| {
        f64::from(quantization.bits) + 2.0 * element_bits / f64::from(quantization.group_size)
    });
    (8.0 * facts.weights_bytes() as f64 / bits) as u64
}

/// Returns the checkpoint's recommendations, for requests that do not set sampling parameters.
fn sampling_defaults(recommended: &GenerationDefaults) -> SamplingOptions {
    let usual = SamplingOptions::default();
    SamplingOptions {
        temperature: recommended.temperature().unwrap_or(usual.temperature),
        top_p: recommended.top_p.unwrap_or(usual.top_p),
        top_k: recommended.top_k.unwrap_or(usual.top_k),
        min_p: recommended.min_p.unwrap_or(usual.min_p),
        repetition_penalty: recommended.repetition_penalty.unwrap_or(usual.repetition_penalty),
        ..usual
    }
}

/// Prints the address of the server. A blocked standard output delays nothing else.
async fn announce(
    args: &ServeArgs,
    offer: &Offer,
    at: (&str, Option<SocketAddr>),
    status: &Status,
) {
    let text = announcement(args, offer, at, status);
    let printed = tokio::task::spawn_blocking(move || output::line(text)).await;
    if let Ok(Err(err)) = printed {
        // Only logged: clients over HTTP do not need the announcement.
        tracing::warn!(%err, "the announcement that the server is ready was not printed");
    }
}

fn announcement(
    args: &ServeArgs,
    offer: &Offer,
    (url, grpc_addr): (&str, Option<SocketAddr>),
    status: &Status,
) -> String {
    let model_id = &offer.default;
    let num_others = offer.models.len() - 1;
    if args.json {
        let ranks = split::json(status);
        let event = json!({
            "event": "ready", "url": url, "model": model_id, "pid": std::process::id(),
            "grpc_addr": grpc_addr,
            "ranks": ranks, "models": offer.models.iter().map(|it| &it.id).collect::<Vec<_>>(),
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
         dashboard    {url}/dashboard\n  \
         talk to it   jackalope chat --url {url}\n  \
         stop it      Ctrl-C",
        output::counted(status.ranks.len(), "rank"),
        split::text(status)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_open_files_are_raised_and_never_lowered() {
        let limit = |current, maximum| Rlimit { current, maximum };
        let wanted = (2048, 4096);
        for (now, expected, without_root) in [
            (limit(Some(256), None), limit(Some(2048), None), limit(Some(2048), None)),
            (
                limit(Some(256), Some(1024)),
                limit(Some(2048), Some(4096)),
                limit(Some(1024), Some(1024)),
            ),
            (
                limit(Some(9999), Some(9999)),
                limit(Some(9999), Some(9999)),
                limit(Some(9999), Some(9999)),
            ),
            (limit(None, None), limit(None, None), limit(None, None)),
        ] {
            let of = |it: Rlimit| (it.current, it.maximum);
            assert_eq!(of(raised(now, wanted)), of(expected));
            assert_eq!(of(within(now, wanted)), of(without_root));
        }
    }
}
