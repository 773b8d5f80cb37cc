//! Decides what every rank computes next, and keeps the ranks alive.
//!
//! Knows requests, sequences, caches and ranks; knows nothing of text, HTTP, arrays, or how a
//! process is started on some machine.
//!
//! ```text
//!  callers                     engine thread                                   ranks
//!  EngineHandle ──submit──▶  Scheduler ──plan────▶ RankGroup (Link) ──Step──▶  jackalope-rank ×N
//!  Generation  ◀──Event────     ▲  └──commit──────◀    │  ▲ ◀────────Output──  (rank 0)
//!                               └── ranks_restarted ───┘  └── Launcher starts processes
//! ```
//!
//! - [`Request::new`] is the only door: what passes it cannot upset the engine.
//! - The scheduler is pure: no clock, no thread, no I/O, no randomness. The same calls give the
//!   same plans. Only the loop around it and the [`link`] know the time.
//! - Losing a rank is preempting everyone: see [`Engine`].

mod cache_capacity;
mod command;
mod constraint;
mod constraint_pool;
mod constraint_question;
mod cost_history;
mod engine;
mod event;
#[cfg(test)]
mod fairness;
mod group;
mod handle;
mod kept_lengths;
mod kv_cache;
pub mod link;
mod metrics;
mod prefix;
mod request;
mod scheduler;
#[cfg(test)]
mod simulation;
mod status;
pub mod testing;

pub use cache_capacity::{CacheCapacity, CacheDemand, RankCapacity};
pub use command::OpenRequest;
pub use constraint::{AllowedTokens, ConstraintError, ConstraintFault, TokenConstraint, TokenMask};
pub use engine::{
    Engine, EngineConfig, EngineError, EngineThread, KvBudget, MemoryReading, PROMPT_STEP_MAX,
    PressurePolicy, PressureStatus, RetryPolicy,
};
pub use event::{Event, Failure, FinishReason, MissReason, PrefixMiss, Usage};
pub use group::{GroupEvent, RankGroup, Reporter};
pub use handle::{EngineHandle, Generation, SubmitError};
pub use metrics::{Buckets, RequestEnd, RequestRecord, RequestStats};
pub use request::{
    BANNED_TOKENS_MAX, CacheScope, LOGIT_BIAS_MAX, LOGPROBS_MAX, Rejected, Request, RequestId,
    RequestLimits, RequestOptions, STOP_TOKENS_MAX, SamplingOptions, TenantId,
};
pub use scheduler::{OutputMismatch, ScheduleStats, Scheduler, SchedulerLimits};
pub use status::{
    BrokenLink, Counters, EngineState, Histogram, HostWork, KvStatus, MachineHeat, PrefixStats,
    RankStatus, RankTransport, RecoveryStats, Status, StepStats, TimingSums,
};
