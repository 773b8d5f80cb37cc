//! Models on this machine: where they lie, whether they are whole, and what exactly is in them. Pure
//! apart from files: knows neither the network nor the environment.
//!
//! ```text
//!   name (what was typed) ─▶ store ─▶ a directory ─▶ check     is it whole?
//!                              │                  ─▶ loadable  can this version load it?
//!                              │                  ─▶ manifest  which bytes are in it?
//!                              └─▶ hub (the layout of Hugging Face's cache)
//!                                   └─▶ blob (content named by its hash)
//!   verify: does it hold what was fetched?   remove: what goes with a model
//!   hashes: what was hashed before
//!   content: hashes of blocks, by which ranks verify what they read
//! ```

pub mod blob;
pub mod check;
pub mod content;
pub mod files;
pub mod hashes;
pub mod hub;
pub mod loadable;
pub mod manifest;
pub mod name;
mod parallel;
pub mod remove;
pub mod store;
pub mod verify;

#[cfg(test)]
pub(crate) mod scratch;

pub use blob::{BlobHasher, BlobId, ContentHash};
pub use check::{Check, Problem, Quantization, Summary};
pub use files::FilePath;
pub use hashes::{HashCache, Hashing};
pub use hub::{HubCache, HubRepo};
pub use loadable::Unsupported;
pub use manifest::{Difference, FileEntry, Manifest, ManifestError, Record};
pub use name::{ModelRef, NameError, RepoId, Revision};
pub use remove::{Removal, RemoveError};
pub use store::{FoundModel, Place, PlaceKind, ResolveError, Stores};
pub use verify::{Expectation, VerifyError};
