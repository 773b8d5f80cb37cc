//! The control connection: a reader that can end the process or break a collective at any moment,
//! a heartbeat, and a writer that everyone shares. No MLX here.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use jackalope_protocol::{
    FrameError, FromRank, Hello, Join, Phase, RankMemory, Secret, Setup, StepPlan, ToRank, frame,
    read_preamble, write_preamble,
};
use jackalope_transport::Interrupter;
use tracing::{debug, info};

use crate::CONNECT_TIMEOUT;

/// Time between two heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// A brain that does not take our messages for this long is as good as gone.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Messages waiting for the worker; the brain sends at most two plans ahead.
const COMMAND_QUEUE_LEN: usize = 64;

/// What the worker is told, in the order of arrival.
#[derive(Debug)]
pub(crate) enum Command {
    Setup(Box<Setup>),
    Join(Join),
    Step { epoch: u64, plan: StepPlan },
    Leave { epoch: u64 },
    Stop,
}

/// Breaks and watches the group of one epoch from another thread.
pub(crate) struct GroupBreaker {
    pub(crate) epoch: u64,
    /// None for stock groups, which can be neither broken nor watched.
    pub(crate) interrupter: Option<Interrupter>,
}

impl GroupBreaker {
    fn interrupt(&self) {
        if let Some(interrupter) = &self.interrupter {
            interrupter.interrupt();
        }
    }

    /// How long its running operation has waited for peers.
    fn waiting(&self) -> Duration {
        self.interrupter.as_ref().map_or(Duration::ZERO, Interrupter::waiting)
    }
}

/// State the worker publishes and the control thread reads.
struct Shared {
    phase: Phase,
    steps_done: u64,
    memory: RankMemory,
    breaker: Option<GroupBreaker>,
    /// Groups up to this epoch shall not be formed any more.
    left_epoch: Option<u64>,
}

impl Shared {
    fn waiting_ms(&self) -> u64 {
        let waiting = self.breaker.as_ref().map_or(Duration::ZERO, GroupBreaker::waiting);
        u64::try_from(waiting.as_millis()).unwrap_or(u64::MAX)
    }
}

/// The worker's side of the control connection.
#[derive(Clone)]
pub(crate) struct Control {
    writer: Arc<Mutex<TcpStream>>,
    shared: Arc<Mutex<Shared>>,
}

impl Control {
    /// Sends a message to the brain.
    pub(crate) fn send(&self, message: &FromRank) -> Result<(), FrameError> {
        frame::write(&mut *lock(&self.writer), message)
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        lock(&self.shared).phase = phase;
    }

    pub(crate) fn phase(&self) -> Phase {
        lock(&self.shared).phase
    }

    /// Publishes progress after a step.
    pub(crate) fn step_done(&self, memory: RankMemory) {
        let mut shared = lock(&self.shared);
        shared.steps_done += 1;
        shared.memory = memory;
        shared.phase = Phase::Idle;
    }

    pub(crate) fn set_memory(&self, memory: RankMemory) {
        lock(&self.shared).memory = memory;
    }

    /// Lets the control thread break the group that is about to be used. False if the brain has
    /// already asked to leave it.
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

/// Connects, shakes hands and starts the control and heartbeat threads.
pub(crate) fn connect(
    brain: SocketAddr,
    rank: u32,
    secret: Secret,
    data_addr: SocketAddr,
) -> anyhow::Result<(Control, Receiver<Command>)> {
    let mut stream = TcpStream::connect_timeout(&brain, CONNECT_TIMEOUT)
        .with_context(|| format!("connecting to the brain at {brain}"))?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    stream.set_read_timeout(Some(CONNECT_TIMEOUT))?;
    write_preamble(&mut stream)?;
    let hello = Hello {
        secret,
        rank,
        pid: std::process::id(),
        build: env!("CARGO_PKG_VERSION").to_owned(),
        mlx: jackalope_mlx::version(),
        data_addr,
    };
    frame::write(&mut stream, &hello)?;
    read_preamble(&mut stream).context("shaking hands with the brain")?;
    stream.set_read_timeout(None)?;

    let shared = Shared {
        phase: Phase::Starting,
        steps_done: 0,
        memory: RankMemory::default(),
        breaker: None,
        left_epoch: None,
    };
    let control = Control {
        writer: Arc::new(Mutex::new(stream.try_clone()?)),
        shared: Arc::new(Mutex::new(shared)),
    };
    let (sender, commands) = sync_channel(COMMAND_QUEUE_LEN);
    let reader = control.clone();
    thread::Builder::new().name("control".into()).spawn(move || {
        read_commands(stream, &reader, &sender);
    })?;
    let beating = control.clone();
    thread::Builder::new().name("heartbeat".into()).spawn(move || beat(&beating))?;
    Ok((control, commands))
}

fn read_commands(mut stream: TcpStream, control: &Control, commands: &SyncSender<Command>) {
    loop {
        let command = match frame::read(&mut stream) {
            Ok(ToRank::Setup(setup)) => Command::Setup(Box::new(setup)),
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
            Err(FrameError::Closed) => end_process("the brain closed the connection"),
            Err(err) => end_process(&format!("control connection: {err}")),
        };
        let is_stop = matches!(command, Command::Stop);
        match commands.try_send(command) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => end_process("the brain sends faster than allowed"),
            Err(TrySendError::Disconnected(_)) => return,
        }
        if is_stop {
            // The worker ends the process; should the device hold it, this does.
            thread::sleep(Duration::from_millis(500));
            end_process("stopped");
        }
    }
}

fn beat(control: &Control) {
    loop {
        thread::sleep(HEARTBEAT_INTERVAL);
        let message = {
            let shared = lock(&control.shared);
            FromRank::Heartbeat {
                phase: shared.phase,
                steps_done: shared.steps_done,
                waiting_ms: shared.waiting_ms(),
                memory: shared.memory,
            }
        };
        if let Err(err) = control.send(&message) {
            end_process(&format!("heartbeat: {err}"));
        }
    }
}

/// Ends the process when standard input does: whoever started us is gone.
pub(crate) fn end_with_standard_input() {
    let watch = || match io::copy(&mut io::stdin(), &mut io::sink()) {
        Ok(_) => end_process("whoever started this rank is gone"),
        Err(err) => end_process(&format!("standard input: {err}")),
    };
    thread::Builder::new()
        .name("lifeline".into())
        .spawn(watch)
        .expect("a thread can be started when the process has just begun");
}

/// Ends the process at once, without running destructors that a stuck device could block.
fn end_process(reason: &str) -> ! {
    if reason == "stopped" {
        debug!(reason, "ending");
    } else {
        info!(reason, "ending");
    }
    jackalope_mlx::exit_now(0)
}
