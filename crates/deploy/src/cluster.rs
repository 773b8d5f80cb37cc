//! Starts an engine with its ranks, and stops it.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jackalope_engine::link::{
    Launch, LaunchError, LaunchOrder, Launcher, Link, LinkConfig, LinkTimeouts, RankAssignment,
    RankProcess,
};
use jackalope_engine::{
    Engine, EngineConfig, EngineError, EngineHandle, EngineState, KvBudget, PressurePolicy,
    RetryPolicy, Status,
};
use jackalope_fleet::hostfile::{Host, Hostfile};
use jackalope_fleet::listen::{address_towards, own_addresses};
use jackalope_fleet::local::{LocalError, LocalRank, LocalRanks, PreparedRank, find_rank_program};
use jackalope_fleet::nodes::Nodes;
use jackalope_fleet::routes::{self, Encryption};
use jackalope_placement::PlacementConstraints;
use jackalope_protocol::split::Split;
use jackalope_protocol::{Backend, ExpectedContent, Setup};
use jackalope_text::{ChatTemplate, ModelText};
use tokio::task::JoinHandle;
use tracing::warn;

use crate::config::{Beside, PROMPT_STEP_TOKENS, RankConfig, STEP_TOKENS};
use crate::content::{OwnContent, content_of_dir};
use crate::context::LocalContext;
use crate::error::DeployError;
use crate::expected_costs::ExpectedCosts;
use crate::machines::placer::Placer;
use crate::machines::{self, AgentLauncher, ByHand, Tickets};
use crate::models::{self, Located};
use crate::pressure::{self, Watched};
use crate::rank_process;
use crate::split_constraints::GivenSplit;

/// Timeout of one collective; a peer that computes a long prompt keeps the others waiting.
const COLLECTIVE_TIMEOUT: Duration = Duration::from_secs(60);

/// Timeout of forming a group of ranks that are all loaded.
const JOIN_TIMEOUT: Duration = Duration::from_secs(20);

/// Minimum heartbeat timeout; a shorter silence may be caused by the network.
const HEARTBEAT_TIMEOUT_MIN: Duration = Duration::from_secs(3);

/// Time after which ranks consider a silent coordinator on another machine lost.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval of polling ranks that are loading.
pub const READY_POLL: Duration = Duration::from_millis(20);

/// Options of a cluster beside its model and its ranks.
#[derive(Clone, Debug, Default)]
pub struct ClusterOptions {
    /// Whether steps report their kernels' times.
    pub profile: bool,
    /// Set if other models run on the same machines.
    pub beside: Option<Beside>,
    /// Name of the parser for the model's tool calls; by default it follows from the model's files.
    pub tool_parser: Option<String>,
    /// Name of the parser for the model's reasoning; by default it follows from the model's files.
    pub reasoning_parser: Option<String>,
    /// Whether control tokens in the text of messages are parsed as such.
    pub parse_special_tokens: bool,
    /// Whether this is a long-running server: then a model that was never hashed is hashed in the
    /// background.
    pub is_server: bool,
}

/// An engine with its ranks.
pub struct Cluster {
    /// The engine, which takes requests.
    pub engine: EngineHandle,
    /// Tokenizer and chat template of the model.
    pub text: Arc<ModelText>,
    /// Handle that waits for the engine's thread.
    end: Option<JoinHandle<std::thread::Result<Result<(), EngineError>>>>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("status", &self.engine.status().state)
            .finish_non_exhaustive()
    }
}

/// Loads the texts of a checkpoint.
fn model_text(model_dir: &Path) -> Result<ModelText, DeployError> {
    ModelText::load(model_dir)
        .map_err(|source| DeployError::Text { dir: model_dir.to_owned(), source: Box::new(source) })
}

impl Cluster {
    /// Checks whether a model has what a cluster of it needs on this machine: its configuration, its
    /// tokenizer and its template. The machines of the ranks need the weights as well.
    ///
    /// # Errors
    /// If one of them cannot be read.
    pub fn check(model: &Located) -> Result<(), DeployError> {
        model_text(&checkpoint_dir(&model.dir)?).map(drop)
    }

