//! The worker: the one thread that owns arrays. It takes the brain's messages in order.
//!
//! ```text
//!             Setup            Join              Step
//!  Starting ────────▶ Waiting ──────▶ Idle ◀───────────▶ Computing
//!                        ▲              │                    │
//!                        └── Leave, or the group failed ─────┘
//! ```

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use jackalope_mlx::{Device, Group};
use jackalope_models::checkpoint::{Checkpoint, Files};
use jackalope_models::{Compute, GroupCell, LoadError, LoadProgress, Model, ModelFacts, Parallel};
use jackalope_protocol::split::Split;
use jackalope_protocol::{
    Backend, FailureKind, FromRank, Join, Phase, RankFacts, RankFailure, Secret, Setup, StepPlan,
};
use jackalope_transport::{GroupConfig, Listener};
use tracing::{debug, info};

use crate::control::{Command, Control, GroupBreaker};
use crate::rank_memory;
use crate::remote::RemoteFiles;
use crate::step::{StepError, Stepper};

/// Loading is reported at most this often.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Who this process is.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) rank: u32,
    pub(crate) secret: Secret,
    pub(crate) listener: Listener,
}

/// A loaded shard, and what comes and goes around it.
struct Worker<'a> {
    identity: &'a Identity,
    control: &'a Control,
    setup: Setup,
    facts: RankFacts,
    parallel: Parallel,
    model: Model,
    /// The group's epoch and its caches; `None` while there is no group.
    active: Option<(u64, Stepper)>,
}

/// Runs until the brain says stop.
///
/// # Errors
/// Whatever ends the process early; the brain has been told.
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
        match commands.recv().context("waiting for the brain")? {
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
    let failure = RankFailure { epoch, phase: control.phase(), kind, message };
    Ok(control.send(&FromRank::Failed(failure))?)
}

fn load<'a>(
    identity: &'a Identity,
    control: &'a Control,
    setup: Setup,
) -> Result<Worker<'a>, (FailureKind, anyhow::Error)> {
    // What this machine lacks, a new process lacks as well.
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
        // A brain that is gone ends the process through the control thread.
        control.send(&FromRank::Progress { done_bytes, total_bytes }).ok();
    };
    let model = open_checkpoint(&setup, identity.secret)
        .and_then(|checkpoint| Model::from_checkpoint(&checkpoint, &parallel, &mut progress))
        .map_err(|err| {
            let kind = if err.is_passing() { FailureKind::Device } else { FailureKind::Model };
            (kind, anyhow::Error::new(err))
        })?;
    let facts = rank_facts(model.facts(), started.elapsed());
    info!(rank = identity.rank, weights_bytes = facts.weights_bytes, "shard loaded");
    control.set_memory(rank_memory::now(0));
    control.set_phase(Phase::Waiting);
    control
        .send(&FromRank::Loaded(facts.clone()))
        .map_err(|err| (FailureKind::Device, anyhow::Error::new(err)))?;
    Ok(Worker { identity, control, setup, facts, parallel, model, active: None })
}

/// Whether both ask for the same; where the one that has the model listens may have changed.
fn is_same(one: &Setup, other: &Setup) -> bool {
    let host = |setup: &Setup| setup.model_source.as_ref().map(|source| source.host.clone());
    let rest = |setup: &Setup| Setup { model_source: None, ..setup.clone() };
    host(one) == host(other) && rest(one) == rest(other)
}

/// The checkpoint, here or on the machine that has it.
fn open_checkpoint(setup: &Setup, secret: Secret) -> Result<Checkpoint, LoadError> {
    let dir = &setup.model_dir;
    let Some(source) = &setup.model_source else { return Checkpoint::open(dir.as_ref()) };
    let failed = |source| LoadError::Read { path: dir.into(), source };
    let files = RemoteFiles::open(source.clone(), secret, dir).map_err(failed)?;
    let files: Arc<dyn Files> = Arc::new(files);
    Checkpoint::read(&files)
}

/// This rank's place in the split, without a group for now.
fn parallel(identity: &Identity, setup: &Setup) -> anyhow::Result<Parallel> {
    let num_ranks = setup.num_ranks as usize;
    let num_parts = setup.split.num_ranks();
    ensure!(
        num_parts == num_ranks,
        "a split into {num_parts} for {num_ranks} ranks\nhint: give each rank a part"
    );
    ensure!(
        !matches!(setup.split, Split::Pipeline(_)) || setup.backend != Backend::Nccl,
        "MLX sends nothing from one rank to another over NCCL, which a pipeline needs\n\
         hint: pass `--backend tcp`, or `--split tensor`"
    );
    let num_threads = match setup.num_threads as usize {
        0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        num_threads => num_threads,
    };
    let compute =
        Compute::for_device(jackalope_mlx::device(), num_threads).context("JACKALOPE_CPU")?;
    if setup.profile {
        compute.start_profile();
    }
    let group = GroupCell::new(Group::single());
    Ok(Parallel::new(identity.rank as usize, &setup.split, group, compute)?)
}

