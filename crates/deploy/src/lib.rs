//! Turns "serve this model on these machines" into running ranks and a server. A program can use it
//! without the command line: see `examples/two_ranks.rs`.
//!
//! ```text
//!   served_models, registry (which models) ─▶ loading (one cluster for each model that is loaded)
//!                                                └─▶ cluster: engine and ranks of one model
//!      models (where each machine reads it) ─▶──────┤
//!      split_constraints, machines::placer ─▶───────┤ who holds what
//!      machines (launchers: agents, by hand) ◀──────┤ starts ranks
//!      content (hashes), pressure (memory) ◀────────┘ watches
//! ```

pub mod agent;
pub mod cluster;
pub mod cluster_copier;
pub mod config;
mod content;
pub mod context;
mod diagnosis;
pub mod error;
mod expected_costs;
pub mod hub_puller;
pub mod loading;
pub mod log_file;
pub mod machines;
pub mod models;
mod pressure;
pub mod rank_process;
pub mod registry;
pub mod served;
pub mod served_models;
pub mod server;
pub mod server_record;
pub mod split_constraints;

pub use cluster::{Cluster, ClusterOptions};
pub use config::{HostsConfig, MemoryBudget, PortRange, RankConfig, ReachConfig};
pub use content::content_of_dir;
pub use context::{LocalContext, Observer};
pub use error::DeployError;
pub use server::{Deployment, RunningServer};
