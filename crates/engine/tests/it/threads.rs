//! Ranks that are threads of the test: they speak the protocol over loopback, wait for each other
//! in every step as a collective does, and misbehave as the test configures.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, mpsc};
use std::time::Duration;

use jackalope_engine::link::{Launch, LaunchError, LaunchOrder, Launcher, RankProcess};
use jackalope_engine::testing::{FakeCaches, fake_facts, pseudo_model};
use jackalope_protocol::secure::HintedKey;
use jackalope_protocol::{
    FailureKind, FrameError, FromRank, Hello, Phase, RankFailure, RankMemory, Secret, StepPlan,
    StepTimings, ToRank, frame, secure,
};

pub(crate) const VOCAB_SIZE: u32 = 1000;
const PATIENCE: Duration = Duration::from_secs(20);

/// A fault of a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    None,
    /// The program does not exist.
    NoProgram,
    /// The system blocks in executing the program until it is released.
    SticksBeforeExec,
    /// Ends before it connects.
    ExitsAtOnce,
    NeverConnects,
    /// Is started by somebody else, after half a second.
    IsStartedLater,
    OtherVersion,
    /// Has another libmlx than the other rank.
    OtherMlx,
    /// Authenticates with another secret, and then ends.
    WrongSecret,
    /// Finds the checkpoint unusable.
    BadModel,
    StopsLoading,
    /// Is alive, but does not end its first steps.
    StopsWarmingUp,
    /// Its caches take other memory than the coordinator expects.
    OtherCacheCost,
    NeverJoins,
    /// Is killed when it gets this step.
    DiesAt(u64),
    /// Reports a device failure when it gets this step.
    DeviceFailsAt(u64),
    /// Is alive, but does not answer this step.
    StallsAt(u64),
    /// Waits for a peer in this step of the first group, and reports that.
    IsHeldUpAt(u64),
    /// Stops doing anything after it received its setup.
    FreezesLoading,
    /// Stops doing anything when it is asked to join the group.
    FreezesJoining,
    /// Stops doing anything from this step on.
    FreezesAt(u64),
    /// Reports that the group broke, although every process is alive.
    GroupBreaksAt(u64),
    /// Reports that the group broke because another rank died.
    NoticesDeathAt(u64),
    /// Continues after a request to stop.
    IgnoresStop,
}

/// Record of the ranks' orders and actions.
#[derive(Debug, Default)]
pub(crate) struct Log {
    entries: Mutex<Vec<(usize, String)>>,
    /// Processes that were killed.
    pub(crate) killed: Mutex<Vec<u32>>,
    /// Number of heartbeats sent to ranks.
    pub(crate) num_beats: AtomicU64,
}

impl Log {
    fn add(&self, rank: usize, entry: impl Into<String>) {
        self.entries.lock().unwrap().push((rank, entry.into()));
    }

    pub(crate) fn of(&self, rank: usize) -> Vec<String> {
        let entries = self.entries.lock().unwrap();
        entries.iter().filter(|(it, _)| *it == rank).map(|(_, entry)| entry.clone()).collect()
    }

    pub(crate) fn count(&self, rank: usize, entry: &str) -> usize {
        self.of(rank).iter().filter(|it| *it == entry).count()
    }
}

/// Launches threads. The fault of a rank's `n`-th launch is the `n`-th of its list; later ones have
/// none.
pub(crate) struct Threads {
    pub(crate) faults: HashMap<usize, Vec<Fault>>,
    pub(crate) log: Arc<Log>,
    pub(crate) meeting: Arc<Meeting>,
    /// Releases the processes that block before their program is executed.
    pub(crate) released: Arc<OnceLock<()>>,
}

/// Barrier at which two ranks wait for each other in every step.
#[derive(Debug, Default)]
pub(crate) struct Meeting {
    /// By rank: its epoch, and the steps it has reached there.
    reached: Mutex<HashMap<usize, (u64, u64)>>,
    changed: Condvar,
}

impl Meeting {
    /// Waits until the other rank has reached the step too. False if the epoch was left meanwhile.
    fn reach(&self, rank: usize, epoch: u64, step: u64, left_epoch: &AtomicU64) -> bool {
        let mut reached = self.reached.lock().unwrap();
        reached.insert(rank, (epoch, step + 1));
        self.changed.notify_all();
        let has_left = || epoch <= left_epoch.load(Ordering::SeqCst);
        let is_alone = |reached: &mut HashMap<usize, (u64, u64)>| {
            let peer = reached.get(&(1 - rank)).copied().unwrap_or_default();
            (peer.0 != epoch || peer.1 <= step) && !has_left()
        };
        drop(self.changed.wait_while(reached, is_alone).unwrap());
        !has_left()
    }

