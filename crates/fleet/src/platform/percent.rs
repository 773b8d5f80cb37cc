//! Percentages, as programs of the system print them.

/// Parses a percentage; `None` for other words and for numbers above 100.
pub(super) fn percent(text: &str) -> Option<u8> {
    text.trim().parse().ok().filter(|it| *it <= 100)
}
