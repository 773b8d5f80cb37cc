//! Bounds the counts of nested quantifiers, because a pattern like `((a{1,1000}){1,1000}){1,1000}`
//! is compiled at once, but cannot be followed.

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

/// Checks the nested quantifiers of a regular expression in Rust's dialect.
pub(super) fn check(regex: &str) -> Result<(), String> {
    let bytes = regex.as_bytes();
    // The largest product in each open group, in the current one, and of the last atom.
    let (mut open, mut current, mut last) = (Vec::new(), 1, 1);
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let rest = &bytes[at..];
        at += 1;
        match byte {
            b'\\' => at += escape_len(rest) - 1,
            b'[' => at += class_len(rest) - 1,
            b'(' => open.push(std::mem::replace(&mut current, 1)),
            b')' => {
                last = current;
                current = last.max(open.pop().unwrap_or(1));
                continue;
            }
            b'{' => {
                last = nested(last, times(rest).unwrap_or(1).max(1))?;
                current = current.max(last);
                continue;
            }
            b'*' | b'+' | b'?' => continue,
            _ => {}
        }
        last = 1;
    }
    Ok(())
}

/// Returns the maximum of a quantifier that begins with a brace, or its minimum if it has no
/// maximum.
fn times(rest: &[u8]) -> Option<u64> {
    let len = rest.iter().position(|it| *it == b'}')?;
    let counts = std::str::from_utf8(&rest[1..len]).ok()?;
    let (least, most) = counts.split_once(',').unwrap_or((counts, counts));
    most.trim().parse().or_else(|_| least.trim().parse()).ok()
}

/// Returns the length of an escape, such as `\n`, `\x{41}` or `\p{Greek}`.
fn escape_len(rest: &[u8]) -> usize {
    let end = rest.iter().position(|it| *it == b'}');
    match rest {
        [_, b'x' | b'u' | b'U' | b'p' | b'P', b'{', ..] => end.map_or(rest.len(), |it| it + 1),
        _ => 2,
    }
}

/// Returns the length of a class with those nested in it.
fn class_len(rest: &[u8]) -> usize {
    let (mut at, mut depth) = (0, 0);
    while let Some(byte) = rest.get(at) {
        match byte {
            b'\\' => at += 1,
            b'[' => {
                depth += 1;
                at += usize::from(rest.get(at + 1) == Some(&b'^'));
                // At the start of a class, a closing bracket stands for itself.
                at += usize::from(rest.get(at + 1) == Some(&b']'));
            }
            b']' if depth == 1 => return at + 1,
            b']' => depth -= 1,
            _ => {}
        }
        at += 1;
    }
    rest.len()
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
