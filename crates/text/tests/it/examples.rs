//! Recorded answers of every family, with the segments that a parser must find in them.

mod first;
mod own;

use std::sync::LazyLock;

/// An answer of a family, and its segments: reasoning format, tool format, answer, segments.
pub(crate) type Example = (&'static str, &'static str, &'static str, &'static [&'static str]);

pub(crate) const OSLO: &str = "call weather {\"city\": \"Oslo\", \"days\": 3}";

/// All examples; every tool format has at least one.
pub(crate) static EXAMPLES: LazyLock<Vec<Example>> =
    LazyLock::new(|| [first::EXAMPLES, own::EXAMPLES].concat());
