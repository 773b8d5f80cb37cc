//! The parts of requests that handlers take; a part that cannot be read is refused.

use axum::RequestPartsExt;
use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Path, Query};
use axum::http::Request;
use axum::http::request::Parts;
use jackalope_serving::body::{JsonBody, parse_json, read_json, read_unlabelled_json};
use jackalope_serving::error::ApiError;
use serde::de::DeserializeOwned;
use tokio::sync::OwnedSemaphorePermit;

use crate::state::ServerState;

/// A JSON body.
pub(crate) struct JsonRequest(pub(crate) JsonBody);

impl FromRequest<ServerState> for JsonRequest {
    type Rejection = ApiError;

    async fn from_request(
        request: Request<Body>,
        state: &ServerState,
    ) -> Result<JsonRequest, ApiError> {
        let bytes = read_json(request, state.limits(), state.body_memory()).await?;
        parse_json(bytes).await.map(JsonRequest)
    }
}

/// The JSON body of a generation request, and a slot for it. The slot is taken once the body has
/// been read, so that a client that sends its body slowly takes none.
pub(crate) struct SlottedRequest {
    pub(crate) body: JsonBody,
    pub(crate) slot: OwnedSemaphorePermit,
}

impl FromRequest<ServerState> for SlottedRequest {
    type Rejection = ApiError;

    async fn from_request(
        request: Request<Body>,
        state: &ServerState,
    ) -> Result<SlottedRequest, ApiError> {
        let bytes = read_json(request, state.limits(), state.body_memory()).await?;
        let slot = state.open_stream()?;
        Ok(SlottedRequest { body: parse_json(bytes).await?, slot })
    }
}

/// A JSON body that need not be declared as JSON, as in Ollama's API.
pub(crate) struct UnlabelledRequest(pub(crate) JsonBody);

impl FromRequest<ServerState> for UnlabelledRequest {
    type Rejection = ApiError;

    async fn from_request(
        request: Request<Body>,
        state: &ServerState,
    ) -> Result<UnlabelledRequest, ApiError> {
        let bytes = read_unlabelled_json(request, state.limits(), state.body_memory()).await?;
        parse_json(bytes).await.map(UnlabelledRequest)
    }
}

/// Like [`SlottedRequest`], with a body that need not be declared as JSON.
pub(crate) struct SlottedUnlabelledRequest {
    pub(crate) body: JsonBody,
    pub(crate) slot: OwnedSemaphorePermit,
}

impl FromRequest<ServerState> for SlottedUnlabelledRequest {
    type Rejection = ApiError;

    async fn from_request(
        request: Request<Body>,
        state: &ServerState,
    ) -> Result<SlottedUnlabelledRequest, ApiError> {
        let bytes = read_unlabelled_json(request, state.limits(), state.body_memory()).await?;
        let slot = state.open_stream()?;
        Ok(SlottedUnlabelledRequest { body: parse_json(bytes).await?, slot })
    }
}

/// The parameters in the query string.
pub(crate) struct Params<T>(pub(crate) T);

impl<T: DeserializeOwned + 'static> FromRequestParts<ServerState> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &ServerState) -> Result<Params<T>, ApiError> {
        let query = parts.extract::<Query<T>>().await;
        let query = query.map_err(|err| ApiError::WrongType {
            param: "query".to_owned(),
            reason: err.body_text(),
        })?;
        Ok(Params(query.0))
    }
}

/// The name in the path. A name that is not UTF-8 becomes one that matches nothing.
pub(crate) struct Name(pub(crate) String);

impl FromRequestParts<ServerState> for Name {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &ServerState) -> Result<Name, ApiError> {
        let name = parts.extract::<Path<String>>().await;
        Ok(Name(name.map_or_else(|_| char::REPLACEMENT_CHARACTER.to_string(), |Path(it)| it)))
    }
}
