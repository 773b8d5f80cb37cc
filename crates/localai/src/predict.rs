//! `Predict` and `PredictStream`.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::Response;
use jackalope_server::chat_conversation;
use jackalope_serving::body::JsonBody;
use jackalope_serving::error::ApiError;
use jackalope_serving::generate::{
    Answer, Continuation, Conversation, GenerateRequest, Job, Prompt, SamplingParams,
    check_top_logprobs,
};
use jackalope_serving::limits::ServerLimits;
use jackalope_serving::state::Serving;
use serde_json::{Map, Value, json};

use crate::format::ReplyFormat;
use crate::frames::{read, streamed};
use crate::messages::{Message, NAMES, PredictOptions};
use crate::options::LoadParams;
use crate::state::LocalAi;

/// Name of the prompt's field.
const PROMPT: &str = "prompt";

/// `Predict`: sends the answer as a whole.
pub(crate) async fn predict(
    State(state): State<LocalAi>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    respond(&state, request, false).await
}

/// `PredictStream`: streams the answer.
pub(crate) async fn predict_stream(
    State(state): State<LocalAi>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    respond(&state, request, true).await
}

async fn respond(
    state: &LocalAi,
    request: Request<Body>,
    is_stream: bool,
) -> Result<Response, ApiError> {
    let answered = async {
        let options: PredictOptions = read(request, state).await?;
        let place = state.open_stream()?;
        let (serving, params) = state.open_named(&options.model_identity).await?;
        let prepare = move |serving: &Serving| prepare(&options, &params, is_stream, serving);
        let (job, format) = serving.prepare(prepare).await?;
        let ending = format.ending();
        let response = Answer::start(job, format, &serving, place)?.respond().await?;
        Ok(if is_stream {
            streamed(response, ending, state.limits().write_timeout)
        } else {
            response
        })
    };
    answered.await.map_err(|err: ApiError| err.renamed(&NAMES))
}

/// Checks the request and prepares it for the engine.
fn prepare(
    options: &PredictOptions,
    params: &LoadParams,
    is_stream: bool,
    serving: &Serving,
) -> Result<(Job, ReplyFormat), ApiError> {
    check(options)?;
    let limits = serving.state().limits();
    let prompt = match options.prompt.is_empty() && options.use_tokenizer_template {
        true => Prompt::Conversation(conversation(options, limits)?),
        false if options.prompt.is_empty() => {
            return Err(ApiError::Needs {
                param: PROMPT,
                needs: "text, or UseTokenizerTemplate with Messages",
            });
        }
        false => Prompt::Continuation(Continuation::of(options.prompt.clone(), PROMPT)),
    };
    let mut request = GenerateRequest::new(prompt, sampling(options, params, limits)?);
    request.params.output.is_stream = is_stream;
    let job = request.job(serving)?;
    let format = ReplyFormat::new(&job, serving);
    Ok((job, format))
}

/// Refuses, by name, fields that would change the answer but are not supported. Options about
/// memory and threads, which are for other backends, are ignored.
fn check(options: &PredictOptions) -> Result<(), ApiError> {
    let is_on = |value: f32| value != 0.0 && value != 1.0;
    let media = "this model takes only text";
    let samplers = "use top_p, top_k or min_p";
    // LocalAI derives a grammar from tools that it also sends as they are; this server constrains
    // the answer to the tools themselves.
    let has_grammar = !options.grammar.is_empty() && options.tools.is_empty();
    let grammar = "grammars in llama.cpp's notation are not read; send tools, or ask Jackalope's own \
                   /v1 for a response_format";
    let table = [
        ("Images", !options.images.is_empty(), media),
        ("Videos", !options.videos.is_empty(), media),
        ("Audios", !options.audios.is_empty(), media),
        ("Grammar", has_grammar, grammar),
        ("Mirostat", options.mirostat != 0, samplers),
        ("TypicalP", is_on(options.typical_p), samplers),
        ("TailFreeSamplingZ", is_on(options.tail_free_sampling_z), samplers),
        ("NegativePrompt", !options.negative_prompt.is_empty(), "say it in the prompt"),
    ];
    match table.into_iter().find(|(_, is_set, _)| *is_set) {
        None => Ok(()),
        Some((param, _, hint)) => {
            Err(ApiError::NotSupported { param: param.to_owned(), hint: Some(hint.to_owned()) })
        }
    }
}

