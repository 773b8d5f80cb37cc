//! The client's span that a request belongs to.

/// The client's span that a request belongs to, from its header `traceparent`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TraceParent {
    /// Id of the trace, 32 hexadecimal digits.
    pub trace_id: String,
    /// Id of the client's span, 16 hexadecimal digits.
    pub span_id: String,
}

impl TraceParent {
    /// Parses `00-<32 digits>-<16 digits>-<2 digits>` (W3C Trace Context, section 3.2).
    pub fn parse(header: &str) -> Option<TraceParent> {
        let parts: Vec<&str> = header.trim().split('-').collect();
        let [version, trace_id, span_id, flags] = parts[..] else { return None };
        let is_hex = |text: &str, len: usize| {
            text.len() == len && text.bytes().all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'))
        };
        let is_set = |text: &str| text.bytes().any(|it| it != b'0');
        let is_valid = version == "00"
            && is_hex(trace_id, 32)
            && is_hex(span_id, 16)
            && is_hex(flags, 2)
            && is_set(trace_id)
            && is_set(span_id);
        is_valid.then(|| TraceParent { trace_id: trace_id.into(), span_id: span_id.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_parent_is_read_as_it_is_written() {
        let (trace, span) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
        let found = TraceParent::parse(&format!("00-{trace}-{span}-01")).unwrap();
        assert_eq!((found.trace_id.as_str(), found.span_id.as_str()), (trace, span));
        let none = "0".repeat(32);
        for broken in [
            "",
            "00",
            &format!("01-{trace}-{span}-01"),
            &format!("00-{none}-{span}-01"),
            &format!("00-{trace}-{}-01", &none[..16]),
            &format!("00-{}-{span}-01", trace.to_uppercase()),
            &format!("00-{trace}-{span}"),
            &format!("00-{trace}-{span}-01-x"),
        ] {
            assert_eq!(TraceParent::parse(broken), None, "{broken}");
        }
    }
}
