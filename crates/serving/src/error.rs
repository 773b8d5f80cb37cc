//! All errors that clients can receive. Each holds what was found; status, type, code and parameter
//! follow from it ([`ErrorFacts`]), and each protocol writes them in its own form.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use axum::http::header::{ALLOW, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use jackalope_engine::{ConstraintFault, Event, Failure, Rejected, SubmitError};
use jackalope_protocol::{TokenId, counted};
use jackalope_text::TextError;
use jackalope_text::grammar::GrammarError;
use thiserror::Error;

use crate::auth::KeyEditError;
use crate::models::loader::LoadFailure;

/// Time to retry after, when the ranks have failed.
const RETRY_RANKS_AFTER: Duration = Duration::from_secs(5);

/// Time to retry after, when other programs have taken the memory.
const RETRY_MEMORY_AFTER: Duration = Duration::from_secs(10);

const FORGOTTEN: &str = "hint: responses are kept in memory, the latest ones only, unless store is \
                         false; send the whole conversation as input";

/// Part of a hint: how to give a model another name.
pub const ALIAS: &str = "its option `--alias NAME=MODEL` adds names";

/// Reason why a request is refused or fails.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the messages say what each variant and its fields mean")]
pub enum ApiError {
    // Errors in the bytes of the body.
    #[error("the body is too large: {}at most {limit_bytes} bytes are read", found_bytes.map_or(String::new(), |found| format!("{found} bytes were announced, ")))]
    BodyTooLarge { limit_bytes: usize, found_bytes: Option<u64> },
    #[error("the body did not arrive within {}", counted(timeout.as_secs(), "second"))]
    BodyLate { timeout: Duration },
    #[error("the body broke off: {reason}")]
    BodyCut { reason: String },
    #[error(
        "the content type is {}, but must be application/json\n\
         hint: with curl, add -H 'content-type: application/json'",
        found.as_deref().unwrap_or("missing")
    )]
    NotJson { found: Option<String> },
    #[error(
        "the body has the content encoding {found}, which is not supported\n\
         hint: send the body uncompressed"
    )]
    Encoded { found: String },
    #[error("an HTTP/1.1 request must have exactly one Host header; this one has {found}")]
    HostHeaders { found: usize },
    #[error("the body is not UTF-8 text: the byte at offset {offset} does not belong there")]
    NotUtf8 { offset: usize },
    #[error("the body is not JSON: {reason} at line {line}, column {column}")]
    BrokenJson { reason: String, line: usize, column: usize },

    // Errors in the fields of the body.
    #[error("{param}: {reason}")]
    WrongType { param: String, reason: String },
    #[error("{param} is required")]
    Missing { param: &'static str },
    #[error("{param} must not be empty")]
    Empty { param: String },
    #[error("{param} is {found}, but must be {expected}")]
    OutOfRange { param: String, found: String, expected: String },
    #[error("{param} has {found} entries, more than the {limit} that are accepted")]
    TooMany { param: &'static str, found: usize, limit: usize },
    #[error("{param} is not supported{}", hint_line(hint))]
    NotSupported { param: String, hint: Option<String> },
    #[error("{param} needs {needs}")]
    Needs { param: &'static str, needs: &'static str },
    #[error("{param}: token {token} is outside the vocabulary of {vocab_size} tokens")]
    UnknownToken { param: &'static str, token: TokenId, vocab_size: u32 },
    #[error(
        "the prompt is too long: {} > {context_tokens} maximum; the model's maximum context length is \
         {context_tokens} tokens, answer included\n\
         hint: send a shorter prompt, or serve the model with a longer --context",
        counted(prompt_tokens, "token")
    )]
    ContextLength { param: &'static str, prompt_tokens: usize, context_tokens: u32 },
    #[error(
        "the prompt is too long: at least {} > {limit_tokens} maximum; the model's maximum context length is \
         {limit_tokens} tokens, and the prompt has {}\n\
         hint: send a shorter prompt",
        counted(fewest_tokens, "token"),
        counted(prompt_bytes, "byte")
    )]
    PromptBytes {
        param: &'static str,
        prompt_bytes: usize,
        fewest_tokens: usize,
        limit_tokens: u32,
    },
    #[error(
        "the prompt is too long: {} > {limit_tokens} maximum, the limit of this server\n\
         hint: send a shorter prompt",
        counted(prompt_tokens, "token")
    )]
    PromptLimit { param: &'static str, prompt_tokens: usize, limit_tokens: u32 },
    #[error(
        "prompt and answer may come to {}, but the memory for keys and values holds \
         {capacity_tokens} ({})\n\
         hint: send a shorter prompt or a smaller max_tokens, or free memory on the ranks",
        counted(needed_tokens, "token"),
        counted(budget_bytes, "byte")
    )]
    NeverFits { param: &'static str, needed_tokens: u64, capacity_tokens: u64, budget_bytes: u64 },
    #[error("{param}: {source}")]
    Structure { param: String, source: GrammarError },
    #[error("{source}")]
    Text { param: String, source: TextError },

    // Errors in the target of the request.
    #[error("the model {found} does not exist\nhint: this server serves {served}; {ALIAS}")]
    UnknownModel { found: String, served: String },
    #[error("the response {id} is not known\n{FORGOTTEN}")]
    UnknownResponse { id: String },
    #[error("previous_response_id: the response {id} is not known\n{FORGOTTEN}")]
    UnknownPreviousResponse { id: String },
    #[error("the model {model} is not loaded\nhint: POST /model/load loads it")]
    NotLoaded { model: String },
    #[error("the model {model} is {state}{}", progress(*loaded_bytes, failure.as_deref()))]
    ModelLoading {
        model: String,
        state: &'static str,
        /// Bytes of weights loaded so far, and in total.
        loaded_bytes: Option<(u64, u64)>,
        /// Why ranks are started again, if they are.
        failure: Option<String>,
        retry_after: Duration,
    },
    #[error("the model {model} could not be loaded: {why}")]
    NotLoadable { model: String, why: LoadFailure, retry_after: Duration },
    #[error(
        "the model {model} is in use by {}\nhint: try again later",
        counted(num_open, "request")
    )]
    ModelInUse { model: String, num_open: usize },
    #[error("the model {model} is not deleted: {reason}")]
    ModelKept { model: String, reason: String },
    #[error("models are not loaded or unloaded here\nhint: {hint}")]
    NoModelControl { hint: &'static str },
    #[error("{0}")]
    Keys(#[from] KeyEditError),
    #[error("{what} here\nhint: {hint}")]
    NotOffered { what: &'static str, hint: &'static str },
    #[error("there is no {what} {found}")]
    UnknownJob { what: &'static str, code: &'static str, found: String },
    #[error("the model {model} cannot be copied: {reason}")]
    NotCopied { model: String, reason: String },
    #[error("there is no {path} here")]
    UnknownPath { path: String },
    #[error("{path} does not take {method}, but {allowed}")]
    WrongMethod { method: String, path: String, allowed: String },
    #[error("{}\nhint: send the header authorization: Bearer <key>", if *missing { "an API key is needed" } else { "the API key is not valid" })]
    Unauthorized { missing: bool },
    #[error(
        "{path} is for administrators, and the key {name} is not one's\n\
         hint: use a key of --admin-key, or one with \"admin\": true in the file of keys"
    )]
    NotAdmin { path: String, name: String },
    #[error(
        "this server does not answer to the name {found}\n\
         hint: use localhost or an address, or start the server with --allow-host {found}"
    )]
    WrongHost { found: String },

    // Errors caused by the state of the server.
    #[error("the queue is full: {} waiting, the limit is {limit}", counted(queued, "request"))]
    QueueFull { queued: usize, limit: usize, retry_after: Duration },
    #[error("the key {name} has a limit of {limit} {what}, which is reached")]
    KeyLimit { name: String, limit: u32, what: &'static str, retry_after: Option<Duration> },
    #[error("the limit of {} is reached", counted(limit, "open request"))]
    TooManyStreams { limit: usize },
    #[error(
        "bodies that are arriving take all the {} of memory for them",
        counted(limit_bytes, "byte")
    )]
    BodyMemoryFull { limit_bytes: usize },
    #[error("{reason}")]
    Unavailable { reason: String },
    #[error("{reason}")]
    MemoryShort { reason: String },
    #[error(
        "rank {rank}{} failed while {phase}: {message}{}",
        host.as_ref().map(|host| format!(" on {host}")).unwrap_or_default(),
        last_words_line(last_words)
    )]
    RankFailed {
        rank: usize,
        host: Option<String>,
        phase: &'static str,
        message: String,
        last_words: String,
    },
    #[error("{}", Event::NOT_A_NUMBER)]
    NotANumber,
    #[error("{message}")]
    ConstraintFailed { message: String, fault: ConstraintFault },
    #[error("{message}")]
    Poisonous { message: String },
    #[error("the server is shutting down")]
    ShuttingDown,
    #[error("the request was not answered within {} s", .timeout.as_secs_f32())]
    TimedOut { timeout: Duration },
    #[error(
        "the engine did not answer within {} s: its thread is busy or hangs\n\
         hint: `jackalope status` says whether steps are completed; `jackalope restart` replaces a \
         server that hangs",
        .timeout.as_secs_f32()
    )]
    EngineSilent { timeout: Duration },
    #[error("internal error: {what}\nhint: this is a bug in the server; please report it")]
    Internal { what: String },
}