/// Reads the sampling parameters; the model's own options take precedence over the request's, as in
/// LocalAI's backend. Protobuf does not distinguish 0 from an absent field: 0 turns a parameter
/// off, except that a temperature of 0 means greedy sampling and a repetition penalty of 0 means
/// the model's default.
fn sampling(
    options: &PredictOptions,
    params: &LoadParams,
    limits: &ServerLimits,
) -> Result<SamplingParams, ApiError> {
    let unless_zero = |value: f32| (value != 0.0).then_some(f64::from(value));
    let above_zero = |value: i32| u32::try_from(value).ok().filter(|value| 0 < *value);
    let seed = (!matches!(options.seed, 0 | -1)).then_some(i64::from(options.seed) as u64);
    let stops = options.stop_prompts.iter().filter(|stop| !stop.is_empty()).cloned().collect();
    Ok(SamplingParams {
        max_tokens: params.max_tokens.or(above_zero(options.tokens)),
        temperature: params.temperature.or(Some(options.temperature.into())),
        top_p: params.top_p.or(unless_zero(options.top_p)).or(Some(1.0)),
        top_k: params.top_k.or(Some(options.top_k.into())),
        min_p: params.min_p.or(Some(options.min_p.into())),
        repetition_penalty: params.repetition_penalty.or(unless_zero(options.penalty)),
        repetition_context: above_zero(options.repeat),
        presence_penalty: params.presence_penalty.or(Some(options.presence_penalty.into())),
        frequency_penalty: params.frequency_penalty.or(Some(options.frequency_penalty.into())),
        logit_bias: logit_bias(&options.logit_bias)?,
        seed: params.seed.or(seed),
        stop: stops,
        stop_token_ids: params.stop_token.into_iter().collect(),
        ignore_eos: options.ignore_eos,
        logprobs: logprobs(options, limits)?,
        ..SamplingParams::default()
    })
}

/// Reads the log-probability fields; a count of 1 in `Logprobs` stands for a chat's `true`.
fn logprobs(options: &PredictOptions, limits: &ServerLimits) -> Result<Option<u8>, ApiError> {
    if options.logprobs <= 0 && options.top_logprobs <= 0 {
        return Ok(None);
    }
    let of_count = if options.logprobs == 1 { 0 } else { options.logprobs };
    let num_top = u32::try_from(of_count.max(options.top_logprobs)).unwrap_or(0);
    check_top_logprobs("top_logprobs", num_top, limits).map(Some)
}

fn logit_bias(text: &str) -> Result<BTreeMap<String, f64>, ApiError> {
    if text.is_empty() { Ok(BTreeMap::new()) } else { json_field("LogitBias", text) }
}

/// Parses JSON in a text field.
fn json_field<T: serde::de::DeserializeOwned>(param: &str, text: &str) -> Result<T, ApiError> {
    let reason = |err: serde_json::Error| ApiError::WrongType {
        param: param.to_owned(),
        reason: err.to_string(),
    };
    serde_json::from_str(text).map_err(reason)
}

/// Builds the conversation of a request by way of OpenAI's chat format, whose checks apply here
/// too.
pub(crate) fn conversation(
    options: &PredictOptions,
    limits: &ServerLimits,
) -> Result<Conversation, ApiError> {
    let mut body = Map::new();
    let read = |(idx, message)| read_message(idx, message);
    let messages: Vec<Value> =
        options.messages.iter().enumerate().map(read).collect::<Result<_, _>>()?;
    body.insert("messages".to_owned(), messages.into());
    if !options.tools.is_empty() {
        body.insert("tools".to_owned(), json_field("Tools", &options.tools)?);
        if !options.tool_choice.is_empty() {
            // A word comes with or without quotes.
            let choice = serde_json::from_str(&options.tool_choice);
            let choice = choice.unwrap_or_else(|_| Value::from(options.tool_choice.as_str()));
            body.insert("tool_choice".to_owned(), choice);
        }
    }
    let metadata = |name: &str| options.metadata.get(name).filter(|text| !text.is_empty());
    if let Some(kwargs) = metadata("chat_template_kwargs") {
        let kwargs: Value = json_field("Metadata.chat_template_kwargs", kwargs)?;
        body.insert("chat_template_kwargs".to_owned(), kwargs);
    }
    if let Some(text) = metadata("enable_thinking") {
        let is_on = text.eq_ignore_ascii_case("true");
        body.insert("enable_thinking".to_owned(), is_on.into());
    }
    if let Some(effort) = metadata("reasoning_effort") {
        body.insert("reasoning_effort".to_owned(), effort.as_str().into());
    }
    chat_conversation(JsonBody::of(body), limits)
}

fn read_message(message_idx: usize, message: &Message) -> Result<Value, ApiError> {
    let mut read = Map::new();
    read.insert("role".to_owned(), message.role.as_str().into());
    read.insert("content".to_owned(), message.content.as_str().into());
    for (field, text) in [
        ("name", &message.name),
        ("tool_call_id", &message.tool_call_id),
        ("reasoning_content", &message.reasoning_content),
    ] {
        if !text.is_empty() {
            read.insert(field.to_owned(), text.as_str().into());
        }
    }
    if !message.tool_calls.is_empty() {
        let param = format!("Messages[{message_idx}].tool_calls");
        let calls: Value = json_field(&param, &message.tool_calls)?;
        if calls.as_array().is_some_and(|calls| !calls.is_empty()) {
            read.insert("tool_calls".to_owned(), calls);
        }
    }
    Ok(json!(read))
}