    /// Starts the engine and the ranks without waiting for them to load.
    ///
    /// # Errors
    /// If the model cannot be read, or the ranks cannot be placed.
    pub async fn start(
        model: &Located,
        ranks: &RankConfig,
        context: &LocalContext,
    ) -> Result<Cluster, DeployError> {
        Cluster::start_with(model, ranks, context, ClusterOptions::default()).await
    }

    /// Like [`Cluster::start`], with these options.
    ///
    /// # Errors
    /// As in [`Cluster::start`].
    pub async fn start_with(
        model: &Located,
        ranks: &RankConfig,
        context: &LocalContext,
        options: ClusterOptions,
    ) -> Result<Cluster, DeployError> {
        let mut ranks = ranks.clone();
        machines::take_discovered(&mut ranks.hosts, context).await?;
        let ranks = &ranks;
        let model_dir = checkpoint_dir(&model.dir)?;
        let mut text = model_text(&model_dir)?;
        let name = |of: &Option<String>| of.clone().unwrap_or_else(|| "auto".to_owned());
        let (reasoning, tools) = (name(&options.reasoning_parser), name(&options.tool_parser));
        text.answer = text.answer.from_names(&text.tokenizer, &reasoning, &tools)?;
        if let Some(Err(fault)) = &text.template {
            warn!("{}: {}", model_dir.display(), fault.to_string().replace('\n', "; "));
        }
        if options.parse_special_tokens {
            let in_text =
                |it: Result<ChatTemplate, _>| it.map(ChatTemplate::with_control_tokens_in_text);
            text.template = text.template.map(in_text);
        }
        let wanted = PlacementRequest { model_dir: &model_dir, ranks, options: &options, context };
        let placed = match &ranks.hosts.hosts {
            None => {
                let content = OwnContent::of_dir(&model_dir, context).await?;
                place_here(&wanted, content)?
            }
            Some(hosts) if ranks.hosts.by_hand => {
                let content = content_of_dir(&model_dir, context).await?;
                place_by_hand(hosts, &wanted, content)?
            }
            Some(hosts) => {
                let model = Located { dir: model_dir.clone(), ..model.clone() };
                place_on(hosts, &model, &wanted).await?
            }
        };
        let Placed { config, launcher, ranks_per_machine, watched, unhashed } = placed;
        let link = Link::bind(config, launcher)?;
        let kv_budget = match (ranks.kv_mib, &options.beside) {
            (Some(mib), _) => KvBudget::BytesPerRank(mib << 20),
            (None, Some(beside)) => KvBudget::BytesPerRank(beside.kv_bytes),
            (None, None) => KvBudget::Auto { ranks_per_machine },
        };
        let config = engine_config(ranks, &text, kv_budget);
        let (engine, thread) = Engine::spawn(config, link);
        pressure::watch(watched, ranks.memory, engine.clone());
        if let Some(content) = unhashed.filter(|_| options.is_server) {
            content.hash_when_ready(engine.clone());
        }
        let end = tokio::task::spawn_blocking(move || thread.join());
        Ok(Cluster { engine, text: Arc::new(text), end: Some(end) })
    }

    /// Waits until the ranks can compute. Calls `on_status` repeatedly while it waits.
    ///
    /// # Errors
    /// Returns an error that names the rank and the reason if the ranks cannot be started.
    pub async fn ready(&mut self, on_status: impl Fn(&Status)) -> Result<Status, DeployError> {
        let status = loop {
            let status = self.engine.status();
            on_status(&status);
            if status.state != EngineState::Starting {
                break status;
            }
            tokio::time::sleep(READY_POLL).await;
        };
        if status.state == EngineState::Ready {
            return Ok(status);
        }
        self.engine.shutdown();
        self.ended().await?;
        Err(DeployError::NotReady)
    }

    /// Waits for the engine to end, which is an error unless it was requested. May be called again
    /// after it was cancelled.
    ///
    /// # Errors
    /// The reason why the engine has failed.
    pub async fn ended(&mut self) -> Result<(), DeployError> {
        let Some(end) = &mut self.end else { return Ok(()) };
        let result = end.await?;
        self.end = None;
        match result {
            Ok(result) => Ok(result?),
            Err(_) => Err(DeployError::EnginePanic),
        }
    }