    fn leave(&self, epoch: u64, left_epoch: &AtomicU64) {
        let _reached = self.reached.lock().unwrap();
        left_epoch.store(epoch, Ordering::SeqCst);
        self.changed.notify_all();
    }
}

struct ThreadProcess {
    pid: u32,
    log: Arc<Log>,
    shared: Arc<Shared>,
    words: String,
    is_started_elsewhere: bool,
}

#[derive(Default)]
struct Shared {
    exit: Mutex<Option<String>>,
    stream: Mutex<Option<TcpStream>>,
    has_exited: Condvar,
}

impl Shared {
    fn end(&self, exit: &str) {
        self.exit.lock().unwrap().get_or_insert_with(|| exit.to_owned());
        self.has_exited.notify_all();
        if let Some(stream) = self.stream.lock().unwrap().take() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    fn wait_until_killed(&self) {
        let exit = self.exit.lock().unwrap();
        drop(self.has_exited.wait_while(exit, |exit| exit.is_none()).unwrap());
    }
}

impl Launcher for Threads {
    fn launch(&mut self, order: &LaunchOrder) -> Launch {
        let faults = self.faults.get(&order.rank);
        let fault = faults.and_then(|it| it.get(order.attempt as usize)).copied();
        let fault = fault.unwrap_or(Fault::None);
        let shared = Arc::new(Shared::default());
        let pid = 1000 * (order.rank as u32 + 1) + order.attempt as u32;
        let rank = Rank {
            order: order.clone(),
            pid,
            fault,
            shared: Arc::clone(&shared),
            log: Arc::clone(&self.log),
            meeting: Arc::clone(&self.meeting),
            left_epoch: AtomicU64::new(0),
        };
        self.log.add(order.rank, "launch");
        let released = Arc::clone(&self.released);
        Box::new(move || {
            if fault == Fault::NoProgram {
                return Err(LaunchError::Missing {
                    program: "jackalope-rank".into(),
                    hint: "build it".to_owned(),
                });
            }
            if fault == Fault::SticksBeforeExec {
                released.wait();
            }
            let words = format!("rank {} says goodbye", rank.order.rank);
            let log = Arc::clone(&rank.log);
            let is_started_elsewhere = fault == Fault::IsStartedLater;
            let process = ThreadProcess { pid, log, shared, words, is_started_elsewhere };
            std::thread::spawn(move || rank.run());
            Ok(Box::new(process))
        })
    }
}

impl RankProcess for ThreadProcess {
    fn pid(&self) -> Option<u32> {
        Some(self.pid)
    }

    fn is_started_elsewhere(&self) -> bool {
        self.is_started_elsewhere
    }

    fn try_wait(&mut self) -> Option<String> {
        self.shared.exit.lock().unwrap().clone()
    }

    fn kill(&mut self) {
        self.shared.end("killed by signal 9");
        self.log.killed.lock().unwrap().push(self.pid);
    }

    fn last_words(&self) -> String {
        self.words.clone()
    }
}

struct Rank {
    order: LaunchOrder,
    pid: u32,
    fault: Fault,
    shared: Arc<Shared>,
    log: Arc<Log>,
    meeting: Arc<Meeting>,
    left_epoch: AtomicU64,
}

impl Rank {
    fn run(self) {
        match self.fault {
            Fault::NeverConnects => return,
            Fault::IsStartedLater => std::thread::sleep(Duration::from_millis(500)),
            Fault::ExitsAtOnce => return self.shared.end("exit status 1"),
            _ => {}
        }
        match self.talk() {
            Ok(()) => self.shared.end("exit status 0"),
            Err(err) => self.shared.end(&format!("exit status 1 ({err})")),
        }
    }

