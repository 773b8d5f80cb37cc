//! LocalAI's calls against a server over ranks without a model, compared with what HTTP answers.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod calls;
mod half_closed;
#[path = "../../../server/tests/it/house.rs"]
#[allow(dead_code, reason = "the server's tests use more of it")]
mod house;
#[path = "../../../server/tests/it/model.rs"]
#[allow(dead_code, reason = "the server's tests use more of it")]
mod model;
mod opening;
#[path = "../../../server/tests/it/support.rs"]
#[allow(dead_code, reason = "the server's tests use more of it")]
mod support;
mod wire;
