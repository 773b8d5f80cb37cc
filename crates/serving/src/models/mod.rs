//! The models of a server: which exist, which are loaded, and which are evicted for others.
//!
//! ```text
//!            a request, or load              engine runs           ranks have loaded
//!  Unloaded ────────────────────▶ Preparing ─────────────▶ Loaded ───────────────────▶ Loaded, up
//!     ▲ ▲                             │                      │                              │
//!     │ └── no memory, or it failed ──┘                      │     idle for too long, evicted for
//!     └───────────────────────────────────────────────── Unloading ◀── another, or on request ─┘
//! ```
//!
//! - However many requests need a model that is not loaded, it is loaded once; they wait, at most
//!   [`ServerLimits::load_wait`](crate::limits::ServerLimits::load_wait). A failure is reported to all of
//!   them.
//! - A request holds a [`Lease`] of its model until its last token. A leased model is not unloaded.
//! - Memory is reserved for one model at a time; models that have their memory load concurrently.
//!
//! Only the [`ModelLoader`] knows machines and how to start an engine.

pub mod control;
mod eviction;
pub mod loader;
mod opening;
mod table;
mod tasks;

pub use loader::{
    KnownModel, LoadFailure, LoadFuture, MachineBytes, ModelFit, ModelLoadError, ModelLoader,
    Shortage, StartedModel,
};
pub use opening::Lease;
pub use table::{KeptBecause, LATEST, ModelStatus, Models, ModelsConfig, ShutdownMode};
pub use tasks::UnloadRefusal;
