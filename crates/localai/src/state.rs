//! The state shared by all calls.

use std::ops::Deref;
use std::sync::Arc;

use jackalope_server::ServerState;
use jackalope_serving::error::ApiError;
use jackalope_serving::state::Serving;

use crate::loads::Loads;
use crate::opener::ModelOpener;
use crate::options::LoadParams;

/// A backend of LocalAI over a server, to which it dereferences. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LocalAi {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    server: ServerState,
    opener: Option<Arc<dyn ModelOpener>>,
    loads: Loads,
}

impl Deref for LocalAi {
    type Target = ServerState;

    fn deref(&self) -> &ServerState {
        &self.shared.server
    }
}

impl LocalAi {
    /// Creates a backend that serves the server's models; LocalAI selects one by its name.
    pub fn new(server: ServerState) -> LocalAi {
        LocalAi::with(server, None)
    }

    /// Creates a backend of a server that has no models of its own; `opener` brings those that
    /// LocalAI names.
    pub fn with_opener(server: ServerState, opener: Arc<dyn ModelOpener>) -> LocalAi {
        LocalAi::with(server, Some(opener))
    }

    fn with(server: ServerState, opener: Option<Arc<dyn ModelOpener>>) -> LocalAi {
        LocalAi { shared: Arc::new(Shared { server, opener, loads: Loads::default() }) }
    }

    pub(crate) fn server(&self) -> &ServerState {
        &self.shared.server
    }

    pub(crate) fn opener(&self) -> Option<&Arc<dyn ModelOpener>> {
        self.shared.opener.as_ref()
    }

    /// The models that LocalAI has loaded.
    pub(crate) fn loads(&self) -> &Loads {
        &self.shared.loads
    }

    /// The name of the model that a call refers to, and the parameters of its load. The server's own
    /// models, if it has any, can be called by their names without a load.
    pub(crate) fn named(&self, identity: &str) -> Result<NamedModel, ApiError> {
        if let Some(load) = self.loads().find(identity) {
            return Ok(NamedModel { name: Some(load.id), params: load.params });
        }
        let is_served =
            self.opener().is_none() && (identity.is_empty() || self.models().is_known(identity));
        if is_served {
            let name = Some(identity).filter(|it| !it.is_empty()).map(str::to_owned);
            return Ok(NamedModel { name, params: LoadParams::default() });
        }
        Err(if self.loads().is_empty() {
            ApiError::NotLoaded { model: identity.to_owned() }
        } else {
            ApiError::UnknownModel { found: identity.to_owned(), served: self.models().served() }
        })
    }

    /// Opens the model that a call refers to, and returns it with the parameters of its load.
    pub(crate) async fn open_named(
        &self,
        identity: &str,
    ) -> Result<(Serving, LoadParams), ApiError> {
        let NamedModel { name, params } = self.named(identity)?;
        Ok((self.open(name.as_deref()).await?, params))
    }
}

/// The model that a call refers to.
pub(crate) struct NamedModel {
    /// The server's name of the model; the default model if absent.
    pub(crate) name: Option<String>,
    pub(crate) params: LoadParams,
}
