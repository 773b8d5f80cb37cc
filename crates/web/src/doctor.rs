//! The interface to the code that diagnoses the machines of a cluster.

use std::fmt;

use futures_util::future::BoxFuture;
use serde_json::Value;

/// The findings of a diagnosis, once it is made.
pub type Diagnosis = BoxFuture<'static, Value>;

/// Diagnoses the machines that a server uses.
pub trait ClusterDoctor: fmt::Debug + Send + Sync {
    /// Examines all machines, which takes up to 20 seconds, and returns `findings` and `machines` as
    /// `jackalope doctor --json` prints them. `broken_links` are sentences about links that the
    /// server knows to be broken.
    fn diagnose(&self, broken_links: Vec<String>) -> Diagnosis;
}
