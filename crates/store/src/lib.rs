//! Models on this machine: where they are stored, whether they are complete, and what exactly they
//! contain. Knows files, and in `exchange` other machines that have
//! or want models; nothing of ranks or requests.
//!
//! ```text
//!   name (what was typed) ─▶ store ─▶ a directory ─▶ check     is it complete, can this version load it?
//!                              │                  ─▶ manifest  which files and hashes?
//!                              └─▶ hub (the layout of Hugging Face's cache)
//!                                   └─▶ blob (content addressed by its hash)
//!   verify: is the content what was fetched?   remove: which files a removal deletes
//!   hashes: cached hashes of files
//!   content: hashes of blocks, with which ranks verify what they read
//!   pull: fetches models from a hub
//!   exchange: copies models between machines, and lets ranks read those of other machines
//! ```

pub mod blob;
pub mod check;
pub mod content;
pub mod exchange;
pub mod files;
pub mod hashes;
pub mod hub;
pub mod manifest;
pub mod name;
mod parallel;
pub mod progress;
#[cfg(feature = "pull")]
pub mod pull;
pub mod remove;
pub mod store;
pub mod synth;
pub mod verify;

pub use blob::{BlobHasher, BlobId};
pub use check::{Check, Problem, Quantization, Summary};
pub use hashes::{HashCache, Hashing};
pub use hub::{HubCache, HubRepo};
pub use jackalope_spec::SpecError;
pub use manifest::{Difference, FileEntry, Manifest, ManifestError, Record};
pub use name::{ModelRef, NameError, RepoId, Revision};
pub use remove::{Removal, StoreRemoveError};
pub use store::{FoundModel, ModelStore, ResolveError, StoreKind, Stores};
pub use verify::{Expectation, VerifyError};
