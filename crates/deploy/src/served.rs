//! Serves a cluster's model over HTTP.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use jackalope_engine::SamplingOptions;
use jackalope_placement::PlacementModel;
use jackalope_server::{ModelDetails, RunningModel, ServerState};
use jackalope_text::GenerationDefaults;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::cluster::Cluster;

/// Completes when a server is to stop.
pub type StopSignal = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An HTTP server that answers for a cluster.
#[derive(Debug)]
pub struct HttpServer {
    /// The address that the server listens on.
    pub addr: SocketAddr,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl HttpServer {
    /// Starts a server on `listener`, which also answers while the ranks are loading.
    ///
    /// # Errors
    /// If the listener has no address.
    pub fn start(listener: TcpListener, state: ServerState) -> io::Result<HttpServer> {
        HttpServer::start_with(listener, |listener, stopped| {
            jackalope_server::serve(listener, state, stopped)
        })
    }

    /// Starts a server of another protocol: `serve` serves on `listener` until the future it is
    /// given completes.
    ///
    /// # Errors
    /// If the listener has no address.
    pub fn start_with<F>(
        listener: TcpListener,
        serve: impl FnOnce(TcpListener, StopSignal) -> F,
    ) -> io::Result<HttpServer>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let addr = listener.local_addr()?;
        let (stop, mut stopped) = watch::channel(false);
        let stopped = Box::pin(async move {
            // An error means that the sender is gone, which is a stop as well.
            stopped.wait_for(|stop| *stop).await.ok();
        });
        let task = tokio::spawn(serve(listener, stopped));
        Ok(HttpServer { addr, stop, task })
    }

    /// Closes open connections and waits for them, within the server's limit.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        self.task.await.ok();
    }
}

/// Returns a cluster's model, with the sampling options that its checkpoint recommends.
pub fn served(model_id: &str, cluster: &Cluster) -> RunningModel {
    RunningModel {
        sampling_defaults: sampling_defaults(&cluster.text.generation),
        ..RunningModel::new(model_id, cluster.engine.clone(), Arc::clone(&cluster.text))
    }
}

/// Returns the details of a checkpoint for lists of models. A server works without them.
pub fn details(dir: &Path) -> Option<ModelDetails> {
    let facts = match PlacementModel::read(dir) {
        Ok(facts) => facts,
        Err(err) => {
            // Loading the model fails for this reason, and reports it.
            tracing::info!(%err, "lists of models will not show this model's size");
            return None;
        }
    };
    let modified = std::fs::metadata(dir).and_then(|it| it.modified()).unwrap_or(UNIX_EPOCH);
    Some(ModelDetails {
        num_parameters: num_parameters(&facts),
        weight_bits: Some(weight_bits(&facts)),
        weights_bytes: facts.weights_bytes(),
        hidden_size: facts.hidden_size,
        modified: modified.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        family: facts.architecture,
    })
}

fn weight_bits(facts: &PlacementModel) -> u32 {
    let plain = u32::try_from(8 * facts.element_bytes()).unwrap_or(u32::MAX);
    facts.quantization.map_or(plain, |quantization| quantization.bits)
}

/// Estimates the number of parameters from the size, as if all weights were stored like most of
/// them: quantised ones have a scale and a bias for each group.
fn num_parameters(facts: &PlacementModel) -> u64 {
    let element_bits = 8.0 * facts.element_bytes() as f64;
    let bits = facts.quantization.map_or(element_bits, |quantization| {
        f64::from(quantization.bits) + 2.0 * element_bits / f64::from(quantization.group_size)
    });
    (8.0 * facts.weights_bytes() as f64 / bits) as u64
}

/// Returns the checkpoint's recommendations, for requests that do not set sampling parameters.
fn sampling_defaults(recommended: &GenerationDefaults) -> SamplingOptions {
    let usual = SamplingOptions::default();
    SamplingOptions {
        temperature: recommended.temperature().unwrap_or(usual.temperature),
        top_p: recommended.top_p.unwrap_or(usual.top_p),
        top_k: recommended.top_k.unwrap_or(usual.top_k),
        min_p: recommended.min_p.unwrap_or(usual.min_p),
        repetition_penalty: recommended.repetition_penalty.unwrap_or(usual.repetition_penalty),
        ..usual
    }
}
