//! `{% generation %} … {% endgeneration %}`, a tag of transformers: it marks the assistant's text
//! for training. In a prompt it means the same as `{% with %} … {% endwith %}`.

/// Replaces the tags in a template's source, and line ends by `\n` as Jinja does; everything else
/// stays byte for byte.
pub(super) fn rewrite(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(start) = rest.find('{') {
        let (before, at) = rest.split_at(start);
        out.push_str(before);
        let len = if let Some((word, name)) = tag_name(at) {
            match name {
                "generation" => replace(&mut out, at, word, "with"),
                "endgeneration" => replace(&mut out, at, word, "endwith"),
                "raw" => copy(&mut out, at, raw_len(at)),
                _ => copy(&mut out, at, expression_len(at, "%}")),
            }
        } else if at.starts_with("{#") {
            copy(&mut out, at, at.find("#}").map_or(at.len(), |end| end + 2))
        } else if at.starts_with("{{") {
            copy(&mut out, at, expression_len(at, "}}"))
        } else {
            copy(&mut out, at, 1)
        };
        rest = &at[len..];
    }
    out.push_str(rest);
    out
}

/// Returns the offset in bytes and the name of the tag with which `at` begins; `None` if `at` does
/// not begin with a tag.
fn tag_name(at: &str) -> Option<(usize, &str)> {
    let inside = at.strip_prefix("{%")?;
    let inside = inside.strip_prefix(['-', '+']).unwrap_or(inside).trim_start();
    let start = at.len() - inside.len();
    let end = inside.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(inside.len());
    Some((start, &inside[..end]))
}

/// Writes the beginning of the tag in `at` to `out`, with `name` instead of its own name, which
/// begins at `word`. Returns the number of bytes of `at` up to the end of the tag's own name.
fn replace(out: &mut String, at: &str, word: usize, name: &str) -> usize {
    out.push_str(&at[..word]);
    out.push_str(name);
    tag_name(at).map_or(word, |(start, name)| start + name.len())
}

fn copy(out: &mut String, at: &str, len: usize) -> usize {
    out.push_str(&at[..len]);
    len
}

/// Returns the length in bytes of the expression or tag at the start of `at`, up to and including
/// `end`; an `end` inside a string does not count.
fn expression_len(at: &str, end: &str) -> usize {
    let bytes = at.as_bytes();
    let mut quote = None;
    let mut idx = 2;
    while idx < bytes.len() {
        match (quote, bytes[idx]) {
            (Some(_), b'\\') => idx += 1,
            (Some(open), byte) if byte == open => quote = None,
            (None, b'"' | b'\'') => quote = Some(bytes[idx]),
            (None, _) if bytes[idx..].starts_with(end.as_bytes()) => return idx + end.len(),
            _ => {}
        }
        idx += 1;
    }
    at.len()
}

/// Returns the length in bytes, up to its end tag, of the raw block at the start of `at`. The
/// content of a raw block is not Jinja.
fn raw_len(at: &str) -> usize {
    let ends = at.match_indices("{%").skip(1);
    let mut ends =
        ends.filter(|(idx, _)| tag_name(&at[*idx..]).is_some_and(|(_, name)| name == "endraw"));
    ends.next().map_or(at.len(), |(idx, _)| idx)
}
