//! The calls `Health`, `LoadModel`, `Free`, `Status` and `GetMetrics`.

use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::Response;
use jackalope_engine::EngineState;
use jackalope_protocol::Phase;
use jackalope_serving::error::ApiError;
use jackalope_serving::models::{ModelStatus, UnloadRefusal};
use jackalope_serving::state::{Serving, ServingState};

use crate::frames::{answer, read};
use crate::loads::Load;
use crate::messages::{
    BackendState, Empty, MemoryUsage, MetricsResponse, ModelOptions, Outcome, Reply, StatusResponse,
};
use crate::opener::{ModelOpener, ModelOrder};
use crate::options::{LoadOptions, LoadParams, Placement};
use crate::state::{LocalAi, NamedModel};

/// Time to wait until a model in use can be unloaded for another one.
const FREE_PATIENCE: Duration = Duration::from_secs(30);

/// `Health`: answers as soon as the server accepts calls; LocalAI calls it before it loads a model.
pub(crate) async fn health(
    State(state): State<LocalAi>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let Empty {} = read(request, &state).await?;
    Ok(answer(&Reply { message: b"OK".to_vec(), ..Reply::default() }))
}

/// `LoadModel`: reports errors in the answer's message, like LocalAI's own backends.
pub(crate) async fn load_model(
    State(state): State<LocalAi>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let options: ModelOptions = read(request, &state).await?;
    Ok(answer(&match load(&state, options).await {
        Ok(()) => Outcome { success: true, message: "Model loaded successfully".to_owned() },
        Err(err) => {
            let message = format!("Error loading model: {err}");
            Outcome { success: false, message }
        }
    }))
}

async fn load(state: &LocalAi, options: ModelOptions) -> Result<(), ApiError> {
    check(&options)?;
    let LoadOptions { placement, mut params, eos_token } = LoadOptions::read(&options.options)?;
    let _changing = state.loads().changing.lock().await;
    let (serving, order) = match state.opener() {
        None => (open_own(state, &options.model, &placement).await?, None),
        Some(opener) => {
            let order = order(&options, placement);
            (open_ordered(state, &**opener, &order).await?, Some(order))
        }
    };
    params.stop_at(eos_token.as_deref(), &serving.text.tokenizer)?;
    let (identity, id) = (options.model, serving.id.clone());
    state.loads().remember(Load { identity, id, params, order });
    Ok(())
}

fn check(options: &ModelOptions) -> Result<(), ApiError> {
    if options.model.is_empty() {
        return Err(ApiError::Empty { param: "model".to_owned() });
    }
    if !options.lora_adapter.is_empty() || !options.lora_adapters.is_empty() {
        let hint = Some("serve a checkpoint that the adapter is part of".to_owned());
        return Err(ApiError::NotSupported { param: "lora_adapter".to_owned(), hint });
    }
    Ok(())
}

fn order(options: &ModelOptions, placement: Placement) -> ModelOrder {
    let Placement { hostfile, backend, coordinator, context_tokens } = placement;
    let (model, file) = (options.model.clone(), options.model_file.clone());
    ModelOrder { model, file, hostfile, backend, coordinator, context_tokens }
}

/// Opens one of the server's own models, whose machines were chosen when the server was started.
async fn open_own(state: &LocalAi, name: &str, placement: &Placement) -> Result<Serving, ApiError> {
    if *placement != Placement::default() {
        let hint = "this server was started with its models, its machines and its context: leave \
                    hostfile, distributed_backend, coordinator and max_kv_size out";
        let param = "options".to_owned();
        return Err(ApiError::NotSupported { param, hint: Some(hint.to_owned()) });
    }
    state.open(Some(name)).await
}

/// Opens a model that `opener` brings. There is only one at a time, as in LocalAI, because ranks
/// belong to one model.
async fn open_ordered(
    state: &LocalAi,
    opener: &dyn ModelOpener,
    order: &ModelOrder,
) -> Result<Serving, ApiError> {
    let is_same = |load: &Load| load.order.as_ref() == Some(order);
    let id = match state.loads().find("").filter(is_same) {
        Some(load) => load.id,
        None => {
            free_all(state).await?;
            let id = opener.open(order).await.map_err(|err| ApiError::NotLoadable {
                model: order.model.clone(),
                why: err.into(),
                retry_after: Duration::from_secs(1),
            })?;
            // Remembered now, because the load may outlast this call.
            let (identity, order) = (order.model.clone(), Some(order.clone()));
            let params = LoadParams::default();
            state.loads().remember(Load { identity, id: id.clone(), params, order });
            id
        }
    };
    match state.models().load_and_open(&id, state.limits()).await {
        Ok((model, lease)) => Ok(Serving::new(ServingState::clone(state), model, lease)),
        Err(err @ ApiError::ModelLoading { .. }) => {
            let missing = missing_ranks(state, &id);
            let hint = || opener.missing(order, &missing);
            Err(if missing.is_empty() { err } else { without_ranks(&err, &hint(), &missing) })
        }
        Err(err) => {
            state.loads().forget(&order.model);
            Err(err)
        }
    }
}

