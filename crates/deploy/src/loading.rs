//! Starts the engines of a server's models, and determines how much memory each takes.

use std::path::Path;
use std::time::Duration;

use jackalope_engine::SamplingOptions;
use jackalope_fleet::agent::Agent;
use jackalope_fleet::facts;
use jackalope_fleet::hostfile::{Host, Hostfile};
use jackalope_placement::{Links, NodeOffer, PlacementConstraints, PlacementModel, RankNeed};
use jackalope_protocol::Backend;
use jackalope_protocol::machine::NodeFacts;
use jackalope_server::{
    LoadFuture, MachineBytes, ModelLoadError, ModelLoader, RunningModel, StartedModel,
};

use crate::cluster::{Cluster, ClusterOptions};
use crate::config::{Beside, MemoryBudget, RankConfig};
use crate::context::LocalContext;
use crate::error::{self, DeployError};
use crate::machines;
use crate::machines::placer::{IDLE, RankMachine, idle_split, links};
use crate::registry::ModelRegistry;
use crate::served::served;
use crate::served_models::{ModelSettings, ServedModel, ServedModels};

/// Number of conversations of the planned context for which each of several models gets memory for
/// keys and values, unless `--kv-mib` is set.
const CONVERSATIONS: u32 = 4;

/// Maximum time in which an agent must report the programs it runs.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

/// Name of this machine in messages and arguments.
const THIS_MACHINE: &str = "this machine";

/// Starts models as clusters of ranks, all on the same machines.
#[derive(Debug)]
pub struct ClusterLoader {
    models: ModelRegistry,
    ranks: RankConfig,
    context: LocalContext,
    /// Present if models share memory.
    memory: Option<SharedMemory>,
}

/// Memory that models share.
#[derive(Clone, Debug)]
struct SharedMemory {
    /// The machine of each rank.
    of_rank: Vec<RankMachine>,
    budget: MachineBytes,
    /// Links between the machines of a hostfile.
    links: Option<Links>,
    backend: Backend,
}

impl ClusterLoader {
    /// Creates a loader. With a single model there is nothing to evict: its ranks take what is
    /// free. Several models, or one with a budget, share the memory that the machines have free
    /// now.
    pub async fn new(
        models: &ServedModels,
        ranks: &RankConfig,
        budget: &[MemoryBudget],
        context: &LocalContext,
    ) -> Result<ClusterLoader, DeployError> {
        let is_shared = models.is_several() || !budget.is_empty();
        if is_shared && ranks.hosts.by_hand {
            return Err(DeployError::ByHand);
        }
        let memory = match (is_shared, &ranks.hosts.hosts) {
            (false, _) => None,
            (true, None) => Some(SharedMemory::here(ranks, budget)?),
            (true, Some(hosts)) => {
                Some(SharedMemory::of_hosts(hosts, ranks, budget, context).await?)
            }
        };
        let models = ModelRegistry::new(models.models.clone());
        Ok(ClusterLoader { models, ranks: ranks.clone(), context: context.clone(), memory })
    }

    /// Creates a loader for models that are added later, each with its own ranks.
    pub fn empty(ranks: RankConfig, context: &LocalContext) -> ClusterLoader {
        let models = ModelRegistry::new(Vec::new());
        ClusterLoader { models, ranks, context: context.clone(), memory: None }
    }

    /// Returns the memory that all models may take together.
    pub fn budget(&self) -> MachineBytes {
        self.memory.as_ref().map(|it| it.budget.clone()).unwrap_or_default()
    }

    /// Returns the list of models; this loader also starts those that are added to it later.
    pub fn models(&self) -> ModelRegistry {
        self.models.clone()
    }

    fn ranks(&self, model: &ServedModel) -> RankConfig {
        let ranks = model.ranks.as_ref().unwrap_or(&self.ranks);
        let context_tokens = model.settings.context.or(ranks.context_tokens);
        RankConfig { context_tokens, ..ranks.clone() }
    }
}