fn hint_line(hint: &Option<String>) -> String {
    hint.as_ref().map_or(String::new(), |hint| format!("\nhint: {hint}"))
}

fn progress(loaded_bytes: Option<(u64, u64)>, failure: Option<&str>) -> String {
    let loaded = |(done, total)| format!(": loaded {done} of {}", counted(total, "byte"));
    let failed = |failure| format!("\nthe last attempt failed: {failure}");
    loaded_bytes.map_or(String::new(), loaded) + &failure.map_or(String::new(), failed)
}

fn last_words_line(last_words: &str) -> String {
    match last_words.trim_end() {
        "" => String::new(),
        last_words => format!("\nlast words: {last_words}"),
    }
}

/// Maximum length of a word in a message, in characters.
const WORD_CHARS_MAX: usize = 200;

/// Cuts words that are longer than any reasonable name; they come from the client.
pub fn shortened(text: &str) -> String {
    let mut shortened = String::with_capacity(text.len());
    let mut num_in_word = 0;
    for c in text.chars() {
        num_in_word = if c.is_whitespace() { 0 } else { num_in_word + 1 };
        match num_in_word {
            ..=WORD_CHARS_MAX => shortened.push(c),
            num if num == WORD_CHARS_MAX + 1 => shortened.push('…'),
            _ => {}
        }
    }
    shortened
}