    /// Waits for the engine to end; ends it if the future is dropped.
    ///
    /// # Errors
    /// The reason why the engine has failed.
    pub async fn into_end(mut self) -> Result<(), DeployError> {
        self.ended().await
    }

    /// Stops the engine and every rank.
    ///
    /// # Errors
    /// The reason why the engine has failed.
    pub async fn stop(mut self) -> Result<(), DeployError> {
        self.engine.shutdown();
        self.ended().await
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.engine.shutdown();
    }
}

/// Returns the directory as an absolute path.
///
/// # Errors
/// If the directory cannot be read, or holds no checkpoint.
fn checkpoint_dir(dir: &Path) -> Result<PathBuf, DeployError> {
    let dir = std::fs::canonicalize(dir)
        .map_err(|source| DeployError::NoCheckpoint { dir: dir.to_owned(), source })?;
    if dir.join("config.json").is_file() { Ok(dir) } else { Err(DeployError::NoConfig { dir }) }
}

/// The model and the ranks that are to be placed.
#[derive(Clone, Copy)]
struct PlacementRequest<'a> {
    model_dir: &'a Path,
    ranks: &'a RankConfig,
    options: &'a ClusterOptions,
    context: &'a LocalContext,
}

/// The ranks' settings and the launcher that starts them.
struct Placed {
    config: LinkConfig,
    launcher: Box<dyn Launcher>,
    /// Maximum number of ranks that share a machine's memory.
    ranks_per_machine: u32,
    watched: Watched,
    /// Content of a model that has not been hashed yet, if all ranks run on this machine.
    unhashed: Option<OwnContent>,
}

fn timeouts(ranks: &RankConfig) -> LinkTimeouts {
    let stall = ranks.stall_timeout;
    // Heartbeats come once a second, however busy a rank is.
    let heartbeat = stall.max(HEARTBEAT_TIMEOUT_MIN);
    LinkTimeouts {
        spawn: stall,
        replacement_hello: stall,
        step: stall,
        timed_tokens_max: step_tokens(ranks) as usize,
        heartbeat,
        write: stall,
        ..LinkTimeouts::default()
    }
}

/// Places all ranks on this machine; they end with this process.
fn place_here(wanted: &PlacementRequest<'_>, content: OwnContent) -> Result<Placed, DeployError> {
    let PlacementRequest { model_dir, ranks, .. } = *wanted;
    let num_ranks = ranks.num_ranks;
    let backend = ranks.backend.unwrap_or(Backend::Tcp);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let cores = u32::try_from(cores).unwrap_or(u32::MAX);
    let split = ranks.split.given_or_even(model_dir, num_ranks as usize, backend)?;
    let setup = Setup {
        num_ranks,
        num_threads: ranks.num_threads.unwrap_or((cores / num_ranks).max(1)),
        ..setup_of(wanted, backend, split)?
    };
    check_encryption(ranks.encryption, backend)?;
    let encrypts = ranks.encryption == Encryption::On;
    let encrypt = vec![encrypts; num_ranks as usize];
    let seats = RankAssignment::local(&setup).into_iter();
    let seats = seats.map(|seat| RankAssignment { encrypt: encrypt.clone(), ..seat }).collect();
    let mut local = LocalRanks::new(&find_rank_program()?, backend, num_ranks as usize);
    local.set_env(ranks.hosts.env.clone());
    local.set_start_timeout(timeouts(ranks).spawn);
    let config = LinkConfig {
        listen: vec![SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0)],
        expected: vec![Ipv4Addr::LOCALHOST.into()],
        assignments: seats,
        timeouts: timeouts(ranks),
        first_epoch: 0,
    };
    let unhashed = content.now().id.is_none().then(|| content.clone());
    let launcher = Box::new(LocalLauncher { ranks: local, content });
    let (ranks_per_machine, watched) = (num_ranks, Watched::Here);
    Ok(Placed { config, launcher, ranks_per_machine, watched, unhashed })
}

