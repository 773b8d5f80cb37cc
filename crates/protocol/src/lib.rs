//! The messages between the coordinator and the ranks.
//!
//! The coordinator (`jackalope`) sends every rank (`jackalope-rank`) the same [`StepPlan`]s; rank 0
//! answers with a [`StepOutput`], every rank with its progress. Two ranks given the same sequence
//! of plans hold the same caches. This crate defines these messages and how they travel over a byte
//! stream ([`frame`]); it decides nothing and computes nothing.
//!
//! ```text
//!  rank                                   coordinator
//!   │ ◀── preamble, Noise ───────────────▶ │   version and ticket are checked ([`secure`])
//!   │ ── Hello ──────────────────────────▶ │   which rank
//!   │ ◀─────────────────────────── Setup ─ │   what to load, how it is split
//!   │ ── Progress … Loaded ──────────────▶ │
//!   │ ◀──────────────────────────── Join ─ │   the members of this epoch's group
//!   │ ── Joined ─────────────────────────▶ │
//!   │ ◀──────────────────────────── Step ─ │   repeated; at most `MAX_STEPS_IN_FLIGHT` ahead
//!   │ ── Output (rank 0) / Done ─────────▶ │
//!   │ ── Failed ─────────────────────────▶ │   the group broke: weights stay, a new Join follows
//! ```

pub mod admission;
pub mod agent;
mod cache_cost;
mod content;
mod content_hash;
mod counted;
mod embed;
mod file_path;
pub mod frame;
pub mod gate;
pub mod grant;
mod identity;
mod ids;
pub mod log;
pub mod machine;
mod mask;
mod memory;
mod messages;
mod plan;
mod pressure;
pub mod refusals;
mod secret;
pub mod secure;
pub mod split;
mod version;

pub use cache_cost::{CacheCost, KV_BLOCK_TOKENS, window_blocks, window_blocks_max};
pub use content::{
    BlockHash, CheckpointId, ContentTree, ExpectedContent, FileState, FileTree, SETTLED_AFTER,
};
pub use content_hash::{ContentHash, HashTextError, parse_hex, write_hex};
pub use counted::counted;
pub use embed::{Embed, Embedded, Pooling};
pub use file_path::{FilePath, FilePathError};
pub use frame::FrameError;
pub use identity::{Identity, NAME_BYTES_MAX, PublicKey};
pub use ids::{CacheId, TokenId};
pub use mask::RowMask;
pub use memory::{MachineMemory, MemoryPressure, PressureLimits};
pub use messages::{
    Backend, Device, FailureKind, FromRank, HeartbeatEcho, Hello, Join, ModelSource, Phase,
    RankFacts, RankFailure, RankMemory, Setup, ToRank, UnitRange,
};
pub use plan::{
    Forget, Fork, Input, KernelTimings, Logprob, Row, Sampled, Sampling, Score, Scored, StepOutput,
    StepPlan, StepTimings, WindowDrop,
};
pub use pressure::PressureTier;
pub use secret::Secret;

/// Maximum number of plans that the coordinator sends beyond the last answered one: the running
/// step and its look-ahead. A longer pipeline has one for each stage.
pub const MAX_STEPS_IN_FLIGHT: usize = 2;
