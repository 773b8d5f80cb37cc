//! The worker: the one thread that owns arrays. It processes the coordinator's messages in order.
//!
//! ```text
//!             Setup            Join              Step
//!  Starting ────────▶ Waiting ──────▶ Idle ◀───────────▶ Computing
//!                        ▲              │                    │
//!                        └── Leave, or the group failed ─────┘
//! ```

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use jackalope_mlx::{Device, Group};
use jackalope_models::{Compute, GroupCell, LoadError, LoadProgress, Model, Parallel, Sums};
use jackalope_protocol::split::Split;
use jackalope_protocol::{
    Backend, CheckpointId, FailureKind, FromRank, Join, Phase, RankFacts, RankFailure, Setup,
    StepOutput, StepPlan, counted,
};
use jackalope_transport::{GroupConfig, Listener};
use jackalope_weights::checkpoint::{self, Checkpoint, Files};
use tracing::{debug, info};

use crate::content::VerifiedFiles;
use crate::control::{Command, Control, GroupBreaker};
use crate::rank_memory;
use crate::remote::RemoteFiles;
use crate::step::Stepper;
use crate::step_error::{StepError, lost_peers};
use crate::warm_up::warm_up;

/// Minimum time between two reports of the loading progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Time between two checks of whether the device is done, while the worker waits for a command.
const DEVICE_POLL: Duration = Duration::from_micros(50);

/// Maximum time for which the worker waits for the next plan while the device computes. The plan
/// comes soon after an answer, or when there are new requests.
const NEXT_PLAN_WAIT: Duration = Duration::from_millis(5);

/// Rank and data listener of this process.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) rank: u32,
    pub(crate) listener: Listener,
}

/// A loaded shard, the group it belongs to, and the connection to the coordinator.
struct Worker<'a> {
    identity: &'a Identity,
    control: &'a Control,
    setup: Setup,
    facts: RankFacts,
    parallel: Parallel,
    model: Model,
    /// Epoch and caches of the group; `None` while there is no group.
    active: Option<(u64, Stepper)>,
}

/// Runs until the coordinator sends a stop.
///
/// # Errors
/// Errors that end the process early. Failures to load the model or to compute a step have been
/// reported to the coordinator.
pub(crate) fn run(
    identity: &Identity,
    control: &Control,
    commands: &Receiver<Command>,
) -> anyhow::Result<()> {
    let setup = match commands.recv().context("waiting for the setup")? {
        Command::Setup(setup) => *setup,
        Command::Stop => return Ok(()),
        other => bail!("expected the setup first, found {other:?}"),
    };
    let mut worker = match load(identity, control, setup) {
        Ok(worker) => worker,
        Err((kind, err)) => {
            report(control, 0, kind, format!("{err:#}"))?;
            return Err(err);
        }
    };
    loop {
        let Some(command) = worker.next_command(commands)? else {
            worker.finish_step()?;
            continue;
        };
        match command {
            Command::Setup(setup) => worker.set_up_again(&setup)?,
            Command::Lost => worker.forget_group(),
            Command::Join(join) => worker.join(&join)?,
            Command::Step { epoch, plan } => worker.step(epoch, &plan)?,
            Command::Leave { epoch } => worker.leave(epoch),
            Command::Stop => return Ok(()),
        }
    }
}

fn report(control: &Control, epoch: u64, kind: FailureKind, message: String) -> anyhow::Result<()> {
    let failure = RankFailure { epoch, phase: control.phase(), kind, message, peers: Vec::new() };
    Ok(control.send(&FromRank::Failed(failure))?)
}

