//! The control connection: a reader that can end the process or break a collective at any moment, a
//! heartbeat, and a writer shared by all threads. It never uses MLX.
//!
//! A rank whose setup allows it to outlive its connection keeps its weights when the coordinator is
//! gone or the network fails, and dials again until that time is over.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use jackalope_protocol::secure::HintedKey;
use jackalope_protocol::{
    FrameError, FromRank, HeartbeatEcho, Hello, Join, Phase, RankMemory, Secret, Setup, StepPlan,
    ToRank, frame, log, secure,
};
use jackalope_transport::Interrupter;
use tracing::{debug, info};

/// Time between two heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// If the coordinator does not accept messages for this long, it counts as gone.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time for one attempt to reach the coordinator, which allows less time for a handshake.
const DIAL_TIMEOUT: Duration = Duration::from_secs(4);

/// Minimum time for which a refusing coordinator is dialled again: during a flood it may close any
/// connection.
const DIAL_PATIENCE_MIN: Duration = Duration::from_secs(10);

/// Pause after the first failed attempt; doubles after each further one, up to `DIAL_PAUSE_MAX`.
const DIAL_PAUSE_MIN: Duration = Duration::from_millis(10);
const DIAL_PAUSE_MAX: Duration = Duration::from_millis(250);

/// Maximum time for which a rank without an agent outlives its connection to the coordinator.
const UNTETHERED_MAX: Duration = Duration::from_secs(10);

/// Maximum number of messages waiting for the worker. The coordinator sends at most two plans
/// ahead, or one per stage.
const COMMAND_QUEUE_LEN: usize = 64;

/// Messages for the worker, in the order of arrival.
#[derive(Debug)]
pub(crate) enum Command {
    Setup(Box<Setup>),
    Join(Join),
    Step {
        epoch: u64,
        plan: StepPlan,
    },
    Leave {
        epoch: u64,
    },
    /// The connection to the coordinator is lost; it may come back.
    Lost,
    Stop,
}

/// Address of the coordinator, and this rank's credentials and address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Coordinator {
    pub(crate) addr: SocketAddr,
    pub(crate) rank: u32,
    pub(crate) ticket: Secret,
    pub(crate) data_addr: SocketAddr,
}

/// Breaks and watches the group of one epoch from another thread.
pub(crate) struct GroupBreaker {
    pub(crate) epoch: u64,
    /// `None` for stock groups, which can be neither broken nor watched.
    pub(crate) interrupter: Option<Interrupter>,
}

impl GroupBreaker {
    fn interrupt(&self) {
        if let Some(interrupter) = &self.interrupter {
            interrupter.interrupt();
        }
    }

    /// Returns for how long the group's running operation has waited for peers; zero for stock
    /// groups.
    fn waiting(&self) -> Duration {
        self.interrupter.as_ref().map_or(Duration::ZERO, Interrupter::waiting)
    }
}

/// State that the worker publishes and the control threads read.
struct WorkerState {
    phase: Phase,
    steps_done: u64,
    memory: RankMemory,
    /// Timestamp of this coordinator's last heartbeat, and its time of arrival.
    last_heartbeat: Option<(u64, Instant)>,
    breaker: Option<GroupBreaker>,
    /// Groups of epochs up to this one must not be formed any more.
    left_epoch: Option<u64>,
    /// How long to continue without a coordinator; zero before the setup.
    orphan: Duration,
}

impl WorkerState {
    fn waiting_ms(&self) -> u64 {
        let waiting = self.breaker.as_ref().map_or(Duration::ZERO, GroupBreaker::waiting);
        u64::try_from(waiting.as_millis()).unwrap_or(u64::MAX)
    }
}

/// The worker's side of the control connection.
#[derive(Clone)]
pub(crate) struct Control {
    /// Sending half of the connection; `None` while the coordinator is gone.
    writer: Arc<Mutex<Option<secure::Sender>>>,
    shared: Arc<Mutex<WorkerState>>,
    tether: Tether,
}