fn rank_facts(facts: &ModelFacts, load_time: Duration) -> RankFacts {
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
        kv_bytes_per_token: facts.kv_bytes_per_token,
        weights_bytes: facts.weights_bytes,
        bytes_read: facts.bytes_read,
        replicated_bytes: facts.replicated_bytes,
        load_ms: u64::try_from(load_time.as_millis()).unwrap_or(u64::MAX),
        device: device_name().to_owned(),
        free_bytes: rank_memory::free_bytes(),
        hidden_size: facts.hidden_size,
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

/// Lets everything stay resident that a Mac's GPU recommends to hold, as mlx-lm does while it generates:
/// else macOS takes a large model's pages away between two steps.
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

/// MLX's own transport of this name; `None` for the native group.
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
    /// A brain that lost us, or a new one. What is loaded already is not loaded again.
    fn set_up_again(&mut self, setup: &Setup) -> anyhow::Result<()> {
        ensure!(is_same(setup, &self.setup), "the brain came back with another setup");
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
            Err(err) => self.group_failed(join.epoch, format!("{err:#}")),
        }
    }

    fn form_group(&self, join: &Join) -> anyhow::Result<Group> {
        if let Some(backend) = stock_backend(self.setup.backend) {
            return self.form_stock_group(backend, join.epoch);
        }
        let cancel = jackalope_transport::Interrupter::new()?;
        let breaker = GroupBreaker { epoch: join.epoch, interrupter: Some(cancel.clone()) };
        if !self.control.arm(breaker) {
            bail!("the brain has left group {} already", join.epoch);
        }
        let config = GroupConfig {
            join_timeout: Duration::from_millis(self.setup.join_timeout_ms),
            op_timeout: Duration::from_millis(self.setup.collective_timeout_ms),
            sockets_per_peer: self.setup.sockets_per_peer as usize,
            checksums: self.setup.checksums,
            ..GroupConfig::new(
                self.identity.rank as usize,
                join.peers.clone(),
                join.epoch,
                self.identity.secret.0,
            )
        };
        let listener = &self.identity.listener;
        let group = jackalope_transport::Group::join_interruptible(listener, config, cancel)?;
        Ok(Group::native(group))
    }

    /// Stock groups read their addresses from the environment the launcher has set.
    fn form_stock_group(
        &self,
        backend: jackalope_mlx::Backend,
        epoch: u64,
    ) -> anyhow::Result<Group> {
        if !self.control.arm(GroupBreaker { epoch, interrupter: None }) {
            bail!("the brain has left group {epoch} already");
        }
        let rank = self.identity.rank as usize;
        Ok(Group::stock(backend, rank, self.setup.num_ranks as usize)?)
    }

    fn step(&mut self, epoch: u64, plan: &StepPlan) -> anyhow::Result<()> {
        let Some((active, stepper)) = &mut self.active else { return Ok(()) };
        if *active != epoch {
            // Made for a group that broke while the plan was under way.
            return Ok(());
        }
        self.control.set_phase(Phase::Computing);
        match stepper.execute(&self.model, plan) {
            Ok(mut output) => {
                output.timings.kernels = self.parallel.compute().take_profile();
                self.control.step_done(rank_memory::now(stepper.kv_bytes()));
                let message = if self.identity.rank == 0 {
                    FromRank::Output { epoch, output }
                } else {
                    FromRank::Done { epoch, step: plan.step, timings: output.timings }
                };
                Ok(self.control.send(&message)?)
            }
            Err(StepError::Group(message)) => self.group_failed(epoch, message),
            Err(err @ (StepError::Device(_) | StepError::Plan(_))) => {
                report(self.control, epoch, FailureKind::Device, err.to_string())?;
                Err(err.into())
            }
        }
    }

    fn group_failed(&mut self, epoch: u64, message: String) -> anyhow::Result<()> {
        info!(epoch, message, "group failed");
        report(self.control, epoch, FailureKind::Group, message)?;
        self.forget_group();
        Ok(())
    }

    fn leave(&mut self, epoch: u64) {
        if self.active.as_ref().is_some_and(|(active, _)| *active <= epoch) {
            self.forget_group();
        }
    }

    /// Drops the group and every cache. Closing the sockets also tells the peers.
    fn forget_group(&mut self) {
        self.control.disarm();
        self.active = None;
        self.parallel.group().replace(Group::single());
        if let Err(err) = jackalope_mlx::memory::clear_cache() {
            debug!(%err, "memory kept for reuse was not given back");
        }
        self.control.set_memory(rank_memory::now(0));
        self.control.set_phase(Phase::Waiting);
    }
}