fn load<'a>(
    identity: &'a Identity,
    control: &'a Control,
    setup: Setup,
) -> Result<Worker<'a>, (FailureKind, anyhow::Error)> {
    // If this machine lacks the device or the backend, a new process would lack it as well.
    choose_device(setup.device).map_err(|err| (FailureKind::Model, err))?;
    if let Some(backend) = stock_backend(setup.backend) {
        Group::check_stock(backend).map_err(|err| (FailureKind::Model, err.into()))?;
    }
    wire().map_err(|err| (FailureKind::Device, err))?;
    control.set_phase(Phase::Loading);
    let started = Instant::now();
    let parallel = parallel(identity, &setup).map_err(|err| (FailureKind::Model, err))?;
    let mut reported: Option<Instant> = None;
    let mut progress = |progress: LoadProgress| {
        if reported.is_some_and(|at| at.elapsed() < PROGRESS_INTERVAL) {
            return;
        }
        reported = Some(Instant::now());
        let LoadProgress { done_bytes, total_bytes } = progress;
        // If the coordinator is gone, the control thread ends the process.
        control.send(&FromRank::Progress { done_bytes, total_bytes }).ok();
    };
    let loaded = load_model(&setup, &parallel, &mut progress);
    let (model, content) = loaded.map_err(|err| {
        let kind = if err.is_passing() { FailureKind::Device } else { FailureKind::Model };
        (kind, anyhow::Error::new(err))
    })?;
    if model.computes_with_mlx() {
        let place = [identity.rank as usize, setup.num_ranks as usize];
        warm_up(&model, &parallel, place, control)
            .map_err(|err| (FailureKind::Device, anyhow::Error::new(err)))?;
    }
    let facts = RankFacts { content, ..rank_facts(&model, started.elapsed()) };
    setup
        .check_cache_cost(identity.rank as usize, facts.cache_cost)
        .map_err(|message| (FailureKind::Model, anyhow::Error::msg(message)))?;
    info!(rank = identity.rank, weights_bytes = facts.weights_bytes, "shard loaded");
    control.set_memory(rank_memory::now(0));
    control.set_phase(Phase::Waiting);
    control
        .send(&FromRank::Loaded(facts.clone()))
        .map_err(|err| (FailureKind::Device, anyhow::Error::new(err)))?;
    Ok(Worker { identity, control, setup, facts, parallel, model, active: None })
}

