//! Parses `.env` files: `NAME=value` on lines, as shells and python-dotenv read them.
//!
//! Supports both kinds of quotes, also over several lines; `export`; comments; `${NAME}`,
//! `${NAME:-default}` and `$NAME` outside of single quotes.

use std::fmt;

/// A variable and the line it begins on, from 1.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Entry {
    pub(super) line: usize,
    pub(super) name: String,
    pub(super) value: String,
}

/// Error for a line that is not an assignment.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Malformed {
    line: usize,
    what: &'static str,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}\nhint: write NAME=value", self.line, self.what)
    }
}

/// Parses a file. `lookup` returns variables of the environment, which take precedence over those
/// defined above in the file.
pub(super) fn parse(
    text: &str,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<Entry>, Malformed> {
    let mut entries: Vec<Entry> = Vec::new();
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut rest = text;
    while !rest.is_empty() {
        let line = text[..text.len() - rest.len()].matches('\n').count() + 1;
        let malformed = |what| Malformed { line, what };
        let (head, behind) = rest.split_once('\n').unwrap_or((rest, ""));
        let trimmed = head.trim_start();
        if trimmed.trim_end().is_empty() || trimmed.starts_with('#') {
            rest = behind;
            continue;
        }
        let indent = head.len() - trimmed.len();
        let exported = trimmed.strip_prefix("export").filter(|it| it.starts_with([' ', '\t']));
        let start = exported.map_or(indent, |it| head.len() - it.trim_start().len());
        let equals = head[start..].find('=').ok_or(malformed("there is no `=`"))?;
        let name = head[start..start + equals].trim_end();
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if name.is_empty()
            || !name.chars().all(is_name)
            || name.starts_with(|c: char| c.is_ascii_digit())
        {
            return Err(malformed("the text before the `=` is no name of a variable"));
        }
        let known = |name: &str| {
            let above = entries.iter().rev().find(|it| it.name == name).map(|it| it.value.clone());
            lookup(name).or(above)
        };
        let (value, after) = value(&rest[start + equals + 1..], &known).map_err(malformed)?;
        rest = after;
        entries.push(Entry { line, name: name.to_owned(), value });
    }
    Ok(entries)
}

/// Parses a value. Returns it and the text after its line.
fn value<'a>(
    text: &'a str,
    known: &dyn Fn(&str) -> Option<String>,
) -> Result<(String, &'a str), &'static str> {
    let text = text.trim_start_matches([' ', '\t']);
    let quote = text.chars().next().filter(|it| ['"', '\''].contains(it));
    let Some(quote) = quote else {
        let (line, behind) = text.split_once('\n').unwrap_or((text, ""));
        // A `#` within a word is part of it.
        let comment = line
            .char_indices()
            .find(|&(at, c)| c == '#' && (at == 0 || line[..at].ends_with([' ', '\t'])));
        let bare = comment.map_or(line, |(at, _)| &line[..at]).trim();
        return Ok((expand(bare, known), behind));
    };
    let mut value = String::new();
    let mut chars = text.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        match c {
            c if c == quote => {
                let (tail, behind) =
                    text[at + 1..].split_once('\n').unwrap_or((&text[at + 1..], ""));
                let tail = tail.trim();
                if !tail.is_empty() && !tail.starts_with('#') {
                    return Err("something stands behind the closing quote");
                }
                let value = if quote == '"' { expand(&value, known) } else { value };
                return Ok((value.replace(ESCAPED_DOLLAR, "$"), behind));
            }
            '\\' if quote == '"' => match chars.next().map(|(_, c)| c) {
                Some('n') => value.push('\n'),
                Some('r') => value.push('\r'),
                Some('t') => value.push('\t'),
                Some('$') => value.push_str(ESCAPED_DOLLAR),
                Some(c @ ('"' | '\\')) => value.push(c),
                Some(c) => value.extend(['\\', c]),
                None => break,
            },
            '\\' if text[at + 1..].starts_with('\'') => {
                value.push('\'');
                chars.next();
            }
            c => value.push(c),
        }
    }
    Err("a quote is not closed")
}

/// Placeholder for `\$` while variables are replaced; no text contains it.
const ESCAPED_DOLLAR: &str = "\u{0}";

/// Replaces `${NAME}`, `${NAME:-default}` and `$NAME`; unset variables become empty.
fn expand(text: &str, known: &dyn Fn(&str) -> Option<String>) -> String {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let braced = after.strip_prefix('{').and_then(|it| it.split_once('}'));
        if let Some((inner, behind)) = braced {
            let (name, default) = inner.split_once(":-").unwrap_or((inner, ""));
            let value = known(name).filter(|it| !it.is_empty());
            expanded.push_str(&value.unwrap_or_else(|| default.to_owned()));
            rest = behind;
            continue;
        }
        let end = after.find(|c| !is_name(c)).unwrap_or(after.len());
        match end {
            0 => expanded.push('$'),
            _ => expanded.push_str(&known(&after[..end]).unwrap_or_default()),
        }
        rest = &after[end..];
    }
    expanded + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str) -> Vec<(usize, String, String)> {
        let lookup = |name: &str| (name == "USER").then(|| "me".to_owned());
        let entries = parse(text, &lookup).unwrap();
        entries.into_iter().map(|it| (it.line, it.name, it.value)).collect()
    }

    fn value(text: &str) -> String {
        values(text).pop().unwrap().2
    }

    #[test]
    fn values_are_read_as_shells_and_dotenv_read_them() {
        for (text, expected) in [
            ("A=1", "1"),
            ("A =  two words  # a comment", "two words"),
            ("A=a#b", "a#b"),
            ("A=# nothing", ""),
            ("A=", ""),
            ("export A=x\r\n", "x"),
            ("\u{feff}A=x", "x"),
            ("export=1", "1"),
            ("A='$USER \"x\" # y' # z", "$USER \"x\" # y"),
            ("A='it\\'s'", "it's"),
            (r#"A="a\n\"b\" \\ \$USER $USER""#, "a\n\"b\" \\ $USER me"),
            ("A=\"two\nlines\"\n", "two\nlines"),
            ("A=/Users/${USER}/x$", "/Users/me/x$"),
            ("A=${NONE:-d}${USER:-d}$NONE", "dme"),
            ("B=b\nA=$B", "b"),
            ("USER=other\nA=$USER", "me"),
        ] {
            assert_eq!(value(text), expected, "{text:?}");
        }
        let all = values("# c\n\nA='x\ny'\n  B=2\n");
        assert_eq!(all[0], (3, "A".to_owned(), "x\ny".to_owned()));
        assert_eq!(all[1], (5, "B".to_owned(), "2".to_owned()));
    }

    #[test]
    fn what_is_no_variable_is_named_by_its_line() {
        for (text, what) in [
            ("A=1\nnothing\n", "line 2: there is no `=`"),
            ("a b=1", "line 1: the text before"),
            ("9=1", "line 1: the text before"),
            ("A=\"x", "line 1: a quote is not closed"),
            ("A='x' y", "line 1: something stands behind"),
        ] {
            let err = parse(text, &|_| None).unwrap_err().to_string();
            assert!(err.starts_with(what), "{text:?}: {err}");
            assert!(err.contains("hint: "), "{err}");
        }
    }
}
