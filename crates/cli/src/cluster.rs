//! Brings up an engine with its ranks, and takes it down again.

use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use jackalope_cluster::local::{LocalError, LocalRank, LocalRanks, find_rank_program};
use jackalope_engine::link::{
    LaunchError, LaunchOrder, Launcher, Link, LinkConfig, LinkTimeouts, RankProcess, Seat,
};
use jackalope_engine::{
    Engine, EngineConfig, EngineError, EngineHandle, EngineState, KvBudget, Status,
};
use jackalope_protocol::{Backend, Device, Secret, Setup};
use jackalope_text::ModelText;
use tokio::task::JoinHandle;

use crate::args::{BackendArg, DeviceArg, RankArgs};
use crate::progress::Loading;

/// Bound of one collective: a peer that computes a long prompt keeps the others waiting.
const COLLECTIVE_TIMEOUT: Duration = Duration::from_secs(60);

/// Bound of forming a group of ranks that are all loaded.
const JOIN_TIMEOUT: Duration = Duration::from_secs(20);

/// Pause between two looks at ranks that are loading.
const READY_POLL: Duration = Duration::from_millis(20);

/// An engine with its ranks on this machine.
pub(crate) struct Cluster {
    pub(crate) engine: EngineHandle,
    pub(crate) text: Arc<ModelText>,
    /// Waits for the engine's thread.
    end: Option<JoinHandle<std::thread::Result<Result<(), EngineError>>>>,
}

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

impl Cluster {
    /// Starts the engine and the ranks; does not wait for them to load.
    pub(crate) fn start(model_dir: &Path, args: &RankArgs) -> anyhow::Result<Cluster> {
        Cluster::start_with(model_dir, args, false)
    }

    /// As [`Cluster::start`]; with `profile`, steps report their kernels' times.
    pub(crate) fn start_with(
        model_dir: &Path,
        args: &RankArgs,
        profile: bool,
    ) -> anyhow::Result<Cluster> {
        let model_dir = checkpoint_dir(model_dir)?;
        let text = ModelText::load(&model_dir)
            .with_context(|| format!("reading the text files of {}", model_dir.display()))?;
        let secret = Secret(random_bytes().context("drawing the cluster's secret")?);
        let setup = Setup { profile, ..setup(&model_dir, args)? };
        let local = LocalRanks::new(&find_rank_program()?, setup.backend, setup.num_ranks as usize);
        let timeouts = LinkTimeouts {
            step: Duration::from_secs(args.stall_timeout),
            ..LinkTimeouts::default()
        };
        let listen = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
        let seats = Seat::local(&setup);
        let config = LinkConfig { listen, secret, seats, timeouts, first_epoch: 0 };
        let link = Link::bind(config, Box::new(LocalLauncher(local)))?;
        let (engine, thread) = Engine::spawn(engine_config(args, &text), link);
        let end = tokio::task::spawn_blocking(move || thread.join());
        Ok(Cluster { engine, text: Arc::new(text), end: Some(end) })
    }

    /// Waits until the ranks can compute, showing progress on a terminal.
    ///
    /// # Errors
    /// If they cannot be brought up; says which rank and why.
    pub(crate) async fn ready(&mut self) -> anyhow::Result<Status> {
        let loading = Loading::new();
        let status = loop {
            let status = self.engine.status();
            loading.show(&status);
            if status.state != EngineState::Starting {
                break status;
            }
            tokio::time::sleep(READY_POLL).await;
        };
        loading.finish();
        if status.state == EngineState::Ready {
            return Ok(status);
        }
        self.engine.shutdown();
        self.ended().await?;
        bail!("the engine ended before its ranks were ready")
    }

    /// Waits for the engine's own end, which is an error unless it was asked for. Whoever stops
    /// waiting may wait again.
    pub(crate) async fn ended(&mut self) -> anyhow::Result<()> {
        let Some(end) = &mut self.end else { return Ok(()) };
        let result = end.await?;
        self.end = None;
        match result {
            Ok(result) => Ok(result?),
            Err(_) => bail!("the engine panicked; the messages above say where"),
        }
    }

    /// Ends the engine and every rank.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        self.engine.shutdown();
        self.ended().await
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.engine.shutdown();
    }
}

/// The directory as an absolute path, if there is a checkpoint in it.
fn checkpoint_dir(dir: &Path) -> anyhow::Result<std::path::PathBuf> {
    let found = std::fs::canonicalize(dir).with_context(|| {
        format!("no checkpoint at {}\nhint: `--model` takes a directory", dir.display())
    })?;
    ensure!(
        found.join("config.json").is_file(),
        "{} holds no config.json\nhint: `--model` takes the directory of an MLX checkpoint: \
         config.json, model.safetensors, tokenizer.json",
        found.display()
    );
    Ok(found)
}

fn setup(model_dir: &Path, args: &RankArgs) -> anyhow::Result<Setup> {
    let num_ranks = args.ranks;
    let shares = match args.share.is_empty() {
        true => vec![1; num_ranks as usize],
        false => args.share.clone(),
    };
    ensure!(
        shares.len() == num_ranks as usize,
        "`--share` names {} ranks, `--ranks` {num_ranks}\nhint: give one weight for each rank",
        shares.len()
    );
    ensure!(
        shares.iter().all(|&share| 0 < share),
        "`--share` gives a rank nothing\nhint: give each rank a positive weight, or use fewer ranks"
    );
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let cores = u32::try_from(cores).unwrap_or(u32::MAX);
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    Ok(Setup {
        num_ranks,
        model_dir: model_dir.to_str().context("the model's path is not UTF-8")?.to_owned(),
        shares,
        backend: args.backend.into(),
        device: args.device.into(),
        num_threads: args.threads.unwrap_or((cores / num_ranks).max(1)),
        sockets_per_peer: 1,
        checksums: args.checksums,
        collective_timeout_ms: millis(COLLECTIVE_TIMEOUT),
        join_timeout_ms: millis(JOIN_TIMEOUT),
        silence_timeout_ms: 0,
        orphan_ms: 0,
        profile: false,
    })
}

fn engine_config(args: &RankArgs, text: &ModelText) -> EngineConfig {
    EngineConfig {
        step_tokens: args.step_tokens.max(args.running_max),
        running_max: args.running_max,
        queue_max: args.queue_max,
        context_tokens: args.context,
        kv_budget: match args.kv_mib {
            Some(mib) => KvBudget::BytesPerRank(mib << 20),
            None => KvBudget::Auto { ranks_per_machine: args.ranks },
        },
        keep_prefixes: !args.no_prefix_cache,
        eos_tokens: text.tokenizer.eos_token_ids().to_vec(),
        ..EngineConfig::default()
    }
}

/// From the system's source of randomness.
pub(crate) fn random_bytes() -> std::io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Starts ranks on this machine for the engine.
struct LocalLauncher(LocalRanks);

impl Launcher for LocalLauncher {
    fn launch(&mut self, order: &LaunchOrder) -> Result<Box<dyn RankProcess>, LaunchError> {
        match self.0.start(order.rank, order.control_addr, &order.secret) {
            Ok(rank) => Ok(Box::new(LocalProcess(rank))),
            Err(err) => Err(launch_error(err)),
        }
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