    fn talk(&self) -> Result<(), FrameError> {
        if self.fault == Fault::OtherVersion {
            let mut stream = TcpStream::connect(self.order.control_addr)?;
            stream.write_all(b"JKLP\xff\xff\x059.9.9")?;
            stream.read_to_end(&mut Vec::new())?;
            return Err(FrameError::Closed);
        }
        let is_wrong = self.fault == Fault::WrongSecret;
        let ticket = if is_wrong { Secret([0; 32]) } else { self.order.ticket };
        let key = HintedKey::of_rank(u32::try_from(self.order.rank).unwrap(), ticket);
        let (mut sender, receiver) = secure::dial(self.order.control_addr, &key, PATIENCE)?;
        *self.shared.stream.lock().unwrap() = Some(sender.stream().try_clone()?);
        let is_other = self.fault == Fault::OtherMlx;
        frame::write(
            &mut sender,
            &Hello {
                rank: self.order.rank as u32,
                pid: self.pid,
                mlx: if is_other { "0.1" } else { "0.2" }.to_owned(),
                data_addr: format!("127.0.0.1:{}", self.pid).parse().unwrap(),
            },
        )?;
        let heart = Heart::start(sender);
        let (sender, orders) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| self.listen(receiver, sender));
            let ended = self.obey(&orders, &heart);
            // The listener reads until the socket is shut.
            self.shared.end(if ended.is_ok() { "exit status 0" } else { "exit status 1" });
            ended
        })
    }

    /// The control thread: receives a `Leave` even while the compute thread is in a step.
    fn listen(&self, mut stream: secure::Receiver, orders: mpsc::Sender<ToRank>) {
        while let Ok(order) = frame::read::<ToRank>(&mut stream) {
            if let ToRank::Leave { epoch } = order {
                self.log.add(self.order.rank, format!("leave {epoch}"));
                self.meeting.leave(epoch, &self.left_epoch);
            } else if orders.send(order).is_err() {
                return;
            }
        }
        self.meeting.leave(u64::MAX, &self.left_epoch);
        drop(orders);
    }

    fn obey(&self, orders: &mpsc::Receiver<ToRank>, heart: &Heart) -> Result<(), FrameError> {
        let rank = self.order.rank;
        let mut caches = FakeCaches::default();
        let mut epoch_now = 0;
        let mut last_answer = None;
        loop {
            match orders.recv().map_err(|_| FrameError::Closed)? {
                ToRank::Setup(setup) => {
                    self.log.add(rank, format!("setup {}", setup.model_dir));
                    if !self.load(heart)? {
                        return Ok(());
                    }
                }
                ToRank::Join(join) => {
                    let ports = join.peers.iter().map(|it| it.port().to_string());
                    let ports = ports.collect::<Vec<_>>().join(" ");
                    self.log.add(rank, format!("join {} {ports}", join.epoch));
                    caches.clear();
                    epoch_now = join.epoch;
                    if let Some(answer) = last_answer.take() {
                        // An answer of the old group that is still in transit.
                        heart.send(&answer)?;
                    }
                    if self.fault == Fault::FreezesJoining {
                        self.freeze(heart);
                        return Ok(());
                    }
                    if self.fault != Fault::NeverJoins {
                        heart.send(&FromRank::Joined { epoch: epoch_now })?;
                    }
                }
                ToRank::Step { epoch, plan } if epoch == epoch_now => {
                    match self.misbehave(plan.step, epoch, heart)? {
                        None => {
                            let answer = self.compute(epoch, &plan, &mut caches, heart)?;
                            last_answer = answer.or(last_answer);
                        }
                        Some(true) => return Ok(()),
                        // The rank has left the group: later plans for it are skipped.
                        Some(false) => epoch_now = 0,
                    }
                }
                ToRank::Heartbeat { .. } => drop(self.log.num_beats.fetch_add(1, Ordering::SeqCst)),
                ToRank::Step { .. } | ToRank::Leave { .. } => {}
                ToRank::Stop => {
                    self.log.add(rank, "stop");
                    if self.fault != Fault::IgnoresStop {
                        return Ok(());
                    }
                }
            }
        }
    }

    fn compute(
        &self,
        epoch: u64,
        plan: &StepPlan,
        caches: &mut FakeCaches,
        heart: &Heart,
    ) -> Result<Option<FromRank>, FrameError> {
        let rank = self.order.rank;
        if !self.meeting.reach(rank, epoch, plan.step, &self.left_epoch) {
            return Ok(None);
        }
        let output = caches.execute(plan, &mut pseudo_model(VOCAB_SIZE));
        let timings = StepTimings::default();
        let answer = match rank {
            0 => FromRank::Output { epoch, output },
            _ => FromRank::Done { epoch, step: plan.step, timings },
        };
        heart.send(&answer)?;
        Ok(Some(answer))
    }

    fn load(&self, heart: &Heart) -> Result<bool, FrameError> {
        heart.send(&FromRank::Progress { done_bytes: 5, total_bytes: 10 })?;
        match self.fault {
            Fault::StopsLoading => Ok(true),
            Fault::FreezesLoading => {
                self.freeze(heart);
                Ok(false)
            }
            Fault::BadModel => {
                heart.send(&FromRank::Failed(RankFailure {
                    epoch: 0,
                    phase: Phase::Loading,
                    kind: FailureKind::Model,
                    message: "tensor model.norm.weight is missing".to_owned(),
                    peers: Vec::new(),
                }))?;
                Ok(false)
            }
            _ => {
                heart.send(&FromRank::Progress { done_bytes: 10, total_bytes: 10 })?;
                heart.send(&FromRank::WarmingUp)?;
                heart.send(&FromRank::WarmingUp)?;
                if self.fault == Fault::StopsWarmingUp {
                    return Ok(true);
                }
                let mut facts = fake_facts(VOCAB_SIZE, 4096);
                if self.fault == Fault::OtherCacheCost {
                    facts.cache_cost.state_bytes += 8;
                }
                heart.send(&FromRank::Loaded(facts))?;
                Ok(true)
            }
        }
    }

    fn freeze(&self, heart: &Heart) {
        heart.is_frozen.store(true, Ordering::SeqCst);
        self.shared.wait_until_killed();
    }

    /// `Some(true)` if the thread ends, `Some(false)` if it does not answer.
    fn misbehave(&self, step: u64, epoch: u64, heart: &Heart) -> Result<Option<bool>, FrameError> {
        let failed = |kind, message: &str| {
            let (phase, message, peers) = (Phase::Computing, message.to_owned(), Vec::new());
            FromRank::Failed(RankFailure { epoch, phase, kind, message, peers })
        };
        Ok(match self.fault {
            Fault::DiesAt(at) if at == step => {
                self.shared.end("killed by signal 9");
                Some(true)
            }
            Fault::DeviceFailsAt(at) if at == step => {
                heart.send(&failed(FailureKind::Device, "the device is out of memory"))?;
                Some(true)
            }
            Fault::StallsAt(at) if at <= step => {
                self.shared.wait_until_killed();
                Some(true)
            }
            Fault::IsHeldUpAt(at) if (epoch, step) == (1, at) => {
                // The peer has all data for this step, and so reports that it is done.
                self.meeting.reach(self.order.rank, epoch, step, &self.left_epoch);
                heart.waiting_ms.store(10_000, Ordering::SeqCst);
                Some(false)
            }
            Fault::FreezesAt(at) if at == step => {
                self.freeze(heart);
                Some(true)
            }
            Fault::GroupBreaksAt(at) | Fault::NoticesDeathAt(at) if (epoch, step) == (1, at) => {
                heart.send(&failed(FailureKind::Group, "the connection to a peer was lost"))?;
                Some(false)
            }
            _ => None,
        })
    }
}

