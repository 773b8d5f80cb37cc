//! Endpoints about models: `GET /api/tags`, `POST /api/show`, `GET /api/ps`, `GET /api/version`;
//! and those that delete, copy or create models.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use jackalope_engine::RequestLimits;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use super::names::{full_name, known};
use super::request::Named;
use crate::extract::UnlabelledRequest;
use crate::state::ServerState;
use jackalope_serving::error::ApiError;
use jackalope_serving::ids::{hex, rfc3339};
use jackalope_serving::model::ModelDetails;
use jackalope_serving::models::ModelStatus;
use jackalope_serving::puller::ModelRemoveError;

/// The API version that this server implements: clients compare it to find out what they may send.
const VERSION: &str = "0.12.11";

/// Expiry time of a model that stays loaded, in seconds since 1970: in the year 2318, as far away
/// as clients are used to.
const NEVER: u64 = 11_000_000_000;

/// A model in a list.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaModelEntry)]
struct ModelEntry {
    name: String,
    model: String,
    modified_at: String,
    size: u64,
    digest: String,
    details: Details,
    capabilities: Vec<&'static str>,
}

/// Properties of a model.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaDetails)]
struct Details {
    parent_model: &'static str,
    format: &'static str,
    family: String,
    families: Vec<String>,
    parameter_size: String,
    quantization_level: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    context_length: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    embedding_length: Option<usize>,
}

impl Details {
    fn of(model: &ModelStatus) -> Details {
        let known = model.details.clone().unwrap_or_default();
        let families = Some(known.family.clone()).filter(|family| !family.is_empty());
        let is_known = model.details.is_some();
        let bits = known.weight_bits.map(|bits| format!("{bits}bit"));
        Details {
            parent_model: "",
            format: "safetensors",
            family: known.family,
            families: families.into_iter().collect(),
            parameter_size: model
                .details
                .as_ref()
                .map_or(String::new(), |it| rounded(it.num_parameters)),
            quantization_level: bits.unwrap_or_default(),
            context_length: limits(model).map(|limits| limits.context_tokens),
            embedding_length: is_known.then_some(known.hidden_size),
        }
    }
}