impl Control {
    /// Sends a message to the coordinator. If this rank may outlive the connection, a message that
    /// cannot be sent is dropped: a coordinator that comes back asks again.
    pub(crate) fn send(&self, message: &FromRank) -> Result<(), FrameError> {
        let mut writer = lock(&self.writer);
        let Some(sender) = &mut *writer else { return Ok(()) };
        let Err(err) = frame::write(sender, message) else { return Ok(()) };
        if self.orphan().is_zero() {
            return Err(err);
        }
        // Wakes the reader, which dials again; an error means it is awake already.
        let _ = sender.stream().shutdown(Shutdown::Both);
        *writer = None;
        Ok(())
    }

    fn orphan(&self) -> Duration {
        lock(&self.shared).orphan
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        lock(&self.shared).phase = phase;
    }

    pub(crate) fn phase(&self) -> Phase {
        lock(&self.shared).phase
    }

    /// Publishes the progress after a step.
    pub(crate) fn step_done(&self, memory: RankMemory) {
        let mut shared = lock(&self.shared);
        shared.steps_done += 1;
        shared.memory = memory;
        shared.phase = Phase::Idle;
    }

    pub(crate) fn set_memory(&self, memory: RankMemory) {
        lock(&self.shared).memory = memory;
    }

    /// Lets the control thread break the group that is about to be used. Returns false if the
    /// coordinator has already asked to leave it.
    pub(crate) fn arm(&self, breaker: GroupBreaker) -> bool {
        let mut shared = lock(&self.shared);
        let left = shared.left_epoch.is_some_and(|left| breaker.epoch <= left);
        shared.steps_done = 0;
        shared.breaker = (!left).then_some(breaker);
        !left
    }

    pub(crate) fn disarm(&self) {
        lock(&self.shared).breaker = None;
    }

    fn leave(&self, epoch: u64) {
        let mut shared = lock(&self.shared);
        shared.left_epoch = shared.left_epoch.max(Some(epoch));
        if let Some(breaker) = shared.breaker.take_if(|it| it.epoch <= epoch) {
            breaker.interrupt();
        }
    }
}

/// A poisoned lock means another thread panicked, and a panic ends the process anyway.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Connects, completes the handshake and starts the control and heartbeat threads. Retries for
/// `patience` if the coordinator cannot be reached yet.
pub(crate) fn connect(
    coordinator: Coordinator,
    patience: Duration,
    tether: Tether,
) -> anyhow::Result<(Control, Receiver<Command>)> {
    let deadline = Instant::now() + patience.max(DIAL_PATIENCE_MIN);
    let (sender, receiver) = dial_until(&coordinator, || deadline)
        .with_context(|| format!("connecting to the coordinator at {}", coordinator.addr))?;
    let shared = WorkerState {
        phase: Phase::Starting,
        steps_done: 0,
        memory: RankMemory::default(),
        last_heartbeat: None,
        breaker: None,
        left_epoch: None,
        orphan: Duration::ZERO,
    };
    let control = Control {
        writer: Arc::new(Mutex::new(Some(sender))),
        shared: Arc::new(Mutex::new(shared)),
        tether,
    };
    let (commands, received) = sync_channel(COMMAND_QUEUE_LEN);
    let reader = control.clone();
    thread::Builder::new().name("control".into()).spawn(move || {
        serve_coordinator(&coordinator, receiver, &reader, &commands);
    })?;
    let sending = control.clone();
    thread::Builder::new().name("heartbeat".into()).spawn(move || send_heartbeats(&sending))?;
    Ok((control, received))
}

