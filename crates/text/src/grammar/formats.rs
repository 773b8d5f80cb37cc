//! Formats of a schema that are enforced by patterns or bounds of this module, because the
//! compiler's own are wider than the format (it accepts the 29th of February of every year) or
//! ignore it (formats of numbers).

use serde_json::{Value, json};

/// String formats that the compiler enforces itself.
const OF_STRINGS: [&str; 5] = ["duration", "ipv4", "ipv6", "uri", "uuid"];

/// Regular expression for dates of the years 0001 to 9999 (RFC 3339, section 5.7 and appendix C).
const DATE: &str = concat!(
    "(?:(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-",
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])",
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)",
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))",
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29)",
);

/// Regular expression for times without leap seconds, which not every reader accepts, and with at
/// most nine digits after the seconds.
const TIME: &str = concat!(
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?",
    "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])",
);

/// Regular expression for the labels of a host name (RFC 1123, section 2.1).
const LABELS: &str = concat!(
    "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?",
    "(?:\\.[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*",
);
/// Maximum length of a host name: 255 octets in a message, without the first length and the root.
const HOSTNAME_CHARS_MAX: usize = 253;

/// Characters of the part of an e-mail address before the `@`, apart from the dot (RFC 5322,
/// section 3.2.3).
const ATOM: &str = "a-zA-Z0-9!#$%&'*+/=?^_`{|}~\\-";
/// Regular expression for an address in brackets, instead of a host name.
const ADDRESS: &str = concat!(
    "\\[(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\.){3}",
    "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\]",
);
/// Maximum length of an e-mail address (RFC 5321, section 4.5.3.1.3, without the angle brackets).
const EMAIL_CHARS_MAX: usize = 254;
/// Maximum length of the part of an e-mail address before the `@`.
const LOCAL_PART_CHARS_MAX: usize = 64;

/// Largest whole number up to which a reader with 64-bit floats reads every one exactly.
const WHOLE_MAX: i64 = (1 << 53) - 1;

/// How a format is enforced.
pub(super) enum Format {
    /// The compiler enforces the format.
    Known,
    /// There is nothing to enforce: the format requires nothing beyond the type.
    Nothing,
    /// This schema enforces the format, in addition to the schema that has the format.
    Schema(Value),
}

/// Returns how a format is enforced; `None` if the format is unknown.
pub(super) fn enforce(format: &str) -> Option<Format> {
    let bounds = |low: i64, high: i64| {
        Format::Schema(json!({"anyOf": [
            {"type": "integer", "minimum": low, "maximum": high},
            {"type": ["null", "boolean", "string", "array", "object"]},
        ]}))
    };
    let pattern = |pattern: String| Format::Schema(json!({ "pattern": pattern }));
    Some(match format {
        "date" => pattern(format!("^{DATE}$")),
        "time" => pattern(format!("^{TIME}$")),
        "date-time" => pattern(format!("^{DATE}T{TIME}$")),
        "hostname" => Format::Schema(json!({
            "pattern": format!("^{LABELS}$"),
            "maxLength": HOSTNAME_CHARS_MAX,
        })),
        "email" => Format::Schema(json!({
            "pattern": format!("^[{ATOM}]+(?:\\.[{ATOM}]+)*@(?:{LABELS}|{ADDRESS})$"),
            "maxLength": EMAIL_CHARS_MAX,
            "allOf": [{ "pattern": format!("^[{ATOM}.]{{1,{LOCAL_PART_CHARS_MAX}}}@") }],
        })),
        "int8" => bounds(i8::MIN.into(), i8::MAX.into()),
        "int16" => bounds(i16::MIN.into(), i16::MAX.into()),
        "int32" => bounds(i32::MIN.into(), i32::MAX.into()),
        "int64" => bounds(-WHOLE_MAX, WHOLE_MAX),
        "uint8" => bounds(0, u8::MAX.into()),
        "uint16" => bounds(0, u16::MAX.into()),
        "uint32" => bounds(0, u32::MAX.into()),
        "uint" | "uint64" => bounds(0, WHOLE_MAX),
        "float" | "double" => Format::Nothing,
        known if OF_STRINGS.contains(&known) => Format::Known,
        _ => return None,
    })
}