/// Loads this rank's part of the model. Also returns the verified identity of the checkpoint, if
/// known.
fn load_model(
    setup: &Setup,
    parallel: &Parallel,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<(Model, Option<CheckpointId>), LoadError> {
    let (checkpoint, verified) = open_checkpoint(setup)?;
    let model = Model::from_checkpoint(&checkpoint, parallel, progress)?;
    let finish = |files: &VerifiedFiles| {
        files.finish().map_err(|source| LoadError::read(checkpoint.dir(), source))
    };
    Ok((model, verified.as_deref().map(finish).transpose()?.flatten()))
}

/// Whether two setups need the same shard and settings. The addresses of the machine that holds the
/// model, and the states of its files, may differ.
fn is_same(one: &Setup, other: &Setup) -> bool {
    let host = |setup: &Setup| setup.model_source.as_ref().map(|source| source.host.clone());
    let rest = |setup: &Setup| Setup { model_source: None, content: None, ..setup.clone() };
    // Files may have another state and the same content.
    let content = |setup: &Setup| setup.content.as_ref().and_then(|it| it.id);
    host(one) == host(other) && content(one) == content(other) && rest(one) == rest(other)
}

/// Opens the checkpoint, locally or on the machine that holds it, and the files that verify reads
/// from it.
fn open_checkpoint(setup: &Setup) -> Result<(Checkpoint, Option<Arc<VerifiedFiles>>), LoadError> {
    let dir: &Path = setup.model_dir.as_ref();
    let failed = |source| LoadError::read(dir, source);
    let files = match &setup.model_source {
        None => checkpoint::local(dir),
        Some(source) => {
            let files = RemoteFiles::open(source.clone(), &setup.model_dir);
            Arc::new(files.map_err(failed)?)
        }
    };
    let Some(expected) = setup.content.clone() else {
        return Ok((Checkpoint::read(&files)?, None));
    };
    let (threads, is_remote) = (num_threads(setup), setup.model_source.is_some());
    let verified = VerifiedFiles::open(files, expected, threads, is_remote).map_err(failed)?;
    let verified = Arc::new(verified);
    let files: Arc<dyn Files> = Arc::clone(&verified) as Arc<dyn Files>;
    Ok((Checkpoint::read(&files)?, Some(verified)))
}

/// Returns the number of threads of this rank.
fn num_threads(setup: &Setup) -> usize {
    match setup.num_threads as usize {
        0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        num_threads => num_threads,
    }
}

/// Returns this rank's part of the split, without a group for now.
fn parallel(identity: &Identity, setup: &Setup) -> anyhow::Result<Parallel> {
    let num_ranks = setup.num_ranks as usize;
    let num_parts = setup.split.num_ranks();
    ensure!(
        num_parts == num_ranks,
        "a split into {} for {}\nhint: give each rank a part",
        counted(num_parts, "part"),
        counted(num_ranks, "rank")
    );
    ensure!(
        !matches!(setup.split, Split::Pipeline(_)) || setup.backend != Backend::Nccl,
        "MLX has no messages between two ranks over NCCL, which a pipeline needs\n\
         hint: pass `--backend tcp`, or `--split tensor`"
    );
    let compute = Compute::for_device(jackalope_mlx::device(), num_threads(setup))
        .context("JACKALOPE_CPU")?;
    if setup.profile {
        compute.start_profile();
    }
    let group = GroupCell::new(Group::single());
    let sums = if setup.exact_sums { Sums::Exact } else { Sums::Rounded };
    Ok(Parallel::new(identity.rank as usize, &setup.split, group, compute)?.with_sums(sums))
}

fn rank_facts(model: &Model, load_time: Duration) -> RankFacts {
    let facts = model.facts();
    RankFacts {
        architecture: facts.architecture.clone(),
        num_layers: facts.num_layers,
        layers: facts.layers,
        vocab_size: facts.vocab_size,
        context_tokens: facts.context_tokens,
        heads: facts.heads,
        kv_heads: facts.kv_heads,
        mlp: facts.mlp,
        vocab: facts.vocab,
        cache_cost: facts.cache_cost,
        weights_bytes: facts.weights_bytes,
        bytes_read: facts.bytes_read,
        replicated_bytes: facts.replicated_bytes,
        load_ms: u64::try_from(load_time.as_millis()).unwrap_or(u64::MAX),
        device: device_name().to_owned(),
        free_bytes: rank_memory::free_bytes(),
        hidden_size: facts.hidden_size,
        content: None,
    }
}

fn choose_device(device: jackalope_protocol::Device) -> anyhow::Result<()> {
    use jackalope_protocol::Device as Wanted;
    let has_gpu = jackalope_mlx::gpu_available();
    let device = match device {
        Wanted::Cpu => Device::Cpu,
        Wanted::Gpu if !has_gpu => bail!(
            "this libmlx finds no GPU\nhint: use `--device cpu`, or bring a libmlx for the GPU"
        ),
        Wanted::Auto if !has_gpu => Device::Cpu,
        Wanted::Gpu | Wanted::Auto => Device::Gpu,
    };
    Ok(jackalope_mlx::set_device(device)?)
}

/// Lets as much memory stay resident as a Mac's GPU recommends, as mlx-lm does while it generates:
/// otherwise macOS evicts a large model's pages between two steps.
fn wire() -> anyhow::Result<()> {
    if jackalope_mlx::device() == Device::Cpu {
        return Ok(());
    }
    let recommended = jackalope_mlx::memory::recommended_bytes()?;
    if recommended != 0 {
        jackalope_mlx::memory::set_wired_limit(recommended)?;
        debug!(recommended, "memory stays resident");
    }
    Ok(())
}

/// Returns MLX's own transport of this name; `None` for the native group.
fn stock_backend(backend: Backend) -> Option<jackalope_mlx::Backend> {
    match backend {
        Backend::Tcp => None,
        Backend::Ring => Some(jackalope_mlx::Backend::Ring),
        Backend::Jaccl => Some(jackalope_mlx::Backend::Jaccl),
        Backend::Nccl => Some(jackalope_mlx::Backend::Nccl),
    }
}

fn device_name() -> &'static str {
    match jackalope_mlx::device() {
        Device::Cpu => "cpu",
        Device::Gpu => "gpu",
    }
}