impl ModelLoader for ClusterLoader {
    fn need(&self, id: &str) -> LoadFuture<MachineBytes> {
        let (_, model) = self.models.model(id);
        let (memory, ranks) = (self.memory.clone(), self.ranks(&model));
        let dir = model.located.dir.clone();
        let counting = move || match memory {
            None => Ok(MachineBytes::default()),
            Some(memory) => Ok(memory.machines(&memory.needs(&dir, &ranks)?)),
        };
        Box::pin(async {
            let counted = tokio::task::spawn_blocking(counting).await;
            counted.map_err(DeployError::from).flatten().map_err(|err| load_error(&err))
        })
    }

    fn start(&self, id: &str) -> LoadFuture<StartedModel> {
        let (slot, model) = self.models.model(id);
        let ranks = self.ranks(&model);
        let (memory, context) = (self.memory.clone(), self.context.clone());
        let starting = async move {
            let beside = memory.map(|memory| {
                let needs = memory.needs(&model.located.dir, &ranks)?;
                let kv_bytes = needs.iter().map(|it| it.kv_bytes).max().unwrap_or(0);
                Ok::<_, DeployError>(Beside { name: model.id.clone(), slot, kv_bytes })
            });
            let options = ClusterOptions {
                beside: beside.transpose()?,
                tool_parser: model.settings.tool_parser.clone(),
                reasoning_parser: model.settings.reasoning_parser.clone(),
                parse_special_tokens: model.settings.parse_special_tokens.unwrap_or_default(),
                profile: false,
                is_server: true,
            };
            let cluster = Cluster::start_with(&model.located, &ranks, &context, options).await?;
            let usual = served(&model.id, &cluster);
            let settings = &model.settings;
            let model = RunningModel {
                enable_thinking: settings.enable_thinking,
                sampling_defaults: sampling(settings, &usual.sampling_defaults),
                ..usual
            };
            let ended =
                Box::pin(async { cluster.into_end().await.map_err(|err| load_error(&err)) });
            Ok(StartedModel { model, ended })
        };
        Box::pin(async { starting.await.map_err(|err: DeployError| load_error(&err)) })
    }
}

fn load_error(err: &DeployError) -> ModelLoadError {
    ModelLoadError { message: error::text(err) }
}

/// Returns the sampling options: those of the file take precedence over those of the checkpoint.
fn sampling(settings: &ModelSettings, usual: &SamplingOptions) -> SamplingOptions {
    SamplingOptions {
        temperature: settings.temperature.unwrap_or(usual.temperature),
        top_p: settings.top_p.unwrap_or(usual.top_p),
        top_k: settings.top_k.unwrap_or(usual.top_k),
        min_p: settings.min_p.unwrap_or(usual.min_p),
        repetition_penalty: settings.repetition_penalty.unwrap_or(usual.repetition_penalty),
        ..usual.clone()
    }
}

impl SharedMemory {
    /// Returns the memory of this machine alone.
    fn here(ranks: &RankConfig, budgets: &[MemoryBudget]) -> Result<SharedMemory, DeployError> {
        let facts = facts::facts_here();
        let budget = budget_of(THIS_MACHINE, budgets, facts.free_bytes)?;
        let num_ranks = u64::from(ranks.num_ranks);
        let rank = RankMachine { host: THIS_MACHINE.to_owned(), facts, num_ranks };
        let budget = MachineBytes([(THIS_MACHINE.to_owned(), budget)].into());
        let of_rank = vec![rank; ranks.num_ranks as usize];
        let backend = ranks.backend.unwrap_or(Backend::Tcp);
        Ok(SharedMemory { of_rank, budget, links: None, backend })
    }