/// Sends heartbeats in addition to other messages.
struct Heart {
    stream: Arc<Mutex<secure::Sender>>,
    is_frozen: Arc<AtomicBool>,
    /// Time that the rank reports to have waited for its peers, in milliseconds.
    waiting_ms: Arc<AtomicU64>,
}

impl Heart {
    fn start(stream: secure::Sender) -> Heart {
        let stream = Arc::new(Mutex::new(stream));
        let heart = Heart {
            stream: Arc::clone(&stream),
            is_frozen: Arc::default(),
            waiting_ms: Arc::default(),
        };
        let is_frozen = Arc::clone(&heart.is_frozen);
        let waiting_ms = Arc::clone(&heart.waiting_ms);
        std::thread::spawn(move || {
            let heartbeat = || FromRank::Heartbeat {
                phase: Phase::Idle,
                steps_done: 0,
                waiting_ms: waiting_ms.load(Ordering::SeqCst),
                memory: RankMemory { kv_bytes: 7, ..RankMemory::default() },
                echo: None,
            };
            while !is_frozen.load(Ordering::SeqCst)
                && frame::write(&mut *stream.lock().unwrap(), &heartbeat()).is_ok()
            {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        heart
    }

    fn send(&self, message: &FromRank) -> Result<(), FrameError> {
        frame::write(&mut *self.stream.lock().unwrap(), message)
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        self.is_frozen.store(true, Ordering::SeqCst);
    }
}