/// Dials until the deadline, which may move meanwhile. After a connection is refused, reset or
/// closed, the next attempt may still succeed: the coordinator may be starting, or its port may be
/// flooded. Only a version mismatch is final.
fn dial_until(
    coordinator: &Coordinator,
    deadline: impl Fn() -> Instant,
) -> Result<(secure::Sender, secure::Receiver), FrameError> {
    let mut pause = DIAL_PAUSE_MIN;
    loop {
        let left = deadline().saturating_duration_since(Instant::now());
        let err = match dial(coordinator, left.clamp(DIAL_PAUSE_MIN, DIAL_TIMEOUT)) {
            Ok(connection) => return Ok(connection),
            Err(err) => err,
        };
        if matches!(err, FrameError::Version { .. }) || deadline() <= Instant::now() + pause {
            return Err(err);
        }
        debug!(%err, "the coordinator cannot be reached yet");
        thread::sleep(pause);
        pause = (pause * 2).min(DIAL_PAUSE_MAX);
    }
}

fn dial(
    coordinator: &Coordinator,
    timeout: Duration,
) -> Result<(secure::Sender, secure::Receiver), FrameError> {
    let (mut sender, receiver) = secure::dial(
        coordinator.addr,
        &HintedKey::of_rank(coordinator.rank, coordinator.ticket),
        timeout,
    )?;
    sender.stream().set_write_timeout(Some(WRITE_TIMEOUT))?;
    let hello = Hello {
        rank: coordinator.rank,
        pid: std::process::id(),
        mlx: jackalope_mlx::version(),
        data_addr: coordinator.data_addr,
    };
    frame::write(&mut sender, &hello)?;
    Ok((sender, receiver))
}

/// Reads the coordinator's messages, over one connection after another.
fn serve_coordinator(
    coordinator: &Coordinator,
    mut receiver: secure::Receiver,
    control: &Control,
    commands: &SyncSender<Command>,
) {
    let mut lost_at: Option<Instant> = None;
    loop {
        let read = read_commands(&mut receiver, control, commands);
        let Read::Lost { err, was_set_up } = read else { return };
        *lock(&control.writer) = None;
        let orphan = control.orphan();
        if orphan.is_zero() {
            match err {
                FrameError::Closed => end_process("the coordinator closed the connection"),
                err => end_process(&format!("control connection: {err}")),
            }
        }
        info!(%err, "the coordinator is gone, the weights stay");
        let since = if was_set_up { Instant::now() } else { lost_at.unwrap_or_else(Instant::now) };
        lost_at = Some(since);
        control.leave(u64::MAX);
        if commands.try_send(Command::Lost).is_err() {
            end_process("the worker is stuck and the coordinator is gone");
        }
        let sender;
        (sender, receiver) = redial(coordinator, || since + control.tether.bound(orphan));
        {
            let mut shared = lock(&control.shared);
            (shared.left_epoch, shared.last_heartbeat) = (None, None);
        }
        *lock(&control.writer) = Some(sender);
    }
}

/// Dials until the deadline and then ends the process. The deadline becomes earlier if the agent is
/// lost too.
fn redial(
    coordinator: &Coordinator,
    deadline: impl Fn() -> Instant,
) -> (secure::Sender, secure::Receiver) {
    match dial_until(coordinator, deadline) {
        Ok(connection) => connection,
        Err(err) => end_process(&format!("the coordinator did not come back: {err}")),
    }
}

enum Read {
    Lost {
        err: FrameError,
        /// Whether the coordinator had sent a setup over this connection.
        was_set_up: bool,
    },
    /// The worker has stopped and ends the process.
    Over,
}

