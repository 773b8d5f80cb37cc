//! `keep_alive`: how long a model stays loaded.

use std::fmt;
use std::time::Duration;

use axum::response::Response;
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

use super::format::{self, Shape};
use super::names::{known, open};
use super::request::Shared;
use crate::state::ServerState;
use jackalope_serving::error::ApiError;
use jackalope_serving::models::Kept;
use jackalope_serving::state::Serving;

/// Units of a duration, in seconds.
const UNITS: [(&str, f64); 8] = [
    ("ns", 1e-9),
    ("us", 1e-6),
    ("µs", 1e-6),
    ("μs", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
];

/// Time that a model stays loaded after a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum KeepAlive {
    /// As long as the server runs.
    Forever,
    For(Duration),
}

impl KeepAlive {
    fn of_seconds(seconds: f64) -> Option<KeepAlive> {
        if seconds < 0.0 {
            return Some(KeepAlive::Forever);
        }
        Duration::try_from_secs_f64(seconds).ok().map(KeepAlive::For)
    }

    /// Parses a number of seconds, or numbers with units as in `1h30m`.
    fn parse(text: &str) -> Option<KeepAlive> {
        if let Ok(seconds) = text.parse() {
            return KeepAlive::of_seconds(seconds);
        }
        let (sign, mut rest) = match text.strip_prefix('-') {
            Some(rest) => (-1.0, rest),
            None => (1.0, text.strip_prefix('+').unwrap_or(text)),
        };
        let mut seconds = 0.0;
        loop {
            let is_digit = |c: char| c.is_ascii_digit() || c == '.';
            let end = rest.find(|c| !is_digit(c))?;
            let number: f64 = rest[..end].parse().ok()?;
            let units = UNITS.iter().filter_map(|(unit, scale)| {
                rest[end..].strip_prefix(unit).map(|rest| (rest, scale))
            });
            let at_border = |(rest, _): &(&str, _)| rest.is_empty() || rest.starts_with(is_digit);
            let (after, scale) = units.into_iter().find(at_border)?;
            seconds += number * scale;
            if after.is_empty() {
                return KeepAlive::of_seconds(sign * seconds);
            }
            rest = after;
        }
    }

    /// Returns whether the model is to be unloaded at once.
    fn is_over(self) -> bool {
        self == KeepAlive::For(Duration::ZERO)
    }
}

impl<'de> Deserialize<'de> for KeepAlive {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<KeepAlive, D::Error> {
        struct KeepAliveVisitor;
        impl Visitor<'_> for KeepAliveVisitor {
            type Value = KeepAlive;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of seconds or a duration like 5m")
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<KeepAlive, E> {
                let kept = KeepAlive::of_seconds(value);
                kept.ok_or_else(|| E::invalid_value(de::Unexpected::Float(value), &self))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<KeepAlive, E> {
                self.visit_f64(value as f64)
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<KeepAlive, E> {
                self.visit_f64(value as f64)
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<KeepAlive, E> {
                let kept = KeepAlive::parse(value);
                kept.ok_or_else(|| E::invalid_value(de::Unexpected::Str(value), &self))
            }
        }
        deserializer.deserialize_any(KeepAliveVisitor)
    }
}

/// Sets how long a model stays loaded, if the request says so.
pub(super) fn keep(serving: &Serving, keep_alive: Option<KeepAlive>) {
    let Some(keep_alive) = keep_alive else { return };
    let time = match keep_alive {
        KeepAlive::For(time) => Some(time),
        KeepAlive::Forever => None,
    };
    serving.state().models().keep_alive(serving.id(), time);
}

/// Unloads a model if requests may do so and it is not pinned. Returns its id.
async fn unload(state: &ServerState, name: Option<&str>) -> Result<String, ApiError> {
    let known = known(state, name)?;
    if state.models().may_expire() && !known.is_pinned {
        let unloaded = state.models().unload(&known.id, Duration::ZERO).await;
        if let Err(Kept::InUse(_)) = unloaded {
            // The model is unloaded as soon as the requests in progress have ended.
            state.models().keep_alive(&known.id, Some(Duration::ZERO));
        }
    }
    Ok(known.id)
}

/// Loads or unloads a model for a request without a prompt.
pub(super) async fn answer_nothing(
    state: &ServerState,
    name: Option<&str>,
    shape: Shape,
    shared: &Shared,
) -> Result<Response, ApiError> {
    if shared.keep_alive.is_some_and(KeepAlive::is_over) {
        let id = unload(state, name).await?;
        return Ok(format::nothing(shape, shared, &id, "unload"));
    }
    let serving = open(state, name).await?;
    keep(&serving, shared.keep_alive);
    Ok(format::nothing(shape, shared, serving.id(), "load"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_writes_them() {
        let seconds = |seconds| Some(KeepAlive::For(Duration::from_secs_f64(seconds)));
        for (text, expected) in [
            ("5m", seconds(300.0)),
            ("1h30m", seconds(5400.0)),
            ("1.5h", seconds(5400.0)),
            ("1m500ms", seconds(60.5)),
            ("10us", seconds(1e-5)),
            ("0", seconds(0.0)),
            ("0s", seconds(0.0)),
            ("300", seconds(300.0)),
            ("-1", Some(KeepAlive::Forever)),
            ("-1m", Some(KeepAlive::Forever)),
            ("", None),
            ("m", None),
            ("5", seconds(5.0)),
            ("5 m", None),
            ("5mm", None),
            ("1h30", None),
            ("soon", None),
            ("1e400", None),
            ("NaN", None),
        ] {
            assert_eq!(KeepAlive::parse(text), expected, "{text:?}");
        }
    }
}