/// Formats a number with a unit: 3.2M, 8.0B.
fn rounded(count: u64) -> String {
    let count = count as f64;
    [(1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")]
        .into_iter()
        .find(|(unit, _)| count >= *unit)
        .map_or(format!("{count}"), |(unit, letter)| format!("{:.1}{letter}", count / unit))
}

/// The limits of requests, while the model is loaded.
fn limits(model: &ModelStatus) -> Option<RequestLimits> {
    model.model.as_ref()?.engine.limits()
}

fn modified_at(model: &ModelStatus) -> String {
    let seconds = model.details.as_ref().map_or(model.created, |details| details.modified);
    rfc3339(UNIX_EPOCH + Duration::from_secs(seconds))
}

/// Identifies a checkpoint: a digest of the name and the known properties of the files, not of
/// their contents.
fn digest(model: &ModelStatus) -> String {
    let ModelDetails { family, num_parameters, weight_bits, weights_bytes, hidden_size, modified } =
        model.details.clone().unwrap_or_default();
    let known = json!([
        model.id,
        family,
        num_parameters,
        weight_bits,
        weights_bytes,
        hidden_size,
        modified
    ]);
    hex(&Sha256::digest(known.to_string().as_bytes()))
}

/// The capabilities of a loaded model; for other models only those that every model has.
fn capabilities(model: &ModelStatus) -> Vec<&'static str> {
    let mut capabilities = vec!["completion"];
    if let Some(model) = &model.model {
        let answer = &model.text.answer;
        capabilities.extend(answer.tools.is_some().then_some("tools"));
        capabilities.extend(answer.reasoning.is_some().then_some("thinking"));
    }
    capabilities
}

pub(super) async fn tags(State(state): State<ServerState>) -> Json<Value> {
    let entry = |model: &ModelStatus| ModelEntry {
        name: full_name(&model.id),
        model: full_name(&model.id),
        modified_at: modified_at(model),
        size: model.details.as_ref().map_or(0, |details| details.weights_bytes),
        digest: digest(model),
        details: Details::of(model),
        capabilities: capabilities(model),
    };
    Json(json!({"models": state.models().list().iter().map(entry).collect::<Vec<_>>()}))
}

pub(super) async fn ps(State(state): State<ServerState>) -> Json<Value> {
    let entry = |model: &ModelStatus| {
        let limits = limits(model)?;
        let ranks = model.engine_status().ranks;
        let facts = ranks.iter().filter_map(|rank| rank.facts.as_ref());
        let (size, size_vram) = facts.fold((0, 0), |(all, of_gpus), facts| {
            let of_gpu = if facts.device == "cpu" { 0 } else { facts.weights_bytes };
            (all + facts.weights_bytes, of_gpus + of_gpu)
        });
        let never = UNIX_EPOCH + Duration::from_secs(NEVER);
        let expires_at = model.expires_in.map_or(never, |left| SystemTime::now() + left);
        Some(json!({
            "name": full_name(&model.id),
            "model": full_name(&model.id),
            "size": size,
            "digest": digest(model),
            "details": Details::of(model),
            "expires_at": rfc3339(expires_at),
            "size_vram": size_vram,
            "context_length": limits.context_tokens,
        }))
    };
    Json(json!({"models": state.models().list().iter().filter_map(entry).collect::<Vec<_>>()}))
}

pub(super) async fn version() -> Json<Value> {
    Json(json!({"version": VERSION}))
}

pub(super) async fn show(
    State(state): State<ServerState>,
    UnlabelledRequest(body): UnlabelledRequest,
) -> Result<Json<Value>, ApiError> {
    let named: Named = body.read()?;
    let model = &known(&state, named.name())?;
    let parameters = model.model.as_ref().map_or(String::new(), |model| {
        let defaults = &model.sampling_defaults;
        format!(
            "temperature {}\ntop_p {}\ntop_k {}\nmin_p {}\nrepeat_penalty {}",
            defaults.temperature,
            defaults.top_p,
            defaults.top_k,
            defaults.min_p,
            defaults.repetition_penalty
        )
    });
    Ok(Json(json!({
        "modelfile": format!("FROM {}", model.id),
        "parameters": parameters,
        "details": Details::of(model),
        "model_info": model_info(model),
        "capabilities": capabilities(model),
        "modified_at": modified_at(model),
    })))
}

/// The model's properties under names like those of GGUF.
fn model_info(model: &ModelStatus) -> Map<String, Value> {
    let mut info = Map::new();
    let limits = limits(model);
    let Some(details) = &model.details else { return info };
    let family = &details.family;
    info.insert("general.architecture".to_owned(), family.as_str().into());
    info.insert("general.basename".to_owned(), model.id.as_str().into());
    info.insert("general.parameter_count".to_owned(), details.num_parameters.into());
    info.insert(format!("{family}.embedding_length"), details.hidden_size.into());
    if let Some(limits) = limits {
        info.insert(format!("{family}.context_length"), limits.context_tokens.into());
        info.insert(format!("{family}.vocab_size"), limits.vocab_size.into());
    }
    info
}

pub(super) async fn delete(
    State(state): State<ServerState>,
    UnlabelledRequest(body): UnlabelledRequest,
) -> Result<StatusCode, ApiError> {
    let named: Named = body.read()?;
    let name = named.name().ok_or(ApiError::Missing { param: "model" })?;
    let id = known(&state, Some(name))?.id;
    let Some(puller) = state.puller() else {
        return Err(ApiError::not_supported(
            format!("deleting {id} while it is served"),
            format!("stop the server and run `jackalope models rm {id}`"),
        ));
    };
    match puller.remove(&id).await {
        Ok(()) => Ok(StatusCode::OK),
        Err(ModelRemoveError::Refused { reason }) => Err(ApiError::ModelKept { model: id, reason }),
        Err(ModelRemoveError::Failed { reason }) => Err(ApiError::Unavailable { reason }),
    }
}

/// The body of `POST /api/copy`.
#[derive(Deserialize, ToSchema)]
#[schema(as = OllamaCopy)]
pub(super) struct Copy {
    /// Id or alias of the model.
    source: Option<String>,
    /// New name of the model.
    destination: Option<String>,
}

pub(super) async fn copy(
    State(state): State<ServerState>,
    UnlabelledRequest(body): UnlabelledRequest,
) -> Result<Json<Value>, ApiError> {
    let copy: Copy = body.read()?;
    let source = copy.source.ok_or(ApiError::Missing { param: "source" })?;
    copy.destination.ok_or(ApiError::Missing { param: "destination" })?;
    known(&state, Some(&source))?;
    Err(ApiError::not_supported("destination", "models get their names when the server is started"))
}

pub(super) async fn unsupported(request: Request<Body>) -> ApiError {
    ApiError::not_supported(
        request.uri().path(),
        "models are brought to this machine by `jackalope pull`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_formatted_as_people_say_them() {
        for (count, expected) in [
            (0, "0"),
            (999, "999"),
            (3_210_000, "3.2M"),
            (8_030_261_248, "8.0B"),
            (1_026_000_000_000, "1.0T"),
        ] {
            assert_eq!(rounded(count), expected);
        }
    }
}