/// The machine-readable facts of an [`ApiError`].
#[derive(Debug)]
pub struct ErrorFacts<'a> {
    /// HTTP status of the response.
    pub status: StatusCode,
    /// Type of the error, in OpenAI's words.
    pub kind: &'static str,
    /// Code of the error, by which programs recognize it.
    pub code: &'static str,
    /// The request's field at fault.
    pub param: Option<&'a str>,
    /// Header that says what the client can do next.
    pub advice: Option<(HeaderName, HeaderValue)>,
}

impl<'a> ErrorFacts<'a> {
    fn new(status: StatusCode, kind: &'static str, code: &'static str) -> ErrorFacts<'a> {
        ErrorFacts { status, kind, code, param: None, advice: None }
    }

    /// Facts of an error that the client made.
    fn invalid(status: StatusCode, code: &'static str) -> ErrorFacts<'a> {
        ErrorFacts::new(status, "invalid_request_error", code)
    }

    /// Facts for a body with more bytes than the server reads.
    fn too_large(code: &'static str) -> ErrorFacts<'a> {
        ErrorFacts::invalid(StatusCode::PAYLOAD_TOO_LARGE, code)
    }

    /// Facts for a body whose media type or encoding is not supported.
    fn media(code: &'static str) -> ErrorFacts<'a> {
        ErrorFacts::invalid(StatusCode::UNSUPPORTED_MEDIA_TYPE, code)
    }

    /// Facts for an error in the field `param`.
    fn field(code: &'static str, param: &'a str) -> ErrorFacts<'a> {
        ErrorFacts { param: Some(param), ..ErrorFacts::invalid(StatusCode::BAD_REQUEST, code) }
    }

    /// Facts for keys that could not be created, changed or revoked.
    fn keys(err: &KeyEditError) -> ErrorFacts<'a> {
        match err {
            KeyEditError::NoFile => ErrorFacts::invalid(StatusCode::FORBIDDEN, "no_key_file"),
            KeyEditError::Unknown { .. } => {
                ErrorFacts::invalid(StatusCode::NOT_FOUND, "unknown_key")
            }
            KeyEditError::Refused { .. } => ErrorFacts::field("invalid_key", "name"),
            KeyEditError::Unwritten { .. } => ErrorFacts::internal("key_file_unwritten"),
        }
    }

    /// Facts of an error of the server or the model.
    fn internal(code: &'static str) -> ErrorFacts<'a> {
        ErrorFacts::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", code)
    }

    /// Facts for a request beyond a limit, which can be sent again after `retry_after`.
    fn limited(code: &'static str, retry_after: Duration) -> ErrorFacts<'a> {
        ErrorFacts::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", code)
            .advise(RETRY_AFTER, seconds(retry_after))
    }

    /// Facts for ranks that have failed and may recover.
    fn unavailable(code: &'static str) -> ErrorFacts<'a> {
        ErrorFacts::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", code)
            .advise(RETRY_AFTER, seconds(RETRY_RANKS_AFTER))
    }

    /// Facts for a structure that cannot be enforced, or could not be compiled now.
    fn structure(param: &'a str, source: &GrammarError) -> ErrorFacts<'a> {
        match source {
            GrammarError::Busy { .. } => ErrorFacts::unavailable("compilers_busy"),
            _ => ErrorFacts::field("invalid_schema", param),
        }
    }

    /// Facts for memory that other programs have taken and may free.
    fn memory_short() -> ErrorFacts<'a> {
        ErrorFacts::new(StatusCode::INSUFFICIENT_STORAGE, "server_error", "memory_pressure")
            .advise(RETRY_AFTER, seconds(RETRY_MEMORY_AFTER))
    }

    /// Facts for a model that is loading.
    fn loading(retry_after: Duration) -> ErrorFacts<'a> {
        ErrorFacts::new(StatusCode::SERVICE_UNAVAILABLE, "model_loading", "model_loading")
            .advise(RETRY_AFTER, seconds(retry_after))
    }

    /// Facts for a model that cannot be loaded, at present or at all.
    fn wrong_method(allowed: &str) -> ErrorFacts<'a> {
        ErrorFacts::invalid(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed")
            .advise(ALLOW, HeaderValue::from_str(allowed).expect("methods are ASCII"))
    }

    fn constraint(fault: ConstraintFault) -> ErrorFacts<'a> {
        let code = "structure_too_complex";
        match fault {
            ConstraintFault::Contradiction => {
                ErrorFacts::invalid(StatusCode::BAD_REQUEST, "contradictory_constraints")
            }
            ConstraintFault::TooSlow => ErrorFacts::invalid(StatusCode::BAD_REQUEST, code),
            ConstraintFault::Internal => ErrorFacts::internal(code),
        }
    }

    fn not_loadable(why: &LoadFailure, retry_after: Duration) -> ErrorFacts<'a> {
        let (status, code) = match why {
            LoadFailure::Failed(_) => (StatusCode::SERVICE_UNAVAILABLE, "model_load_failed"),
            LoadFailure::InTheWay { .. } => {
                (StatusCode::SERVICE_UNAVAILABLE, "model_memory_in_use")
            }
            LoadFailure::NeverFits(_) => (StatusCode::INSUFFICIENT_STORAGE, "insufficient_memory"),
        };
        ErrorFacts::new(status, "server_error", code).advise(RETRY_AFTER, seconds(retry_after))
    }

    fn advise(self, name: HeaderName, value: HeaderValue) -> ErrorFacts<'a> {
        ErrorFacts { advice: Some((name, value)), ..self }
    }
}

