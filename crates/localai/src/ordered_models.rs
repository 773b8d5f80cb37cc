//! Adds models that LocalAI names to a server that has none.

use std::path::Path;

use jackalope_deploy::models::locate_loadable;
use jackalope_deploy::registry::ModelRegistry;
use jackalope_deploy::served::details;
use jackalope_deploy::served_models::ServedModel;
use jackalope_deploy::{LocalContext, PortRange, RankConfig, error};
use jackalope_protocol::Backend;
use jackalope_serving::models::{LoadFuture, ModelLoadError, Models};

use crate::cluster::{Cluster, WorkerConfig, parse_backend};
use crate::error::LocalAiError;
use crate::opener::{ModelOpener, ModelOrder};

/// Opens models by LocalAI's names, each with the machines that its options name.
#[derive(Debug)]
pub(crate) struct OrderedModels {
    /// This program's configuration, for everything that a model's options leave open. The options
    /// may name another transport, but no other hostfile or coordinator.
    pub(crate) config: WorkerConfig,
    pub(crate) models: Models,
    pub(crate) registry: ModelRegistry,
    pub(crate) local: LocalContext,
}

impl OrderedModels {
    fn make_known(&self, order: &ModelOrder) -> Result<String, LocalAiError> {
        let ranks = self.ranks(order)?;
        let is_in_folder = Path::new(&order.file).join("config.json").is_file();
        let name = if is_in_folder { &order.file } else { &order.model };
        let located = locate_loadable(Path::new(name), &self.local)?;
        let id = order.model.clone();
        let details = details(&located.dir);
        let model =
            ServedModel { ranks: Some(ranks), ..ServedModel::of_folder(id.clone(), located.dir) };
        if !self.registry.add(model) {
            return Err(LocalAiError::TooManyModels);
        }
        // Returns false if the model was known before, which is as good.
        self.models.add(&id, details);
        Ok(id)
    }

    /// Returns the configuration of a model's ranks: from the model's options, or else from this
    /// program's configuration. Fails if both name a hostfile or a coordinator, and not the same
    /// one.
    fn ranks(&self, order: &ModelOrder) -> Result<RankConfig, LocalAiError> {
        let config = WorkerConfig {
            hostfile: one_of("hostfile", &order.hostfile, &self.config.hostfile)?,
            backend: match &order.backend {
                Some(word) => Some(parse_backend(word)?),
                None => self.config.backend,
            },
            coordinator: one_of("coordinator", &order.coordinator, &self.config.coordinator)?,
            ..self.config.clone()
        };
        let (context_tokens, kv_mib) = (order.context_tokens, config.kv_mib);
        let mut ranks = RankConfig { context_tokens, kv_mib, ..RankConfig::default() };
        ranks.hosts.data_ports = config.data_ports;
        let Some(hostfile) = &config.hostfile else { return Ok(ranks) };
        let cluster = Cluster::read(hostfile, &config)?;
        ranks.backend = Some(config.backend.unwrap_or(Backend::Tcp));
        ranks.hosts.by_hand = true;
        ranks.hosts.first_here = true;
        ranks.hosts.control_port = cluster.port;
        ranks.hosts.rank_env = cluster.variables(0);
        ranks.hosts.hosts = Some(hostfile.clone());
        Ok(ranks)
    }
}

impl ModelOpener for OrderedModels {
    fn open(&self, order: &ModelOrder) -> LoadFuture<String> {
        let known =
            self.make_known(order).map_err(|err| ModelLoadError { message: error::text(&err) });
        Box::pin(async { known })
    }

    fn missing(&self, order: &ModelOrder, ranks: &[usize]) -> String {
        let hostfile = order.hostfile.as_ref().or(self.config.hostfile.as_ref());
        let hostfile = hostfile.map_or("FILE", String::as_str);
        let ports = match self.config.data_ports {
            PortRange::DATA => String::new(),
            other => format!(" --data-ports {other}"),
        };
        let command = |rank: &usize| {
            format!("jackalope worker mlx-distributed --hostfile {hostfile} --rank {rank}{ports}")
        };
        let commands: Vec<String> = ranks.iter().map(command).collect();
        format!("run there: {}; then load the model again", commands.join("; "))
    }
}

/// Returns the value of a model's option, or else the configured one. Fails if they differ.
fn one_of(
    what: &'static str,
    option: &Option<String>,
    configured: &Option<String>,
) -> Result<Option<String>, LocalAiError> {
    match (option.clone(), configured.clone()) {
        (Some(option), Some(configured)) if option != configured => {
            Err(LocalAiError::Contradiction { what, option, configured })
        }
        (option, configured) => Ok(option.or(configured)),
    }
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
    }
}