    /// Returns the memory of the machines of a hostfile, as their agents report it.
    async fn of_hosts(
        hosts: &str,
        ranks: &RankConfig,
        budgets: &[MemoryBudget],
        context: &LocalContext,
    ) -> Result<SharedMemory, DeployError> {
        let Hostfile { backend, hosts, .. } = machines::hostfile(hosts)?;
        let backend = ranks.backend.or(backend).unwrap_or(Backend::Tcp);
        let config = machines::nodes_config(&ranks.hosts.reach, context)?;
        let nodes =
            machines::bring_up(hosts.clone(), config, &context.observer, machines::log_lines)
                .await?;
        let budgets = budgets.to_vec();
        let counted = tokio::task::spawn_blocking(move || {
            let name = |node: usize| {
                let at = nodes.of_rank.iter().position(|&it| it == node);
                hosts[at.expect("every machine has a rank")].name()
            };
            let known: Vec<String> = hosts.iter().map(Host::name).collect();
            let mut named = budgets.iter().filter_map(|it| it.host.clone());
            if let Some(host) = named.find(|it| !known.contains(it)) {
                return Err(DeployError::BudgetHost { host, known });
            }
            let mut budget = MachineBytes::default();
            for (idx, node) in nodes.nodes.iter().enumerate() {
                let free_bytes = free_bytes(&node.agent, &node.facts);
                budget.0.insert(name(idx), budget_of(&name(idx), &budgets, free_bytes)?);
            }
            let of_rank = nodes.of_rank.iter().map(|&node| {
                let beside = nodes.of_rank.iter().filter(|&&it| it == node).count();
                let (host, facts) = (name(node), nodes.nodes[node].facts.clone());
                RankMachine { host, facts, num_ranks: beside as u64 }
            });
            let links = Some(links(&hosts, &nodes, backend));
            Ok(SharedMemory { of_rank: of_rank.collect(), budget, links, backend })
        });
        counted.await?
    }

    /// Returns the memory that each rank of a model needs.
    fn needs(&self, model_dir: &Path, ranks: &RankConfig) -> Result<Vec<RankNeed>, DeployError> {
        let model = PlacementModel::read(model_dir)?;
        let context = ranks.context_tokens.unwrap_or(jackalope_placement::DEFAULT_CONTEXT_TOKENS);
        let context = context.min(model.context_tokens.max(1));
        let (num_ranks, backend) = (self.of_rank.len(), self.backend);
        let split = match (ranks.split.given(model_dir, num_ranks, backend)?, &self.links) {
            (Some(split), _) => split,
            (None, None) => ranks.split.given_or_even(model_dir, num_ranks, backend)?,
            (None, Some(links)) => {
                let split = ranks.split.kind_over(backend)?;
                let constraints = PlacementConstraints {
                    context_tokens: ranks.context_tokens,
                    split,
                    num_machines: None,
                };
                idle_split(&model, &self.of_rank, links, constraints)?
            }
        };
        let mut needs =
            jackalope_placement::needs(&model, &split, context.saturating_mul(CONVERSATIONS));
        if let Some(mib) = ranks.kv_mib {
            for need in &mut needs {
                let kv_bytes = mib << 20;
                need.overhead_bytes = need.overhead_bytes - need.kv_bytes / 4 + kv_bytes / 4;
                need.kv_bytes = kv_bytes;
            }
        }
        Ok(needs)
    }

    fn machines(&self, needs: &[RankNeed]) -> MachineBytes {
        let mut sum = MachineBytes::default();
        for (machine, need) in self.of_rank.iter().zip(needs) {
            *sum.0.entry(machine.host.clone()).or_default() += need.total();
        }
        sum
    }
}

/// Returns the memory that a machine has free, or would have without ranks of an earlier server
/// that this one may take over.
fn free_bytes(agent: &Agent, facts: &NodeFacts) -> u64 {
    let runs = agent.status(STATUS_TIMEOUT).is_ok_and(|programs| !programs.is_empty());
    if runs { facts.free_bytes.max(IDLE(facts)) } else { facts.free_bytes }
}

/// Returns the memory that models may take of a machine: as given by the user, or else the free
/// memory minus a reserve.
fn budget_of(machine: &str, budgets: &[MemoryBudget], free_bytes: u64) -> Result<u64, DeployError> {
    let of = |name: Option<&str>| budgets.iter().find(|it| it.host.as_deref() == name);
    if let Some(budget) = of(Some(machine)).or_else(|| of(None)) {
        return Ok(budget.bytes);
    }
    if free_bytes == 0 {
        return Err(DeployError::UnknownMemory { machine: machine.to_owned() });
    }
    Ok(NodeOffer::new(machine, free_bytes).usable_bytes)
}
