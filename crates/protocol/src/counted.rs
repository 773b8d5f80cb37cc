//! Numbers with their nouns, in messages for people.

use std::fmt;

/// Formats a number with its noun, in the plural unless the number is 1.
pub fn counted(number: impl fmt::Display, noun: &str) -> String {
    let number = number.to_string();
    let plural = if number == "1" { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn one_is_singular() {
        assert_eq!(counted(0, "rank"), "0 ranks");
        assert_eq!(counted(1_u64, "rank"), "1 rank");
        assert_eq!(counted(21_usize, "prompt token"), "21 prompt tokens");
    }
}
