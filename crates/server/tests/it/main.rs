//! The server over ranks without a model: everything a client can see, without a device.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod answers;
mod anthropic;
mod anthropic_input;
mod bad_input;
mod choices;
mod copies;
mod cut_calls;
mod embeddings;
mod extras;
mod failures;
mod health;
mod house;
mod keys;
mod manners;
mod model;
mod models;
mod monitor;
mod ollama;
mod ollama_input;
mod origins;
mod reports;
mod responses;
mod slow_bodies;
mod sockets;
mod stops;
mod streams;
mod structures;
mod support;
mod tls;
mod tokenize;
