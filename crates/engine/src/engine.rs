//! The engine as a whole: its configuration, its thread, and the errors with which it ends.

mod attempts;
mod capacity;
mod drive;
mod outage;
mod pressure;
mod prompt_pace;
mod reporting;
mod step_clock;
pub(crate) mod streams;

use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use jackalope_protocol::{CacheCost, TokenId};
use thiserror::Error;

use crate::command::{Gauges, Message};
use crate::handle::Commands;
use crate::{EngineHandle, Failure, RankGroup};

pub use pressure::{MemoryReading, PressurePolicy, PressureStatus};
pub use prompt_pace::PROMPT_STEP_MAX;

/// Limits and options of an engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Maximum number of tokens computed per step over all sequences. Limits how long a prompt
    /// delays the other sequences.
    pub step_tokens: u32,
    /// Maximum number of tokens of a step in which no sequence decodes, as long as the ranks compute such steps
    /// within [`PROMPT_STEP_MAX`] and have enough free memory; `None` or less: as `step_tokens`.
    pub prompt_step_tokens: Option<u32>,
    /// Maximum number of sequences computed together; at most `step_tokens`.
    pub running_max: u32,
    /// Maximum number of requests that may wait in addition to those.
    pub queue_max: u32,
    /// Maximum length of a sequence in tokens; the model's own limit if absent or larger.
    pub context_tokens: Option<u32>,
    /// Maximum length of a prompt in tokens; the context length if absent.
    pub max_prompt_tokens: Option<u32>,
    /// Memory for keys and values.
    pub kv_budget: KvBudget,
    /// Whether caches of finished sequences are kept for prompts with the same prefix.
    pub keep_prefixes: bool,
    /// Whether a step is planned while the previous one runs.
    pub lookahead: bool,
    /// The model's own end tokens.
    pub eos_tokens: Vec<TokenId>,
    /// Policy for replacing lost ranks.
    pub retry: RetryPolicy,
    /// Policy for memory that other programs take.
    pub pressure: PressurePolicy,
}

impl Default for EngineConfig {
    fn default() -> EngineConfig {
        EngineConfig {
            step_tokens: 512,
            prompt_step_tokens: None,
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

/// Memory for keys and values.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KvBudget {
    /// This number of bytes on each rank.
    BytesPerRank(u64),
    /// Four fifths of the free memory of each rank's machine, divided among the ranks on it.
    Auto {
        /// Number of ranks that share a machine's memory.
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
    /// Maximum pause between attempts. If a group stays up for at least this long before it is
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

/// Reason for which an engine ended by itself.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum EngineError {
    /// The ranks could not be started for the first time.
    #[error("the ranks did not start: {0}")]
    Start(Failure),
    /// The memory for keys and values does not hold even the shortest sequence.
    #[error(
        "{budget_bytes} bytes of memory for caches on rank {rank} do not hold a sequence of \
         {least_tokens} tokens: they take {cost}\n\
         hint: free memory, use more ranks, or raise the budget"
    )]
    NoRoom {
        /// Rank with the least memory.
        rank: usize,
        /// Memory budget of that rank in bytes.
        budget_bytes: u64,
        /// Memory that caches take on that rank.
        cost: CacheCost,
        /// Number of tokens in the smallest unit of allocation.
        least_tokens: u32,
    },
}

/// The engine's thread; ends after [`EngineHandle::shutdown`], or by itself with an error.
pub type EngineThread = JoinHandle<Result<(), EngineError>>;

/// Owns the scheduler and the ranks. Its thread sleeps unless there is a command, a report of the
/// ranks, or a deadline.
///
/// The loss of a rank is handled as a preemption of all sequences: the scheduler has every token of
/// every sequence, so once the group is up again each sequence is recomputed from its tokens and
/// its stream continues.
#[derive(Debug)]
pub struct Engine;

impl Engine {
    /// Starts the engine's thread, which starts the ranks. The engine ends when every handle and
    /// every generation is dropped, as after [`EngineHandle::shutdown`].
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
