//! The server over ranks without a model: everything a client can see, without a device.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod answers;
mod bad_input;
mod choices;
mod failures;
mod health;
mod model;
mod models;
mod sockets;
mod streams;
mod support;
