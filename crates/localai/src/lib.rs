//! LocalAI's gRPC service `backend.Backend`, as far as it applies to text models, and the ranks of
//! the models that LocalAI names.
//!
//! A call is an HTTP/2 request to `/backend.Backend/NAME`, so it passes the same keys, limits and
//! leases as every request of [`jackalope_server`], and its answer is generated in the same way.
//! Only [`frames`] knows the framing of a message, and only [`messages`] its fields. All other calls
//! are answered as unimplemented, as gRPC specifies.
//!
//! ```text
//!  LoadModel ─▶ options ─▶ a model of the server's, or one that a ModelOpener brings ─▶ loads
//!  Predict, PredictStream ─▶ loads (which model) ─▶ Conversation, or a prompt as it is ─▶ ReplyFormat
//! ```
//!
//! A backend that LocalAI starts ([`RunningBackend`]) has no model until `LoadModel` names one;
//! [`run_rank`] runs the other ranks.

mod backend;
mod cluster;
mod error;
mod format;
mod frames;
mod loads;
mod messages;
mod model;
mod opener;
mod options;
mod ordered_models;
mod predict;
mod rank_loop;
mod service;
mod state;
mod tokens;

pub use backend::{RunningBackend, start};
pub use cluster::{WorkerConfig, parse_backend};
pub use error::LocalAiError;
pub use opener::{ModelOpener, ModelOrder};
pub use rank_loop::run_rank;
pub use service::{router, serve};
pub use state::LocalAi;