impl Worker<'_> {
    /// Handles the setup of a coordinator that lost the connection, or of a new one. A loaded model
    /// is not loaded again.
    fn set_up_again(&mut self, setup: &Setup) -> anyhow::Result<()> {
        ensure!(is_same(setup, &self.setup), "the coordinator came back with another setup");
        self.forget_group();
        self.facts.free_bytes = rank_memory::free_bytes();
        Ok(self.control.send(&FromRank::Loaded(self.facts.clone()))?)
    }

    fn join(&mut self, join: &Join) -> anyhow::Result<()> {
        self.forget_group();
        self.control.set_phase(Phase::Joining);
        match self.form_group(join) {
            Ok(group) => {
                self.parallel.group().replace(group.clone());
                let stepper = Stepper::new(self.identity.rank, group, &self.setup.split);
                self.active = Some((join.epoch, stepper));
                self.control.set_phase(Phase::Idle);
                debug!(epoch = join.epoch, "group formed");
                Ok(self.control.send(&FromRank::Joined { epoch: join.epoch })?)
            }
            Err(err) => {
                let peers = err.downcast_ref().map(lost_peers).unwrap_or_default();
                self.group_failed(join.epoch, format!("{err:#}"), peers)
            }
        }
    }

    fn form_group(&self, join: &Join) -> anyhow::Result<Group> {
        if let Some(backend) = stock_backend(self.setup.backend) {
            return self.form_stock_group(backend, join.epoch);
        }
        let cancel = jackalope_transport::Interrupter::new()?;
        let breaker = GroupBreaker { epoch: join.epoch, interrupter: Some(cancel.clone()) };
        if !self.control.arm(breaker) {
            bail!("the coordinator has left group {} already", join.epoch);
        }
        let config = GroupConfig {
            join_timeout: Duration::from_millis(self.setup.join_timeout_ms),
            op_timeout: Duration::from_millis(self.setup.collective_timeout_ms),
            sockets_per_peer: self.setup.sockets_per_peer as usize,
            checksums: self.setup.checksums,
            encrypt: join.encrypt.clone(),
            ..GroupConfig::new(
                self.identity.rank as usize,
                join.peers.clone(),
                join.epoch,
                join.key.0,
            )
        };
        let listener = &self.identity.listener;
        // Each rank dials those before it, and accepts those behind it.
        let (dialled, accepted) = join.peers.split_at(config.rank);
        let accepted = accepted.get(1..).unwrap_or_default();
        debug!(epoch = join.epoch, ?dialled, ?accepted, encrypt = ?join.encrypt, "connecting ranks");
        let started = Instant::now();
        let group = jackalope_transport::Group::join_interruptible(listener, config, cancel)?;
        debug!(epoch = join.epoch, elapsed = ?started.elapsed(), "all ranks are connected");
        Ok(Group::native(group))
    }

    /// Forms a stock group, which reads its addresses from the environment that the launcher has
    /// set.
    fn form_stock_group(
        &self,
        backend: jackalope_mlx::Backend,
        epoch: u64,
    ) -> anyhow::Result<Group> {
        if !self.control.arm(GroupBreaker { epoch, interrupter: None }) {
            bail!("the coordinator has left group {epoch} already");
        }
        let rank = self.identity.rank as usize;
        Ok(Group::stock(backend, rank, self.setup.num_ranks as usize)?)
    }

    /// Waits for the next command. Returns `None` if a submitted step should be finished first, because
    /// the device is done with it, or no command comes for a while.
    fn next_command(&self, commands: &Receiver<Command>) -> anyhow::Result<Option<Command>> {
        let computing = self.active.as_ref().filter(|(_, stepper)| 0 < stepper.num_pending());
        let Some((_, stepper)) = computing else {
            return commands.recv().context("waiting for the coordinator").map(Some);
        };
        let began = Instant::now();
        while stepper.is_computing() && began.elapsed() < NEXT_PLAN_WAIT {
            match commands.recv_timeout(DEVICE_POLL) {
                Ok(command) => return Ok(Some(command)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("the coordinator's reader is gone"),
            }
        }
        Ok(None)
    }

    /// Computes a plan; with MLX's own operations, submits it and finishes the one before it.
    fn step(&mut self, epoch: u64, plan: &StepPlan) -> anyhow::Result<()> {
        let is_current = |active: &Option<(u64, Stepper)>| {
            active.as_ref().is_some_and(|(active, _)| *active == epoch)
        };
        // Another epoch's plan was made for a group that broke while the plan was in flight.
        while is_current(&self.active)
            && self.active.as_ref().is_some_and(|(_, it)| !it.can_begin(&self.model, plan))
        {
            self.finish_step()?;
        }
        let Some((_, stepper)) = self.active.as_mut().filter(|(active, _)| *active == epoch) else {
            return Ok(());
        };
        self.control.set_phase(Phase::Computing);
        match stepper.execute(&self.model, plan) {
            Ok(Some(output)) => self.answer(epoch, output),
            Ok(None) if 1 < stepper.num_pending() => self.finish_step(),
            Ok(None) => Ok(()),
            Err(err) => self.step_failed(epoch, err),
        }
    }

    /// Waits for the oldest step that the device computes, and answers it.
    fn finish_step(&mut self) -> anyhow::Result<()> {
        let Some((epoch, stepper)) = &mut self.active else { return Ok(()) };
        let epoch = *epoch;
        match stepper.finish() {
            Ok(output) => self.answer(epoch, output),
            Err(err) => self.step_failed(epoch, err),
        }
    }

    fn answer(&mut self, epoch: u64, mut output: StepOutput) -> anyhow::Result<()> {
        let Some((_, stepper)) = &self.active else { return Ok(()) };
        output.timings.kernels = self.parallel.compute().take_profile();
        self.control.step_done(rank_memory::now(stepper.kv_bytes()));
        if 0 < stepper.num_pending() {
            self.control.set_phase(Phase::Computing);
        }
        let message = if self.identity.rank == 0 {
            FromRank::Output { epoch, output }
        } else {
            FromRank::Done { epoch, step: output.step, timings: output.timings }
        };
        Ok(self.control.send(&message)?)
    }

    fn step_failed(&mut self, epoch: u64, err: StepError) -> anyhow::Result<()> {
        match err {
            StepError::Group { message, peers } => self.group_failed(epoch, message, peers),
            StepError::Device(_) | StepError::Plan(_) => {
                report(self.control, epoch, FailureKind::Device, err.to_string())?;
                Err(err.into())
            }
        }
    }

    fn group_failed(&mut self, epoch: u64, message: String, peers: Vec<u32>) -> anyhow::Result<()> {
        info!(epoch, message, "group failed");
        let (phase, kind) = (self.control.phase(), FailureKind::Group);
        let failure = RankFailure { epoch, phase, kind, message, peers };
        self.control.send(&FromRank::Failed(failure))?;
        self.forget_group();
        Ok(())
    }

    fn leave(&mut self, epoch: u64) {
        if self.active.as_ref().is_some_and(|(active, _)| *active <= epoch) {
            self.forget_group();
        }
    }

    /// Drops the group and every cache. Closing the sockets also notifies the peers.
    fn forget_group(&mut self) {
        self.control.disarm();
        let pending = self.active.take().is_some_and(|(_, stepper)| 0 < stepper.num_pending());
        if pending {
            // Nothing of the next group may be taken for a part of this one.
            jackalope_mlx::drain();
        }
        self.parallel.group().replace(Group::single());
        if let Err(err) = jackalope_mlx::memory::clear_cache() {
            debug!(%err, "cached memory was not released");
        }
        self.control.set_memory(rank_memory::now(0));
        self.control.set_phase(Phase::Waiting);
    }
}