fn read_commands(
    stream: &mut secure::Receiver,
    control: &Control,
    commands: &SyncSender<Command>,
) -> Read {
    let mut was_set_up = false;
    loop {
        let command = match frame::read(stream) {
            Ok(ToRank::Heartbeat { sent_us }) => {
                lock(&control.shared).last_heartbeat = Some((sent_us, Instant::now()));
                continue;
            }
            Ok(ToRank::Setup(setup)) => {
                was_set_up = true;
                let silence = Duration::from_millis(setup.silence_timeout_ms);
                let silence = Some(silence).filter(|silence| !silence.is_zero());
                if let Err(err) = stream.stream().set_read_timeout(silence) {
                    return Read::Lost { err: err.into(), was_set_up };
                }
                let orphan = Duration::from_millis(setup.orphan_ms);
                lock(&control.shared).orphan = orphan;
                control.tether.set_up(orphan);
                Command::Setup(setup)
            }
            Ok(ToRank::Join(join)) => Command::Join(join),
            Ok(ToRank::Step { epoch, plan }) => Command::Step { epoch, plan },
            Ok(ToRank::Leave { epoch }) => {
                control.leave(epoch);
                Command::Leave { epoch }
            }
            Ok(ToRank::Stop) => {
                control.leave(u64::MAX);
                Command::Stop
            }
            Err(err) => return Read::Lost { err, was_set_up },
        };
        let is_stop = matches!(command, Command::Stop);
        match commands.try_send(command) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => end_process("the coordinator sends faster than allowed"),
            Err(TrySendError::Disconnected(_)) => return Read::Over,
        }
        if is_stop {
            // The worker ends the process. If the device blocks it, this thread does.
            thread::sleep(Duration::from_millis(500));
            end_process("stopped");
        }
    }
}

fn send_heartbeats(control: &Control) {
    loop {
        thread::sleep(HEARTBEAT_INTERVAL);
        let message = {
            let shared = lock(&control.shared);
            FromRank::Heartbeat {
                phase: shared.phase,
                steps_done: shared.steps_done,
                waiting_ms: shared.waiting_ms(),
                memory: shared.memory,
                echo: shared.last_heartbeat.map(|(sent_us, at)| {
                    let held_us = u64::try_from(at.elapsed().as_micros()).unwrap_or(u64::MAX);
                    HeartbeatEcho { sent_us, held_us }
                }),
            }
        };
        if let Err(err) = control.send(&message) {
            end_process(&format!("heartbeat: {err}"));
        }
    }
}

/// Ends the process when standard input ends: its parent process is gone.
pub(crate) fn end_with_standard_input() {
    watch_standard_input(|reason| end_process(reason));
}

fn watch_standard_input(on_end: impl FnOnce(&str) + Send + 'static) {
    let watch = || match io::copy(&mut io::stdin(), &mut io::sink()) {
        Ok(_) => on_end("the program that started this rank is gone"),
        Err(err) => on_end(&format!("standard input: {err}")),
    };
    thread::Builder::new()
        .name("lifeline".into())
        .spawn(watch)
        .expect("a thread can be started when the process has just begun");
}

/// Ties this process to its parent through standard input. If the coordinator's setup allows a rank
/// to outlive its connection, the rank also outlives its agent while the coordinator is connected;
/// an agent that replaces a hung one then takes it over.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tether(Arc<Mutex<TetherState>>);

#[derive(Debug, Default)]
struct TetherState {
    /// Whether the setup allows this rank to outlive a lost connection.
    may_outlive: bool,
    is_cut: bool,
}

impl Tether {
    /// Starts watching standard input.
    pub(crate) fn watch() -> Tether {
        let tether = Tether::default();
        let watched = tether.clone();
        watch_standard_input(move |reason| {
            let mut state = lock(&watched.0);
            if !state.may_outlive {
                end_process(reason);
            }
            state.is_cut = true;
            info!(reason, "the coordinator still holds this rank, which continues");
        });
        tether
    }

    fn set_up(&self, orphan: Duration) {
        let mut state = lock(&self.0);
        state.may_outlive = !orphan.is_zero();
        if state.is_cut && !state.may_outlive {
            end_process("the program that started this rank is gone");
        }
    }

    /// Returns the time for which the rank waits for a lost coordinator: `orphan`, or at most
    /// [`UNTETHERED_MAX`] if the agent is gone too, because no other process could end the rank.
    fn bound(&self, orphan: Duration) -> Duration {
        if lock(&self.0).is_cut { orphan.min(UNTETHERED_MAX) } else { orphan }
    }
}

/// Ends the process at once, without running destructors that a stuck device could block.
fn end_process(reason: &str) -> ! {
    if reason == "stopped" {
        debug!(reason, "ending");
    } else {
        info!(reason, "ending");
    }
    log::flush(log::FLUSH_TIMEOUT);
    jackalope_mlx::exit_now(0)
}