/// Places ranks on the machines of a hostfile, where agents run them.
async fn place_on(
    hosts: &str,
    model: &Located,
    wanted: &PlacementRequest<'_>,
) -> Result<Placed, DeployError> {
    let PlacementRequest { ranks, options, context, .. } = *wanted;
    let Hostfile { backend, mut envs, hosts } = machines::hostfile(hosts)?;
    envs.extend(ranks.hosts.env.iter().cloned());
    let backend = ranks.backend.or(backend).unwrap_or(Backend::Tcp);
    check_encryption(ranks.encryption, backend)?;
    let given = ranks.split.given(&model.dir, hosts.len(), backend)?;
    let nodes_config = machines::nodes_config(&ranks.hosts.reach, context)?;
    let ours = nodes_config.ours.clone();
    let nodes =
        machines::bring_up(hosts.clone(), nodes_config, &context.observer, machines::log_lines)
            .await?;
    let nodes = Arc::new(nodes);
    let models_from = ranks.hosts.models_from.as_deref();
    let copy_port = ranks.hosts.copy_port;
    let computing =
        models::ModelMachines { nodes: &nodes, hosts: &hosts, model, models_from, copy_port };
    let (models, content) = models::places(computing, context, &ours).await?;
    // File states are valid on their own machine only.
    let content = Some(ExpectedContent { states: Vec::new(), ..content });
    let ranks_on = |node: usize| nodes.of_rank.iter().filter(|&&it| it == node).count();
    let ranks_per_machine = (0..nodes.nodes.len()).map(ranks_on).max().unwrap_or(1);
    let setup = Setup {
        silence_timeout_ms: millis(SILENCE_TIMEOUT),
        orphan_ms: millis(ranks.hosts.lease),
        content,
        ..setup(wanted, backend)?
    };
    let (listen, expected) = control_ips(&hosts, &nodes);
    let cut = match given {
        Some(split) => machines::placer::given(GivenSplit::of_model(split, &model.dir)?),
        None => {
            let name = options.beside.as_ref().map(|it| it.name.as_str());
            let (context_tokens, split) = (ranks.context_tokens, ranks.split.kind_over(backend)?);
            let constraints = PlacementConstraints { context_tokens, split, num_machines: None };
            Placer::new(&model.dir, &hosts, backend, &nodes, constraints)?.cut(name)
        }
    };
    let absent_after = ranks.hosts.absent_after;
    let (threads, beside) = (ranks.num_threads, options.beside.clone());
    let watched = Watched::agents(&nodes);
    let slot = beside.as_ref().map_or(0, |it| it.slot);
    let data_ports = ranks.hosts.data_ports;
    let encryption = ranks.encryption;
    let port = control_port(ranks, slot)?;
    let tickets = Tickets::new(&ours.identity, port, &model.dir, beside.as_ref())?;
    let places = machines::Places {
        hosts,
        envs,
        nodes,
        models,
        threads,
        beside,
        data_ports,
        encryption,
        tickets,
        expected_costs: ExpectedCosts::read(&model.dir),
    };
    let (launcher, seats) = AgentLauncher::new(places, setup, cut, absent_after)?;
    warn_of_clear(&seats, backend, ranks.encryption);
    let config = LinkConfig {
        listen: with_port(listen, port),
        expected,
        assignments: seats,
        timeouts: timeouts(ranks),
        first_epoch: first_epoch(),
    };
    let ranks_per_machine = u32::try_from(ranks_per_machine).unwrap_or(u32::MAX);
    let launcher = Box::new(launcher);
    Ok(Placed { config, launcher, ranks_per_machine, watched, unhashed: None })
}

