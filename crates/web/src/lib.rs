//! What browsers show: the web page at `/` and its files, Swagger UI at `/docs`, the tables of the
//! API's documentation, and what pages show: the overview of the cluster, snapshots, statistics, keys,
//! the log, and the interface to a doctor.
//!
//! The page is built from `web/` (TypeScript) into `dist/`, which is committed and embedded here, so
//! that building the program needs no JavaScript tools. This crate knows no routes and no requests:
//! the server calls it.

mod activity;
mod cluster;
mod docs;
mod doctor;
mod files;
mod keys;
mod logs;
mod snapshot;
mod stats;
mod tables;

pub use activity::{Activity, SAMPLES_MAX};
pub use cluster::{heat_json, overview};
pub use docs::documentation;
pub use doctor::{ClusterDoctor, Diagnosis};
pub use files::{asset, page};
pub use keys::key_list;
pub use logs::log_lines;
pub use snapshot::snapshot;
pub use stats::request_stats;
pub use tables::tables;
