//! Numbers with their nouns, in messages for people.

use std::fmt;

/// Returns the number and its noun, in the plural unless the number is 1: `1 rank`, `2 ranks`, `2 entries`, `2 addresses`.
pub fn counted(number: impl fmt::Display, noun: &str) -> String {
    let number = number.to_string();
    if number == "1" {
        return format!("1 {noun}");
    }
    if let Some(stem) = noun.strip_suffix('y')
        && !stem.ends_with(['a', 'e', 'o', 'u'])
    {
        return format!("{number} {stem}ies");
    }
    let ending =
        if ["s", "x", "ch", "sh"].iter().any(|it| noun.ends_with(it)) { "es" } else { "s" };
    format!("{number} {noun}{ending}")
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

    #[test]
    fn plurals_follow_the_spelling_of_the_noun() {
        assert_eq!(counted(2, "entry"), "2 entries");
        assert_eq!(counted(1, "entry"), "1 entry");
        assert_eq!(counted(2, "array"), "2 arrays");
        assert_eq!(counted(3, "address"), "3 addresses");
        assert_eq!(counted(3, "batch"), "3 batches");
    }
}