/// Places ranks that are started by hand on the machines of a hostfile.
fn place_by_hand(
    hosts: &str,
    wanted: &PlacementRequest<'_>,
    content: ExpectedContent,
) -> Result<Placed, DeployError> {
    let PlacementRequest { model_dir, ranks, context, .. } = *wanted;
    let Hostfile { backend, hosts, .. } = machines::hostfile(hosts)?;
    let backend = ranks.backend.or(backend).unwrap_or(Backend::Tcp);
    check_encryption(ranks.encryption, backend)?;
    let nodes: Vec<routes::RouteNode<'_>> =
        hosts.iter().map(|host| routes::RouteNode { host, facts: None }).collect();
    let split = ranks.split.given_or_even(model_dir, hosts.len(), backend)?;
    let setup = Setup {
        num_ranks: u32::try_from(hosts.len()).expect("a hostfile is short"),
        num_threads: ranks.num_threads.unwrap_or(0),
        silence_timeout_ms: millis(SILENCE_TIMEOUT),
        orphan_ms: millis(ranks.hosts.lease),
        // Nothing is known about the other machines: their ranks hash everything that they read.
        content: Some(ExpectedContent { states: Vec::new(), ..content }),
        ..setup_of(wanted, backend, split)?
    };
    // A hostfile with a matrix of devices has no addresses: its transport connects the ranks over
    // these devices.
    let has_addresses = hosts.iter().any(|host| !host.ips.is_empty());
    let routes = if backend.is_stock() && !has_addresses {
        vec![Vec::new(); hosts.len()]
    } else {
        routes::routes(&nodes)?
    };
    let data_ips: Vec<Vec<IpAddr>> = (0..hosts.len()).map(|to| ips_of(&routes, to)).collect();
    let encrypted = if routes.iter().all(Vec::is_empty) {
        vec![Vec::new(); hosts.len()]
    } else {
        routes::encrypted(&nodes, &routes, ranks.encryption)
    };
    // Any holder of the secret may be a rank of this server: people carry it to the machines.
    let secret = context.home()?.secret()?;
    let seat = |(rank, ((host, routes), encrypt)): (u32, ((&Host, _), _))| RankAssignment {
        setup: setup.clone(),
        host: host.name(),
        routes,
        encrypt,
        rdma: host.rdma_towards((0..hosts.len()).filter(|_| backend == Backend::Jaccl)),
        ticket: rank_process::ticket_by_hand(&secret, rank),
    };
    let ways = hosts.iter().zip(routes).zip(encrypted);
    let seats: Vec<RankAssignment> = (0..).zip(ways).map(seat).collect();
    warn_of_clear(&seats, backend, ranks.encryption);
    let coordinator = hosts.first().and_then(|host| host.ips.first().copied());
    let control = SocketAddr::new(
        coordinator.unwrap_or(Ipv4Addr::LOCALHOST.into()),
        ranks.hosts.control_port,
    );
    let config = LinkConfig {
        listen: with_port(by_hand_ips(&hosts), ranks.hosts.control_port),
        expected: hosts.iter().flat_map(|host| host.ips.iter().copied()).collect(),
        assignments: seats,
        timeouts: timeouts(ranks),
        first_epoch: first_epoch(),
    };
    let first = ranks.hosts.first_here.then(|| ranks.hosts.rank_env.clone());
    let data_ports = ranks.hosts.data_ports;
    let launcher = Box::new(ByHand {
        hosts: hosts.iter().map(Host::name).collect(),
        control,
        data_ips,
        data_ports,
        first,
        observer: Arc::clone(&context.observer),
    });
    let ranks_per_machine = ranks_per_machine(&hosts);
    let is_here = hosts.iter().any(Host::is_local);
    let watched = if is_here { Watched::Here } else { Watched::Nobody };
    Ok(Placed { config, launcher, ranks_per_machine, watched, unhashed: None })
}

/// Returns the maximum number of entries for the same machine.
fn ranks_per_machine(hosts: &[Host]) -> u32 {
    let beside = |host: &Host| hosts.iter().filter(|it| it.is_same_machine(host)).count();
    let most = hosts.iter().map(beside).max().unwrap_or(1).max(1);
    u32::try_from(most).unwrap_or(1)
}

