//! Bounds the counts of nested quantifiers, because a pattern like `((a{1,1000}){1,1000}){1,1000}`
//! is compiled at once, but cannot be followed.

use regex_syntax::hir::{Hir, HirKind, Repetition};

/// Maximum product of the counts of nested quantifiers.
const COUNTED_MAX: u64 = 20_000;

/// Returns the product of the counts of a quantifier and of those inside what it repeats, or the
/// reason why it is too large.
pub(super) fn nested(inner: u64, times: u64) -> Result<u64, String> {
    let product = inner.saturating_mul(times);
    if 1 < inner && 1 < times && COUNTED_MAX < product {
        return Err(format!(
            "its nested quantifiers count up to {product}, more than {COUNTED_MAX}\n\
             hint: use * or + instead of large counts inside of counted groups"
        ));
    }
    Ok(product)
}

/// Checks the nested quantifiers of a regular expression in Rust's dialect. A malformed one is refused
/// when it is compiled.
pub(super) fn check(regex: &str) -> Result<(), String> {
    regex_syntax::parse(regex).map_or(Ok(()), |regex| counted(&regex).map(drop))
}

/// Returns the largest product of nested counts. The parser bounds the recursion.
fn counted(regex: &Hir) -> Result<u64, String> {
    match regex.kind() {
        HirKind::Repetition(Repetition { min, max, sub, .. }) => {
            nested(counted(sub)?, max.unwrap_or(*min).max(1).into())
        }
        HirKind::Capture(group) => counted(&group.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => {
            parts.iter().try_fold(1, |largest, part| Ok(counted(part)?.max(largest)))
        }
        HirKind::Empty | HirKind::Literal(_) | HirKind::Class(_) | HirKind::Look(_) => Ok(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_of_nested_quantifiers_are_multiplied() {
        for accepted in [
            "a{1,100000}",
            "(a{1,100}){1,100}",
            "(a{300}|b{300})c{300}",
            r"(\x{4000}{2}){30}",
            r"([{]{2}[]{9}]{9}){100}",
            "((a{1,1000})*)+",
            "(a{1000,}){2,",
        ] {
            assert_eq!(check(accepted), Ok(()), "{accepted}");
        }
        for refused in [
            "(((([a-z]{1,1000}){1,1000}){1,1000}){1,1000})",
            "(?:(?:a{1000})*b){1000}",
            "((a{200})?|b){200,}",
            r"(\(a{200}[)]){200}",
        ] {
            assert!(check(refused).unwrap_err().contains("nested quantifiers"), "{refused}");
        }
    }
}
