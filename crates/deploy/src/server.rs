//! A server of models: which it offers, on which ranks, and its life.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use jackalope_engine::Status;
use jackalope_server::{
    Copier, Models, ModelsConfig, Reporting, ServerConfig, ServerState, ShutdownMode,
};
use tokio::net::TcpListener;

use crate::cluster::READY_POLL;
use crate::cluster_copier::ClusterCopier;
use crate::config::{MemoryBudget, RankConfig};
use crate::context::LocalContext;
use crate::diagnosis::HostsDoctor;
use crate::error::DeployError;
use crate::hub_puller::HubPuller;
use crate::loading::ClusterLoader;
use crate::served::HttpServer;
use crate::served_models::ServedModels;

/// Maximum time in which a server stops, whatever its engines and connections do.
pub const STOP_MAX: Duration = Duration::from_secs(10);

// A service manager kills a server no sooner than the server can end.
const _: () = assert!(STOP_MAX.as_secs() < jackalope_fleet::service::STOP_SECONDS);

/// A server that is to be started.
#[derive(Debug)]
pub struct Deployment {
    /// The models that the server offers.
    pub models: ServedModels,
    /// How the models are computed, unless their own settings say otherwise.
    pub ranks: RankConfig,
    /// Memory that models may take of the machines. Default: what is free, if there are several
    /// models.
    pub memory_budgets: Vec<MemoryBudget>,
    /// Whether a request for a model that is not loaded loads it. Default: if there are several.
    pub load_on_demand: Option<bool>,
    /// Configuration of the HTTP API.
    pub http: ServerConfig,
    /// Log of requests, and traces.
    pub reporting: Reporting,
}

/// A server that runs. Its ranks may still be loading.
#[derive(Debug)]
pub struct RunningServer {
    /// The models that the server offers.
    pub offered: ServedModels,
    models: Models,
    state: ServerState,
    http: HttpServer,
}

impl Deployment {
    /// Starts the server on `listener`, and begins to load the default model.
    ///
    /// # Errors
    /// If the machines cannot be reached, or their memory is unknown.
    pub async fn start(
        self,
        listener: TcpListener,
        context: &LocalContext,
    ) -> Result<RunningServer, DeployError> {
        let Deployment { models: offered, ranks, memory_budgets, load_on_demand, .. } = self;
        let loader = ClusterLoader::new(&offered, &ranks, &memory_budgets, context).await?;
        let config = ModelsConfig {
            budget: loader.budget(),
            load_on_demand: load_on_demand.unwrap_or(offered.is_several()),
            idle_unload: offered.idle_unload,
            default: Some(offered.default.clone()),
        };
        let registry = loader.models();
        let models = Models::new(Arc::new(loader), offered.known()?, config);
        models.begin_load(&offered.default);
        let mut http = self.http;
        let is_local = is_loopback(listener.local_addr()?.ip());
        let has_keys = !http.api_keys.is_empty();
        // If there are keys, the server requires those of administrators.
        http.model_control = has_keys || offered.is_several() && is_local;
        // Also with a single model: with keys, administrators may pull and copy models.
        if has_keys || is_local {
            let folder = offered.models_dir.clone();
            let copier = ClusterCopier::new(&ranks.hosts, context, registry.clone());
            http.copier = copier.map(|it| Arc::new(it) as Arc<dyn Copier>);
            http.puller = Some(Arc::new(HubPuller::new(context, folder, &models, registry)));
        }
        http.doctor = Some(Arc::new(HostsDoctor::new(&ranks.hosts)));
        let state = ServerState::reporting(models.clone(), http, self.reporting);
        let http = HttpServer::start(listener, state.clone())?;
        Ok(RunningServer { offered, models, state, http })
    }
}

impl RunningServer {
    /// Returns the address that the server listens on.
    pub fn addr(&self) -> SocketAddr {
        self.http.addr
    }

    /// Returns the state with which servers of other protocols serve the same models.
    pub fn state(&self) -> ServerState {
        self.state.clone()
    }

    /// Waits until the ranks of the default model can compute. Calls `on_status` repeatedly while
    /// it waits.
    ///
    /// # Errors
    /// The reason why the model cannot be loaded.
    pub async fn ready(&self, on_status: impl Fn(&Status)) -> Result<Status, DeployError> {
        let id = &self.offered.default;
        let showing = async {
            loop {
                if let Some(engine) = self.models.engine(id) {
                    on_status(&engine.status());
                }
                tokio::time::sleep(READY_POLL).await;
            }
        };
        let loaded = tokio::select! {
            loaded = self.models.load(id) => loaded,
            () = showing => unreachable!("it goes on for ever"),
        };
        Ok(loaded?.status())
    }

    /// Loads the pinned models. A server of one model ends with its engine, so that its supervisor
    /// notices; a server of several models continues.
    ///
    /// # Errors
    /// The reason why the engine of a single model has ended.
    pub async fn look_after(&self) -> Result<(), DeployError> {
        for id in self.offered.at_start().iter().skip(1) {
            if let Err(err) = self.models.load(id).await {
                tracing::warn!(id, %err, "a pinned model is not loaded");
            }
        }
        if self.offered.is_several() {
            return std::future::pending().await;
        }
        Err(self.models.ended(&self.offered.default).await.into())
    }

    /// Stops everything that was started, and `others`, within [`STOP_MAX`]. Streams end with their
    /// engines, and connections with their streams.
    pub async fn stop(self, ending: ShutdownMode, others: impl Future<Output = ()>) {
        let stopped = async { tokio::join!(self.models.end(ending), self.http.stop(), others) };
        if tokio::time::timeout(STOP_MAX, stopped).await.is_err() {
            tracing::warn!(?STOP_MAX, "the engine did not stop in time, and is abandoned");
        }
        // The programs of these children were never executed, and the threads that wait for that
        // end with this process.
        jackalope_fleet::process::kill_unexecuted_children(Duration::ZERO);
    }
}

/// Returns true if only programs of this machine can reach the address.
pub fn is_loopback(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => ip.is_loopback(),
    }
}