/// Formats a duration for `Retry-After`: whole seconds, at least one.
pub fn seconds(duration: Duration) -> HeaderValue {
    let whole = duration.as_millis().div_ceil(1000).max(1);
    HeaderValue::from(u64::try_from(whole).unwrap_or(u64::MAX))
}

impl ApiError {
    /// The error for a value of `param` that is not as `expected`.
    pub fn out_of_range(
        param: impl Into<String>,
        found: &dyn Display,
        expected: impl Into<String>,
    ) -> ApiError {
        ApiError::OutOfRange {
            param: param.into(),
            found: found.to_string(),
            expected: expected.into(),
        }
    }

    /// The error for `param`, which this server does not support.
    pub fn not_supported(param: impl Into<String>, hint: impl Into<String>) -> ApiError {
        ApiError::NotSupported { param: param.into(), hint: Some(hint.into()) }
    }

    /// Refuses the first parameter of `cases` that is set. A case has the name of an unsupported
    /// parameter, whether it is set, and a hint.
    ///
    /// # Errors
    /// [`ApiError::NotSupported`] with the name and the hint of that parameter.
    pub fn refuse_set(cases: &[(&str, bool, &str)]) -> Result<(), ApiError> {
        match cases.iter().find(|(_, is_set, _)| *is_set) {
            Some((param, _, hint)) => Err(ApiError::not_supported(*param, *hint)),
            None => Ok(()),
        }
    }