/// The ranks of a model that people start, and that have not connected. Rank 0 runs here.
fn missing_ranks(state: &LocalAi, id: &str) -> Vec<usize> {
    let status = state.models().status(id).map(|it| it.engine_status()).unwrap_or_default();
    let ranks = status.ranks.iter().enumerate().skip(1);
    ranks.filter(|(_, rank)| rank.phase == Phase::Starting).map(|it| it.0).collect()
}

/// The error for a model that did not load in time because these ranks have not connected.
fn without_ranks(loading: &ApiError, hint: &str, missing: &[usize]) -> ApiError {
    let names: Vec<String> = missing.iter().map(|rank| format!("rank {rank}")).collect();
    let names = names.join(", ");
    ApiError::Unavailable { reason: format!("{loading}\nthere is no {names}\nhint: {hint}") }
}

/// `Free`: unloads the models brought for LocalAI; a server's own models stay.
pub(crate) async fn free(
    State(state): State<LocalAi>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let Empty {} = read(request, &state).await?;
    let _changing = state.loads().changing.lock().await;
    Ok(answer(&match free_all(&state).await {
        Ok(()) => Outcome { success: true, message: "MLX distributed model freed".to_owned() },
        Err(err) => Outcome { success: false, message: err.to_string() },
    }))
}

async fn free_all(state: &LocalAi) -> Result<(), ApiError> {
    for load in state.loads().take_all().into_iter().filter(|it| it.order.is_some()) {
        state.models().give_up(&load.id).await;
        match state.models().unload(&load.id, FREE_PATIENCE).await {
            Ok(())
            | Err(UnloadRefusal::Unknown | UnloadRefusal::NotLoaded | UnloadRefusal::Fixed) => {}
            Err(UnloadRefusal::InUse(num_open)) => {
                let model = load.id.clone();
                state.loads().remember(load);
                return Err(ApiError::ModelInUse { model, num_open });
            }
        }
    }
    Ok(())
}

/// `Status` of the model that was loaded last.
pub(crate) async fn status(
    State(state): State<LocalAi>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let Empty {} = read(request, &state).await?;
    let Some(model) = latest(&state) else {
        let uninitialized = BackendState::Uninitialized.into();
        return Ok(answer(&StatusResponse { state: uninitialized, memory: None }));
    };
    let engine = model.engine_status();
    let backend_state = match (&engine.state, engine.running + engine.queued) {
        (EngineState::Ready, 0) => BackendState::Ready,
        (EngineState::Ready | EngineState::Recovering { .. }, _) => BackendState::Busy,
        (EngineState::Starting, _) => BackendState::Uninitialized,
        (EngineState::Failed { .. } | EngineState::Stopping, _) => BackendState::Error,
    };
    let of_rank = |(rank, it): (usize, &jackalope_engine::RankStatus)| {
        (format!("rank {rank}"), it.memory.active_bytes)
    };
    let breakdown = engine.ranks.iter().enumerate().map(of_rank);
    let memory = MemoryUsage {
        total: engine.ranks.iter().map(|it| it.memory.active_bytes).sum(),
        breakdown: breakdown.collect(),
    };
    Ok(answer(&StatusResponse { state: backend_state.into(), memory: Some(memory) }))
}

/// `GetMetrics`: totals of the model that was loaded last.
pub(crate) async fn metrics(
    State(state): State<LocalAi>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let Empty {} = read(request, &state).await?;
    let model = latest(&state).ok_or(ApiError::NotLoaded { model: String::new() })?;
    let totals = state.journal().totals().models.remove(&model.id).unwrap_or_default();
    let seconds = totals.decode_seconds;
    let rate = if seconds > 0.0 { totals.completion_tokens as f64 / seconds } else { 0.0 };
    Ok(answer(&MetricsResponse {
        tokens_per_second: rate as f32,
        tokens_generated: i32::try_from(totals.completion_tokens).unwrap_or(i32::MAX),
        prompt_tokens_processed: i32::try_from(totals.prompt_tokens).unwrap_or(i32::MAX),
    }))
}

/// The model of calls that name none.
fn latest(state: &LocalAi) -> Option<ModelStatus> {
    let NamedModel { name, .. } = state.named("").ok()?;
    state.models().status(name.as_deref().unwrap_or("default"))
}