/// Returns the addresses to listen on for ranks (those that the machines see, and the local
/// addresses on the routes to all their addresses), and the addresses from which ranks connect.
fn control_ips(hosts: &[Host], nodes: &Nodes) -> (Vec<IpAddr>, Vec<IpAddr>) {
    let seen = nodes.nodes.iter().filter_map(|node| node.agent.our_ip());
    let addrs = nodes.nodes.iter().flat_map(|node| node.agent.addrs()).map(SocketAddr::ip);
    let theirs: BTreeSet<IpAddr> =
        hosts.iter().flat_map(|host| host.ips.iter().copied()).chain(addrs).collect();
    let mut ours: BTreeSet<IpAddr> = seen.collect();
    if !hosts.iter().all(Host::is_local) {
        ours.extend(theirs.iter().filter_map(|ip| address_towards(*ip)));
    }
    let interfaces = nodes.nodes.iter().flat_map(|node| &node.facts.interfaces);
    let from = interfaces.flat_map(|it| &it.addrs).map(|addr| addr.ip).chain(theirs);
    let from: BTreeSet<IpAddr> = from.chain([Ipv4Addr::LOCALHOST.into()]).collect();
    (ours.into_iter().collect(), from.into_iter().collect())
}

/// Like [`control_ips`], for machines that have not been contacted yet.
fn by_hand_ips(hosts: &[Host]) -> Vec<IpAddr> {
    let named = |host: &Host| {
        let name = host.name();
        let found = (name.as_str(), 0).to_socket_addrs().into_iter().flatten();
        if host.ips.is_empty() { found.map(|addr| addr.ip()).collect() } else { host.ips.clone() }
    };
    let ours = hosts.iter().flat_map(named).filter_map(address_towards);
    let ours: BTreeSet<IpAddr> = ours.chain([Ipv4Addr::LOCALHOST.into()]).collect();
    if ours.iter().all(IpAddr::is_loopback) && !hosts.iter().all(Host::is_local) {
        let own: Vec<IpAddr> = own_addresses();
        tracing::warn!(
            ?own,
            "no host has an address; the coordinator listens on all addresses of this machine"
        );
        return own;
    }
    ours.into_iter().collect()
}

/// Returns the addresses by which the other ranks reach rank `to`.
fn ips_of(routes: &[Vec<IpAddr>], to: usize) -> Vec<IpAddr> {
    let others = routes.iter().enumerate().filter(|(from, _)| *from != to);
    let ips: BTreeSet<IpAddr> = others.filter_map(|(_, row)| row.get(to).copied()).collect();
    ips.into_iter().collect()
}

fn with_port(ips: Vec<IpAddr>, port: u16) -> Vec<SocketAddr> {
    ips.into_iter().map(|ip| SocketAddr::new(ip, port)).collect()
}

/// Checks that the transport can encrypt, if all connections are to be encrypted.
///
/// # Errors
/// If all connections are to be encrypted over one of MLX's own transports, which cannot encrypt.
pub fn check_encryption(encryption: Encryption, backend: Backend) -> Result<(), DeployError> {
    if encryption == Encryption::On && backend.is_stock() {
        return Err(DeployError::ClearTransport { backend });
    }
    Ok(())
}

/// Warns if the transport sends activations in clear over an exposed network and `--encrypt-data
/// off` was not given.
fn warn_of_clear(seats: &[RankAssignment], backend: Backend, encryption: Encryption) {
    // JACCL runs only over Thunderbolt cables, each of which joins two machines.
    let encrypts_nothing = matches!(backend, Backend::Ring | Backend::Nccl);
    let is_exposed = seats.iter().any(|seat| seat.encrypt.contains(&true));
    if encrypts_nothing && is_exposed && encryption == Encryption::Auto {
        warn!(
            backend = backend.name(),
            "activations cross the network in clear: MLX's own transports do not encrypt; \
             `--backend tcp` does"
        );
    }
}

/// Returns the port to which the ranks of one of several models connect: port number `slot` from
/// `--control-port` on, without the agents' port. By this port, a later server finds the ranks of
/// an earlier one.
fn control_port(ranks: &RankConfig, slot: u16) -> Result<u16, DeployError> {
    let (first, agents) = (ranks.hosts.control_port, ranks.hosts.reach.agent_port);
    if first == 0 {
        return Ok(0);
    }
    let port = (first..=u16::MAX).filter(|&port| port != agents).nth(slot.into());
    port.ok_or(DeployError::NoPort { slot })
}

