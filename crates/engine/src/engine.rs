//! The engine as a whole: its configuration, its thread, and why it may end.

mod attempts;
mod capacity;
mod drive;
mod pressure;
pub(crate) mod streams;

use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use jackalope_protocol::TokenId;
use thiserror::Error;

use crate::handle::{Commands, Gauges, Message};
use crate::{EngineHandle, Failure, RankGroup};

pub use pressure::{MemoryReading, PressurePolicy, PressureStatus};

/// Bounds and choices of an engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Tokens computed per step over all sequences. Bounds how long a prompt holds up the others.
    pub step_tokens: u32,
    /// Sequences computed side by side; at most `step_tokens`.
    pub running_max: u32,
    /// Requests that may wait beyond those.
    pub queue_max: u32,
    /// Longest sequence; the model's own bound if absent or larger.
    pub context_tokens: Option<u32>,
    /// Longest prompt; the context if absent.
    pub max_prompt_tokens: Option<u32>,
    /// Memory of keys and values.
    pub kv_budget: KvBudget,
    /// Whether finished sequences are kept for prompts that begin alike.
    pub keep_prefixes: bool,
    /// Whether a step is planned while the one before runs.
    pub lookahead: bool,
    /// The model's own end tokens.
    pub eos_tokens: Vec<TokenId>,
    /// Policy for replacing lost ranks.
    pub retry: RetryPolicy,
    /// What is done about memory that other programs take.
    pub pressure: PressurePolicy,
}

impl Default for EngineConfig {
    fn default() -> EngineConfig {
        EngineConfig {
            step_tokens: 512,
            running_max: 64,
            queue_max: 256,
            context_tokens: None,
            max_prompt_tokens: None,
            kv_budget: KvBudget::Auto { ranks_per_machine: 1 },
            keep_prefixes: true,
            lookahead: true,
            eos_tokens: Vec::new(),
            retry: RetryPolicy::default(),
            pressure: PressurePolicy::default(),
        }
    }
}

/// Memory of keys and values.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KvBudget {
    /// So many bytes on each rank.
    BytesPerRank(u64),
    /// A good part of what each rank's machine has free, divided among the ranks on it.
    Auto {
        /// Ranks that share a machine's memory.
        ranks_per_machine: u32,
    },
}

/// Timing of the attempts to replace lost ranks, and the limits after which requests or the engine
/// fail.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RetryPolicy {
    /// Pause before the second attempt in a row; the first attempt starts immediately. The pause
    /// doubles with each further loss, up to `pause_max`, until a step completes.
    pub pause_first: Duration,
    /// Longest pause between attempts. If a group stays up for at least this long before it is
    /// lost, the count of losses starts again.
    pub pause_max: Duration,
    /// Pause before all ranks are restarted after a fatal failure, which replacing single ranks
    /// cannot fix.
    pub restart_pause: Duration,
    /// Time without a completed step and without progress of any rank, while ranks are being
    /// brought up, after which all open requests fail. The attempts continue.
    pub standstill_max: Duration,
    /// Number of losses without progress of any rank, during the first start, after which the
    /// engine ends.
    pub start_failures_max: u32,
}

impl Default for RetryPolicy {
    fn default() -> RetryPolicy {
        RetryPolicy {
            pause_first: Duration::from_millis(50),
            pause_max: Duration::from_secs(2),
            restart_pause: Duration::from_secs(10),
            standstill_max: Duration::from_secs(60),
            start_failures_max: 5,
        }
    }
}

/// Why an engine ended by itself.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum EngineError {
    /// The ranks could not be brought up in the first place.
    #[error("the ranks did not start: {0}")]
    Start(Failure),
    /// The memory for keys and values does not hold even the shortest sequence.
    #[error(
        "{budget_bytes} bytes of memory for keys and values on rank {rank} hold fewer than \
         {least_tokens} tokens of {bytes_per_token} bytes each\n\
         hint: free memory, use more ranks, or raise the budget"
    )]
    NoRoom {
        /// The rank with the least room.
        rank: usize,
        /// What it has.
        budget_bytes: u64,
        /// What one token takes there.
        bytes_per_token: u64,
        /// Tokens in the smallest unit of allocation.
        least_tokens: u32,
    },
}

/// The engine's thread; ends after [`EngineHandle::shutdown`], or by itself with an error.
pub type EngineThread = JoinHandle<Result<(), EngineError>>;

/// The one owner of the scheduler and the ranks. Its thread sleeps unless there is a command, a
/// report of the ranks, or a deadline.
///
/// Losing a rank is preempting everyone: the scheduler has every token of every sequence, so once
/// the group stands again each is computed from its tokens and its stream goes on.
#[derive(Debug)]
pub struct Engine;

impl Engine {
    /// Starts the engine's thread, which brings up the ranks. Dropping every handle and every
    /// generation ends it, as [`EngineHandle::shutdown`] does.
    pub fn spawn<G: RankGroup>(config: EngineConfig, group: G) -> (EngineHandle, EngineThread) {
        let (sender, inbox) = mpsc::channel();
        let gauges = Arc::new(Gauges::default());
        let driver = drive::Driver::new(config, group, Arc::clone(&gauges));
        let status = driver.subscribe();
        let reports = sender.clone();
        let commands = Commands::new(move |command| sender.send(Message::Command(command)).is_ok());
        let thread = std::thread::Builder::new()
            .name("engine".to_owned())
            .spawn(move || driver.run(&inbox, reports))
            .expect("a process that just started can start a thread");
        (EngineHandle::new(Arc::new(commands), status, gauges), thread)
    }
}
