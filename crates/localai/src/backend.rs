//! LocalAI's backend `mlx-distributed`: coordinator and rank 0 of the models that LocalAI names.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use jackalope_deploy::loading::ClusterLoader;
use jackalope_deploy::served::HttpServer;
use jackalope_deploy::{DeployError, LocalContext, RankConfig};
use jackalope_server::{ServerConfig, ServerState};
use jackalope_serving::models::{Models, ModelsConfig, ShutdownMode};
use tokio::net::TcpListener;

use crate::cluster::WorkerConfig;
use crate::ordered_models::OrderedModels;
use crate::service::serve;
use crate::state::LocalAi;

/// A running backend, which has no model until LocalAI names one.
#[derive(Debug)]
pub struct RunningBackend {
    /// The address that the backend listens on.
    pub addr: SocketAddr,
    models: Models,
    server: HttpServer,
}

impl RunningBackend {
    /// Starts a backend that serves gRPC on `listener`.
    ///
    /// # Errors
    /// If this machine has no secret, or the listener no address.
    pub fn start(
        listener: TcpListener,
        config: WorkerConfig,
        server: ServerConfig,
        local: &LocalContext,
    ) -> Result<RunningBackend, DeployError> {
        if config.hostfile.is_some() {
            // The other ranks need the secret before there is a model.
            local.home()?.secret()?;
        }
        let loader = ClusterLoader::empty(RankConfig::default(), local);
        let registry = loader.models();
        let models = Models::new(Arc::new(loader), Vec::new(), ModelsConfig::default());
        let local = local.clone();
        let opener = OrderedModels { config, models: models.clone(), registry, local };
        let state = ServerState::with_models(models.clone(), server);
        let server = start(listener, LocalAi::with_opener(state, Arc::new(opener)))?;
        Ok(RunningBackend { addr: server.addr, models, server })
    }

    /// Ends all models and closes all connections.
    pub async fn stop(self) {
        tokio::join!(self.models.end(ShutdownMode::Shutdown), self.server.stop());
    }
}

/// Starts to serve gRPC on `listener`.
///
/// # Errors
/// If the listener has no address.
pub fn start(listener: TcpListener, localai: LocalAi) -> io::Result<HttpServer> {
    HttpServer::start_with(listener, |listener, stopped| serve(listener, localai, stopped))
}