/// Returns an epoch that is greater than any of a coordinator that was started earlier, because
/// ranks may outlive one.
fn first_epoch() -> u64 {
    // Microseconds suffice: forming a group takes longer than one, and a coordinator may be
    // replaced within a second.
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the part of the setup that is common to all ranks of a split; their number is still open.
fn setup_of(
    wanted: &PlacementRequest<'_>,
    backend: Backend,
    split: Split,
) -> Result<Setup, DeployError> {
    let cache_costs = ExpectedCosts::read(wanted.model_dir).of(&split);
    Ok(Setup { split, cache_costs, ..setup(wanted, backend)? })
}

/// Returns the part of the setup that is common to all ranks; their number and split are still
/// open.
fn setup(wanted: &PlacementRequest<'_>, backend: Backend) -> Result<Setup, DeployError> {
    let PlacementRequest { model_dir, ranks, options, .. } = *wanted;
    Ok(Setup {
        num_ranks: 0,
        model_dir: model_dir.to_str().ok_or(DeployError::ModelPath)?.to_owned(),
        model_source: None,
        split: Split::Tensor(Vec::new()),
        backend,
        device: ranks.device,
        num_threads: 0,
        sockets_per_peer: 1,
        checksums: ranks.checksums,
        exact_sums: ranks.exact_sums,
        collective_timeout_ms: millis(COLLECTIVE_TIMEOUT),
        join_timeout_ms: millis(JOIN_TIMEOUT),
        silence_timeout_ms: 0,
        orphan_ms: 0,
        profile: options.profile,
        content: None,
        cache_costs: Vec::new(),
    })
}

/// Returns the maximum number of tokens of a step in which sequences decode.
fn step_tokens(ranks: &RankConfig) -> u32 {
    ranks.step_tokens.unwrap_or(STEP_TOKENS).max(ranks.running_max)
}

fn engine_config(ranks: &RankConfig, text: &ModelText, kv_budget: KvBudget) -> EngineConfig {
    EngineConfig {
        pressure: PressurePolicy {
            warns_at_rest: ranks.memory.warn_bytes.is_some(),
            ..PressurePolicy::default()
        },
        step_tokens: step_tokens(ranks),
        prompt_step_tokens: ranks.step_tokens.is_none().then_some(PROMPT_STEP_TOKENS),
        running_max: ranks.running_max,
        queue_max: ranks.queue_max,
        context_tokens: ranks.context_tokens,
        kv_budget,
        keep_prefixes: ranks.keep_prefixes,
        eos_tokens: text.tokenizer.eos_token_ids().to_vec(),
        retry: RetryPolicy { standstill_max: ranks.hosts.give_up_after, ..RetryPolicy::default() },
        ..EngineConfig::default()
    }
}

/// Launcher of ranks on this machine.
struct LocalLauncher {
    ranks: LocalRanks,
    content: OwnContent,
}

impl Launcher for LocalLauncher {
    fn refresh(&mut self, _rank: usize, setup: &Setup) -> Setup {
        Setup { content: Some(self.content.now()), ..setup.clone() }
    }

    fn launch(&mut self, order: &LaunchOrder) -> Launch {
        let prepared = self.ranks.prepare(order.rank, order.control_addr, &order.ticket);
        Box::new(move || match prepared.and_then(PreparedRank::start) {
            Ok(rank) => Ok(Box::new(LocalProcess(rank))),
            Err(err) => Err(launch_error(err)),
        })
    }
}

fn launch_error(err: LocalError) -> LaunchError {
    match err {
        LocalError::Spawn { program, source } => LaunchError::Spawn { program, source },
        LocalError::Settings(source) => {
            LaunchError::Spawn { program: "the group's settings".into(), source }
        }
        LocalError::NoProgram { beside } => LaunchError::Missing {
            program: beside,
            hint: "build it with `cargo build --release -p jackalope-runner`".to_owned(),
        },
    }
}

struct LocalProcess(LocalRank);

impl RankProcess for LocalProcess {
    fn pid(&self) -> Option<u32> {
        Some(self.0.pid())
    }

    fn try_wait(&mut self) -> Option<String> {
        self.0.try_wait()
    }

    fn kill(&mut self) {
        self.0.kill();
    }

    fn last_words(&self) -> String {
        self.0.last_words()
    }
}
