//! Adds models that LocalAI names to a server that has none.

use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, ensure};
use clap::ValueEnum;
use jackalope_deploy::config::CONTROL_PORT;
use jackalope_deploy::models::locate_loadable;
use jackalope_deploy::registry::ModelRegistry;
use jackalope_deploy::served::details;
use jackalope_deploy::served_models::ServedModel;
use jackalope_deploy::{PortRange, RankConfig, machines};
use jackalope_fleet::hostfile::Hostfile;
use jackalope_server::{LoadError, LoadFuture, ModelOpener, ModelOrder, Models};

use super::transport;
use crate::args::worker::{MlxDistributedArgs, WorkerBackend};
use crate::environment::Environment;

/// Opens models by LocalAI's names, each with the machines that its options name.
#[derive(Debug)]
pub(super) struct OrderedModels {
    args: MlxDistributedArgs,
    models: Models,
    registry: ModelRegistry,
    environment: Environment,
}

/// Machines of a cluster, and the address of its coordinator.
pub(super) struct Cluster {
    pub(super) hostfile: Hostfile,
    /// Host name of rank 0's machine, as the others know it.
    pub(super) host: String,
    /// Port on which rank 0 listens for the others.
    pub(super) port: u16,
}

impl OrderedModels {
    pub(super) fn new(
        args: MlxDistributedArgs,
        models: Models,
        registry: ModelRegistry,
        environment: &Environment,
    ) -> OrderedModels {
        OrderedModels { args, models, registry, environment: environment.clone() }
    }

    fn make_known(&self, order: &ModelOrder) -> anyhow::Result<String> {
        let ranks = self.ranks(order)?;
        let is_in_folder = Path::new(&order.file).join("config.json").is_file();
        let name = if is_in_folder { &order.file } else { &order.model };
        let located = locate_loadable(Path::new(name), &self.environment.local)?;
        let id = order.model.clone();
        let details = details(&located.dir);
        let model =
            ServedModel { ranks: Some(ranks), ..ServedModel::of_folder(id.clone(), located.dir) };
        ensure!(self.registry.add(model), "more models were named than a server knows");
        // Returns false if the model was known before, which is as good.
        self.models.add(&id, details);
        Ok(id)
    }

    /// Returns the rank arguments of a model: from its own options, or else from this program's
    /// arguments.
    fn ranks(&self, order: &ModelOrder) -> anyhow::Result<RankConfig> {
        let args = &self.args;
        let hostfile = one_of("hostfile", &order.hostfile, &args.hostfile)?;
        let backend = match &order.backend {
            Some(word) => Some(backend(word)?),
            None => args.backend,
        };
        let coordinator = one_of("coordinator", &order.coordinator, &args.coordinator)?;
        let (context_tokens, kv_mib) = (order.context_tokens, args.kv_mib);
        let mut ranks = RankConfig { context_tokens, kv_mib, ..RankConfig::default() };
        ranks.hosts.data_ports = args.data_ports;
        let Some(hostfile) = hostfile else { return Ok(ranks) };
        let cluster = Cluster::read(&hostfile, backend, coordinator.as_deref())?;
        ranks.backend = Some(transport(backend));
        ranks.hosts.by_hand = true;
        ranks.hosts.first_here = true;
        ranks.hosts.control_port = cluster.port;
        ranks.hosts.rank_env = cluster.variables(0, &hostfile, (backend, coordinator.as_deref()));
        ranks.hosts.hosts = Some(hostfile);
        Ok(ranks)
    }
}

impl ModelOpener for OrderedModels {
    fn open(&self, order: &ModelOrder) -> LoadFuture<String> {
        let known =
            self.make_known(order).map_err(|err| LoadError { message: crate::report::text(&err) });
        Box::pin(async { known })
    }

