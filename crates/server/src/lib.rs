//! The HTTP server: the APIs of OpenAI, Anthropic and Ollama, and the server's own health and
//! metrics.
//!
//! The server converts requests to [`jackalope_engine::Request`]s and events to answers. It does
//! not know what is computed when, and on which machine. Its only state is the open requests, the
//! loaded models (`models.rs`), caches, and records of requests that have ended.
//!
//! ```text
//!  socket ─▶ serve ─▶ requests (id, span, key) ─▶ openai, anthropic, ollama ─▶ generate ─▶ engine
//!             (tls)       │                    ├─▶ health                          │
//!                         │                    └─▶ monitor, metrics                │
//!                         └──counts──▶ journal ◀──────one record per answer────────┘
//! ```
//!
//! - When a client disconnects, its handler or its stream is dropped, and with it the
//!   [`Generation`](jackalope_engine::Generation), which cancels the request on every rank.
//! - Everything that a client can delay or accumulate has a limit in [`ServerLimits`].
//! - Every error has the form of the API in use, which is applied in one place (`error.rs`).
//! - Prompts and answers are never logged.
//! - Pages of other sites cannot read answers, unless their origins are explicitly allowed.

mod administration;
mod anthropic;
mod connections;
mod copies;
mod dialect;
mod extract;
mod half_close;
mod health;
mod model_control;
mod monitor;
mod ollama;
mod openai;
mod openapi;
mod pace;
mod requests;
mod route;
mod routes;
mod serve;
mod state;
mod tail;
mod tls;
mod wire;

pub use jackalope_serving::auth::{ApiKeys, KeyFileError};
pub use jackalope_serving::jobs::{
    Copier, CopyFuture, CopyProgress, MachineHolding, MachineProgress, ModelHoldings,
};
pub use jackalope_serving::journal::{
    RequestLog, RequestLogError, SpanExporter, SpanExporterError,
};
pub use jackalope_serving::limits::ServerLimits;
pub use jackalope_serving::model::{ModelDetails, RunningModel};
pub use jackalope_serving::models::{
    KeptBecause, KnownModel, LoadFuture, MachineBytes, ModelLoadError, ModelLoader, Models,
    ModelsConfig, ShutdownMode, StartedModel,
};
pub use jackalope_serving::origin::{AllowedHosts, AllowedOrigins};
pub use jackalope_serving::puller::{ModelRemoveError, PullProgress, Puller, RemoveFuture};
pub use jackalope_web::{ClusterDoctor, Diagnosis};
pub use openai::chat::chat_conversation;
pub use openai::logprobs::ChatLogprobs;
pub use requests::{RenderError, admitted};
pub use routes::{api_document, api_tables, router};
pub use serve::{serve, serve_http2};
pub use state::{Reporting, ServerConfig, ServerState};
pub use tls::{Tls, TlsError};
