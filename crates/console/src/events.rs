//! Reads lines of input, and the data of server-sent events.

use std::io::{self, BufRead, Read};

/// Maximum length of a line; a longer one is cut.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// Returns the next line; `None` at the end.
pub fn read_line(reader: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = String::new();
    let num_read = Read::take(reader, LINE_BYTES_MAX).read_line(&mut line)?;
    Ok((0 < num_read).then_some(line))
}

/// Returns the data of the next event; `None` at the end. Comments, which only keep a stream alive,
/// are skipped.
pub fn next_data(stream: &mut impl BufRead) -> io::Result<Option<String>> {
    while let Some(line) = read_line(stream)? {
        if let Some(data) = line.strip_prefix("data:") {
            return Ok(Some(data.trim().to_owned()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_and_comments_are_passed_over() {
        let mut stream = &b": alive\n\nevent: x\ndata: {\"a\": 1}\n\ndata:[DONE]\n"[..];
        assert_eq!(next_data(&mut stream).unwrap().as_deref(), Some("{\"a\": 1}"));
        assert_eq!(next_data(&mut stream).unwrap().as_deref(), Some("[DONE]"));
        assert_eq!(next_data(&mut stream).unwrap(), None);
    }

    #[test]
    fn a_line_without_an_end_is_cut() {
        let endless = vec![b'x'; 3 << 20];
        let line = read_line(&mut &endless[..]).unwrap().unwrap();
        assert_eq!(line.len() as u64, LINE_BYTES_MAX);
    }
}
