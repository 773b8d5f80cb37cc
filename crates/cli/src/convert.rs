//! Converts parsed arguments to the configurations of deployments.

use std::time::Duration;

use anyhow::{Context, ensure};
use jackalope_deploy::served_models::{ModelAlias, ModelDefaults, ServedModelsConfig};
use jackalope_deploy::split_constraints::SplitConstraints;
use jackalope_deploy::{HostsConfig, MemoryBudget, RankConfig, ReachConfig};
use jackalope_fleet::routes::Encryption;
use jackalope_placement::SplitKind;
use jackalope_protocol::{Backend, Device, PressureLimits};

use crate::args::machines::{HostsArgs, ReachArgs};
use crate::args::plan::MemoryArg;
use crate::args::{
    AliasArg, BackendArg, DeviceArg, EncryptArg, PressureArgs, RankArgs, ServeArgs,
    ServedModelsArgs, SplitArg,
};
use crate::environment::Environment;

impl From<BackendArg> for Backend {
    fn from(arg: BackendArg) -> Backend {
        match arg {
            BackendArg::Tcp => Backend::Tcp,
            BackendArg::Ring => Backend::Ring,
            BackendArg::Jaccl => Backend::Jaccl,
            BackendArg::Nccl => Backend::Nccl,
        }
    }
}

impl From<DeviceArg> for Device {
    fn from(arg: DeviceArg) -> Device {
        match arg {
            DeviceArg::Auto => Device::Auto,
            DeviceArg::Cpu => Device::Cpu,
            DeviceArg::Gpu => Device::Gpu,
        }
    }
}

impl From<EncryptArg> for Encryption {
    fn from(arg: EncryptArg) -> Encryption {
        match arg {
            EncryptArg::Auto => Encryption::Auto,
            EncryptArg::On => Encryption::On,
            EncryptArg::Off => Encryption::Off,
        }
    }
}

impl From<SplitArg> for SplitKind {
    fn from(arg: SplitArg) -> SplitKind {
        match arg {
            SplitArg::Tensor => SplitKind::Tensor,
            SplitArg::Pipeline => SplitKind::Pipeline,
        }
    }
}

impl From<&MemoryArg> for MemoryBudget {
    fn from(arg: &MemoryArg) -> MemoryBudget {
        MemoryBudget { host: arg.name.clone(), bytes: arg.bytes }
    }
}

impl From<&ServedModelsArgs> for ServedModelsConfig {
    fn from(args: &ServedModelsArgs) -> ServedModelsConfig {
        let aliases = args.alias.iter();
        let alias = |it: &AliasArg| ModelAlias { alias: it.alias.clone(), model: it.model.clone() };
        ServedModelsConfig {
            models: args.model.clone(),
            model_id: args.model_id.clone(),
            models_dir: args.models_dir.clone(),
            models_config: args.models_config.clone(),
            aliases: aliases.map(alias).collect(),
            pinned: args.pin.clone(),
            default: args.default.clone(),
            idle_unload: args.idle_unload,
        }
    }
}

impl From<&ServeArgs> for ModelDefaults {
    fn from(args: &ServeArgs) -> ModelDefaults {
        ModelDefaults {
            enable_thinking: args.thinking,
            tool_parser: args.tool_parser.clone(),
            reasoning_parser: args.reasoning_parser.clone(),
            parse_special_tokens: args.parse_special_tokens,
        }
    }
}

impl ReachArgs {
    /// Completes the arguments with values from the environment.
    pub(crate) fn config(&self, environment: &Environment) -> ReachConfig {
        ReachConfig {
            agent_port: self.agent_port,
            token: environment.agent_token(self.token.as_deref()),
            ssh: environment.ssh_words(self.ssh.as_deref()),
            bootstraps: !self.no_bootstrap,
        }
    }
}

impl HostsArgs {
    fn config(&self, environment: &Environment) -> anyhow::Result<HostsConfig> {
        let absent_after = Duration::from_secs(self.absent_after);
        Ok(HostsConfig {
            hosts: self.hosts.clone(),
            discover: self.discover,
            env: environment_of(&self.env)?,
            reach: self.reach.config(environment),
            control_port: self.control_port,
            data_ports: self.data_ports,
            lease: Duration::from_secs(self.lease),
            by_hand: self.by_hand,
            first_here: false,
            rank_env: Vec::new(),
            models_from: self.models_from.clone(),
            copy_port: self.copy_port,
            give_up_after: Duration::from_secs(self.give_up_after),
            absent_after: (!self.no_elastic).then_some(absent_after),
        })
    }
}

impl RankArgs {
    /// Completes the arguments with values from the environment.
    pub(crate) fn config(&self, environment: &Environment) -> anyhow::Result<RankConfig> {
        let PressureArgs { memory_warn, memory_critical } = self.memory;
        Ok(RankConfig {
            num_ranks: self.ranks,
            split: SplitConstraints {
                kind: self.split.map(Into::into),
                shares: self.share.clone(),
                layers: self.layers.clone(),
            },
            backend: self.backend.map(Into::into),
            hosts: self.hosts.config(environment)?,
            device: self.device.into(),
            num_threads: self.threads,
            context_tokens: self.context,
            kv_mib: self.kv_mib,
            memory: PressureLimits { warn_bytes: memory_warn, critical_bytes: memory_critical },
            step_tokens: self.step_tokens,
            running_max: self.running_max,
            queue_max: self.queue_max,
            keep_prefixes: !self.no_prefix_cache,
            checksums: self.checksums,
            exact_sums: !self.no_exact_sums,
            encryption: self.encrypt_data.into(),
            stall_timeout: Duration::from_secs(self.stall_timeout),
        })
    }
}

/// Parses variables of the form `NAME=VALUE`.
pub(crate) fn environment_of(given: &[String]) -> anyhow::Result<Vec<(String, String)>> {
    let parse = |text: &String| {
        let (name, value) = text
            .split_once('=')
            .with_context(|| format!("`--env {text}` has no `=`\nhint: write NAME=VALUE"))?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        ensure!(
            !name.is_empty() && name.chars().all(is_name),
            "`{name}` is no name of a variable\nhint: use letters, digits and `_`"
        );
        Ok((name.to_owned(), value.to_owned()))
    };
    given.iter().map(parse).collect()
}