    /// The error for an object that lacks a field.
    pub fn missing_field(param: impl Into<String>, field: &str) -> ApiError {
        let reason = format!("missing field `{field}`");
        ApiError::WrongType { param: param.into(), reason }
    }

    /// Converts the engine's rejection of an invalid request. `prompt` is the name of the field
    /// that the prompt came from.
    pub fn from_rejected(rejected: &Rejected, prompt: &'static str) -> ApiError {
        let field = |parameter: &'static str| match parameter {
            "prompt" => prompt,
            "stop_tokens" => "stop_token_ids",
            "prompt_logprobs" => "logprobs",
            "allowed_tokens" => "allowed_token_ids",
            "banned_tokens" => "bad_words",
            parameter => parameter,
        };
        match *rejected {
            Rejected::EmptyPrompt => ApiError::Empty { param: prompt.to_owned() },
            Rejected::TooLong { prompt_tokens, context_tokens } => {
                ApiError::ContextLength { param: prompt, prompt_tokens, context_tokens }
            }
            Rejected::PromptOverLimit { prompt_tokens, max_prompt_tokens: limit_tokens } => {
                ApiError::PromptLimit { param: prompt, prompt_tokens, limit_tokens }
            }
            Rejected::UnknownToken { parameter, token, vocab_size } => {
                ApiError::UnknownToken { param: field(parameter), token, vocab_size }
            }
            Rejected::BadNumber { parameter, value, expected } => {
                ApiError::out_of_range(field(parameter), &value, expected)
            }
            Rejected::NothingAllowed { parameter } => ApiError::out_of_range(
                field(parameter),
                &"without a token to sample",
                "a list that leaves one",
            ),
            Rejected::TooMany { parameter, found, limit } => {
                ApiError::TooMany { param: field(parameter), found, limit }
            }
        }
    }

    /// Converts the engine's refusal to accept a request.
    pub fn from_submit(refused: SubmitError, prompt: &'static str) -> ApiError {
        match refused {
            SubmitError::QueueFull { queued, limit, retry_after } => {
                ApiError::QueueFull { queued, limit, retry_after }
            }
            SubmitError::Unavailable { reason } => ApiError::Unavailable { reason },
            SubmitError::MemoryShort { .. } => {
                ApiError::MemoryShort { reason: refused.to_string() }
            }
            SubmitError::NeverFits { needed_tokens, budget_bytes, capacity_tokens, .. } => {
                let param = prompt;
                ApiError::NeverFits { param, needed_tokens, capacity_tokens, budget_bytes }
            }
        }
    }

    /// Converts the failure of a request that the engine had accepted.
    pub fn from_failure(failure: Failure) -> ApiError {
        let Failure { rank, host, phase, message, last_words } = failure;
        match rank {
            Some(rank) => {
                ApiError::RankFailed { rank, host, phase: phase.name(), message, last_words }
            }
            None => ApiError::Unavailable { reason: message },
        }
    }

    /// Converts an error of the text processing. `prompt` is the name of the field that the prompt
    /// came from.
    pub fn from_text(source: TextError, prompt: &'static str) -> ApiError {
        let param = match &source {
            TextError::NotAnObject { message_idx } => format!("messages[{message_idx}]"),
            TextError::Content { message_idx } => format!("messages[{message_idx}].content"),
            TextError::UnsupportedPart { message_idx, part_idx, .. } => {
                format!("messages[{message_idx}].content[{part_idx}]")
            }
            TextError::ReservedKwarg { name } => format!("chat_template_kwargs.{name}"),
            TextError::Encode { .. }
            | TextError::TooLong { .. }
            | TextError::NoTemplate
            | TextError::BrokenTemplate { .. }
            | TextError::NoMessages
            | TextError::Refused { .. }
            | TextError::Render { .. }
            | TextError::TooManySteps { .. }
            | TextError::PromptTooLarge { .. } => prompt.to_owned(),
        };
        ApiError::Text { param, source }
    }

    /// Renames the fields in the error for another protocol: `names` are pairs of the internal name
    /// and the protocol's own.
    pub fn renamed(mut self, names: &[(&str, &'static str)]) -> ApiError {
        use ApiError as E;
        match &mut self {
            E::WrongType { param, .. }
            | E::Empty { param }
            | E::OutOfRange { param, .. }
            | E::NotSupported { param, .. }
            | E::Text { param, .. } => {
                let is_end = |rest: &str| rest.is_empty() || rest.starts_with(['[', '.']);
                let renamed = names.iter().find_map(|(ours, theirs)| {
                    let rest = param.strip_prefix(ours).filter(|rest| is_end(rest))?;
                    Some(format!("{theirs}{rest}"))
                });
                *param = renamed.unwrap_or_else(|| std::mem::take(param));
            }
            E::Missing { param }
            | E::TooMany { param, .. }
            | E::Needs { param, .. }
            | E::UnknownToken { param, .. }
            | E::ContextLength { param, .. }
            | E::PromptLimit { param, .. }
            | E::PromptBytes { param, .. }
            | E::NeverFits { param, .. } => {
                let renamed = names.iter().find(|(ours, _)| ours == param);
                *param = renamed.map_or(*param, |(_, theirs)| theirs);
            }
            _ => {}
        }
        self
    }

    /// Status, type, code and parameter of the error.
    pub fn facts(&self) -> ErrorFacts<'_> {
        use ApiError as E;
        use ErrorFacts as F;
        match self {
            E::BodyTooLarge { .. } => F::too_large("body_too_large"),
            E::BodyLate { .. } => F::invalid(StatusCode::REQUEST_TIMEOUT, "body_late"),
            E::BodyCut { .. } => F::invalid(StatusCode::BAD_REQUEST, "body_cut"),
            E::NotJson { .. } => F::media("not_json"),
            E::Encoded { .. } => F::media("unsupported_encoding"),
            E::HostHeaders { .. } => F::invalid(StatusCode::BAD_REQUEST, "host_header"),
            E::NotUtf8 { .. } => F::invalid(StatusCode::BAD_REQUEST, "invalid_utf8"),
            E::BrokenJson { .. } => F::invalid(StatusCode::BAD_REQUEST, "invalid_json"),
            E::WrongType { param, .. } => F::field("invalid_type", param),
            E::Missing { param } => F::field("missing_required_parameter", param),
            E::Empty { param } => F::field("empty_value", param),
            E::OutOfRange { param, .. } => F::field("invalid_value", param),
            E::TooMany { param, .. } => F::field("too_many_entries", param),
            E::NotSupported { param, .. } => F::field("unsupported_parameter", param),
            E::Needs { param, .. } | E::UnknownToken { param, .. } => {
                F::field("invalid_value", param)
            }
            E::ContextLength { param, .. }
            | E::PromptLimit { param, .. }
            | E::PromptBytes { param, .. }
            | E::NeverFits { param, .. } => F::field("context_length_exceeded", param),
            E::Structure { param, source } => F::structure(param, source),
            E::Text { param, .. } => F::field("invalid_prompt", param),
            E::UnknownModel { .. } => {
                F { param: Some("model"), ..F::invalid(StatusCode::NOT_FOUND, "model_not_found") }
            }
            E::UnknownResponse { .. } => F::invalid(StatusCode::NOT_FOUND, "response_not_found"),
            E::UnknownPreviousResponse { .. } => {
                F::field("previous_response_not_found", "previous_response_id")
            }
            E::NotLoaded { .. } => {
                F { param: Some("model"), ..F::invalid(StatusCode::NOT_FOUND, "model_not_loaded") }
            }
            E::ModelLoading { retry_after, .. } => F::loading(*retry_after),
            E::NotLoadable { why, retry_after, .. } => F::not_loadable(why, *retry_after),
            E::ModelInUse { .. } => F::invalid(StatusCode::CONFLICT, "model_in_use"),
            E::ModelKept { .. } => F::invalid(StatusCode::BAD_REQUEST, "model_kept"),
            E::NoModelControl { .. } => F::invalid(StatusCode::FORBIDDEN, "no_model_control"),
            E::Keys(err) => F::keys(err),
            E::NotOffered { .. } => F::invalid(StatusCode::FORBIDDEN, "not_offered"),
            E::UnknownJob { code, .. } => F::invalid(StatusCode::NOT_FOUND, code),
            E::NotCopied { .. } => F::invalid(StatusCode::CONFLICT, "not_copied"),
            E::UnknownPath { .. } => F::invalid(StatusCode::NOT_FOUND, "unknown_path"),
            E::WrongMethod { allowed, .. } => F::wrong_method(allowed),
            E::Unauthorized { .. } => F::invalid(StatusCode::UNAUTHORIZED, "invalid_api_key")
                .advise(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")),
            E::NotAdmin { .. } => F::invalid(StatusCode::FORBIDDEN, "admin_key_needed"),
            E::WrongHost { .. } => F::invalid(StatusCode::MISDIRECTED_REQUEST, "wrong_host"),
            E::KeyLimit { retry_after, .. } => {
                F::limited("rate_limit_exceeded", retry_after.unwrap_or_default())
            }
            E::QueueFull { retry_after, .. } => F::limited("queue_full", *retry_after),
            E::TooManyStreams { .. } => F::limited("too_many_streams", Duration::ZERO),
            E::BodyMemoryFull { .. } => F::limited("too_many_bodies", Duration::ZERO),
            E::Unavailable { .. } => F::unavailable("unavailable"),
            E::MemoryShort { .. } => F::memory_short(),
            E::RankFailed { .. } => F::unavailable("rank_failed"),
            E::ShuttingDown => F::unavailable("shutting_down"),
            E::TimedOut { .. } => F::new(StatusCode::GATEWAY_TIMEOUT, "server_error", "timeout"),
            E::EngineSilent { .. } => F::unavailable("engine_silent"),
            E::NotANumber => F::internal("not_a_number"),
            E::Poisonous { .. } => F::internal("poisonous_request"),
            E::ConstraintFailed { fault, .. } => F::constraint(*fault),
            E::Internal { .. } => F::internal("internal_error"),
        }
    }

    /// The error message for people. Long words, which come from the client, are cut.
    pub fn message(&self) -> String {
        shortened(&self.to_string())
    }

    /// HTTP status of the response.
    pub fn status(&self) -> StatusCode {
        self.facts().status
    }

    /// Machine-readable code of the error.
    pub fn code(&self) -> &'static str {
        self.facts().code
    }

    /// Returns whether the time to retry after was measured where the error was created.
    pub fn has_measured_retry(&self) -> bool {
        matches!(
            self,
            ApiError::QueueFull { .. }
                | ApiError::MemoryShort { .. }
                | ApiError::KeyLimit { retry_after: Some(_), .. }
        )
    }
}

/// The error that a handler returned. Its form depends on the path, so it is set in the middleware
/// that all responses pass through.
#[derive(Clone, Debug)]
pub struct ResponseError(pub Arc<ApiError>);

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.facts().status.into_response();
        response.extensions_mut().insert(ResponseError(Arc::new(self)));
        response
    }
}
