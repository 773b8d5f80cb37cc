//! The interface to the code that brings models which the server does not have yet.

use jackalope_serving::models::LoadFuture;

/// A model, as LocalAI names it, and where to compute it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ModelOrder {
    /// Directory of the model, or ORG/NAME.
    pub model: String,
    /// Path that the model would have in LocalAI's model directory.
    pub file: String,
    /// File that lists the machines; only this machine if absent.
    pub hostfile: Option<String>,
    /// Transport of the collectives, in LocalAI's terms.
    pub backend: Option<String>,
    /// Address where ranks find each other, as `HOST:PORT`.
    pub coordinator: Option<String>,
    /// Maximum length of a sequence in tokens; the model's own if absent.
    pub context_tokens: Option<u32>,
}

/// Brings models to a server that has none of its own.
pub trait ModelOpener: std::fmt::Debug + Send + Sync + 'static {
    /// Makes a model known to the server, so that it can be loaded, and returns its id. A model
    /// that was opened before and is not loaded may be opened with other settings.
    fn open(&self, order: &ModelOrder) -> LoadFuture<String>;

    /// Returns a hint on what to do about ranks that have not connected.
    fn missing(&self, order: &ModelOrder, ranks: &[usize]) -> String;
}