    fn missing(&self, order: &ModelOrder, ranks: &[usize]) -> String {
        let hostfile = order.hostfile.as_ref().or(self.args.hostfile.as_ref());
        let hostfile = hostfile.map_or("FILE", String::as_str);
        let ports = match self.args.data_ports {
            PortRange::DATA => String::new(),
            other => format!(" --data-ports {other}"),
        };
        let typed = |rank: &usize| {
            format!("jackalope worker mlx-distributed --hostfile {hostfile} --rank {rank}{ports}")
        };
        let typed: Vec<String> = ranks.iter().map(typed).collect();
        format!("run there: {}; then load the model again", typed.join("; "))
    }
}

/// Returns the value of a model's option, or else that of this program. Fails if they differ.
fn one_of(
    what: &str,
    option: &Option<String>,
    told: &Option<String>,
) -> anyhow::Result<Option<String>> {
    if let (Some(option), Some(told)) = (option, told) {
        ensure!(
            option == told,
            "the model's options name the {what} {option}, and this backend was started with {told}\n\
             hint: leave one of them out"
        );
    }
    Ok(option.clone().or_else(|| told.clone()))
}

/// Parses LocalAI's name of a transport.
pub(super) fn backend(word: &str) -> anyhow::Result<WorkerBackend> {
    WorkerBackend::from_str(word, true)
        .ok()
        .with_context(|| format!("the backend {word} is not known\nhint: ring or jaccl"))
}

impl Cluster {
    /// Reads a hostfile. With TCP, rank 0 listens where the file says. With JACCL, that address
    /// belongs to JACCL, and the coordinator's machine is rank 0's.
    pub(super) fn read(
        hostfile: &str,
        backend: Option<WorkerBackend>,
        coordinator: Option<&str>,
    ) -> anyhow::Result<Cluster> {
        let hostfile = machines::hostfile(hostfile)?;
        let first = hostfile.hosts.first().context("the hostfile names no host")?;
        let listen = first.listen.first();
        let host = match (coordinator, listen, first.ips.first()) {
            (Some(coordinator), ..) => host_of(coordinator).to_owned(),
            (None, Some(listen), _) => listen.host.clone(),
            (None, None, Some(ip)) => ip.to_string(),
            (None, None, None) => first.name(),
        };
        let is_jaccl = backend == Some(WorkerBackend::Jaccl);
        let port = listen.map(|it| it.port).filter(|_| !is_jaccl).unwrap_or(CONTROL_PORT);
        Ok(Cluster { hostfile, host, port })
    }

    /// Returns the address at which the others find rank 0, in the form of the command line.
    pub(super) fn control(&self) -> String {
        match self.host.parse::<IpAddr>() {
            Ok(IpAddr::V6(ip)) => format!("[{ip}]:{}", self.port),
            _ => format!("{}:{}", self.host, self.port),
        }
    }

    /// Returns the environment variables that MLX's own transport reads, if it is used.
    pub(super) fn variables(
        &self,
        rank: u32,
        hostfile: &str,
        (backend, coordinator): (Option<WorkerBackend>, Option<&str>),
    ) -> Vec<(String, String)> {
        if backend != Some(WorkerBackend::Jaccl) {
            return Vec::new();
        }
        let mut variables = vec![
            ("MLX_RANK".to_owned(), rank.to_string()),
            ("MLX_IBV_DEVICES".to_owned(), hostfile.to_owned()),
        ];
        let coordinator = coordinator.map(|it| ("MLX_JACCL_COORDINATOR".to_owned(), it.to_owned()));
        variables.extend(coordinator);
        variables
    }
}

fn host_of(addr: &str) -> &str {
    addr.rsplit_once(':').map_or(addr, |(host, _)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_arguments_must_not_disagree() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(one_of("x", &some("a"), &None).unwrap(), some("a"));
        assert_eq!(one_of("x", &None, &some("a")).unwrap(), some("a"));
        assert_eq!(one_of("x", &some("a"), &some("a")).unwrap(), some("a"));
        let err = one_of("hostfile", &some("a"), &some("b")).unwrap_err().to_string();
        assert!(err.contains("the hostfile a, and this backend was started with b"), "{err}");
        assert_eq!(backend("RING").unwrap(), WorkerBackend::Ring);
        assert!(backend("mpi").is_err());
    }
}
