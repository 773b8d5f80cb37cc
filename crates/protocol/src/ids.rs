//! The numbers by which plans and outputs name tokens and caches.

use serde::{Deserialize, Serialize};

/// Index into the model's vocabulary.
pub type TokenId = u32;

/// Identifies one sequence's cached keys and values on every rank. Chosen by the coordinator, never
/// reused within an epoch of the group.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct CacheId(pub u64);
