//! What is asked of whoever can bring a model that the server does not have yet.

use crate::models::LoadFuture;

/// A model, as LocalAI names it, and where it shall be computed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ModelOrder {
    /// Its directory, or ORG/NAME.
    pub model: String,
    /// Where it would lie in LocalAI's folder of models.
    pub file: String,
    /// The machines; this one alone if absent.
    pub hostfile: Option<String>,
    /// The transport of the collectives, in LocalAI's word.
    pub backend: Option<String>,
    /// Where ranks find each other, as `HOST:PORT`.
    pub coordinator: Option<String>,
    /// Longest sequence; the model's if absent.
    pub context_tokens: Option<u32>,
}

/// Brings models to a server that has none of its own.
pub trait ModelOpener: std::fmt::Debug + Send + Sync + 'static {
    /// Makes a model known to the server, to be loaded next; answers with its id. A model that was
    /// opened before, and is not loaded, may be opened otherwise.
    fn open(&self, order: &ModelOrder) -> LoadFuture<String>;

    /// What to do about ranks that have not come, as a hint.
    fn missing(&self, order: &ModelOrder, ranks: &[usize]) -> String;
}
