//! `keep_alive`: how long a model stays loaded.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

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

    /// Returns whether the model should be unloaded immediately.
    pub(super) fn is_over(self) -> bool {
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
