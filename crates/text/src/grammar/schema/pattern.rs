//! Translates the regular expressions of schemas (ECMA-262, in its Unicode mode) into the dialect
//! of the compiler, so that each construct keeps its meaning.
//!
//! Answers never contain a control character without an escape of its own, so no class in a
//! translated pattern has one. This also keeps the compiler from widening a class: if a class holds
//! all control characters, the compiler adds `\"` and `\\`, even if the class excludes these two.

use std::fmt::Write as _;

use super::super::counts::nested;

/// Maximum nesting of groups.
const GROUP_DEPTH_MAX: usize = 100;
/// Maximum length of the counts of a quantifier.
const COUNT_CHARS_MAX: usize = 24;

/// Characters that no answer contains, as items of a class; see [`is_writable`].
const UNWRITABLE: &str = r"\x{0}-\x{7}\x{B}\x{E}-\x{1F}\x{7F}";
/// White space and line ends of ECMA-262, as items of a class.
const SPACE: &str = concat!(
    r"\x{9}-\x{D}\x{20}\x{A0}\x{1680}\x{2000}-\x{200A}",
    r"\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}\x{FEFF}",
);
/// Line ends of ECMA-262, which `.` does not match.
const LINE_ENDS: &str = r"\x{A}\x{D}\x{2028}\x{2029}";
const DIGIT: &str = "0-9";
const WORD: &str = "0-9A-Za-z_";

/// Whether an answer can contain the character in a string: control characters need an escape other
/// than `\u`.
pub(super) fn is_writable(character: char) -> bool {
    !character.is_ascii_control() || matches!(character, '\u{8}' | '\t' | '\n' | '\u{c}' | '\r')
}

/// Returns the reason why a text with the character is refused.
pub(super) fn unwritable(character: char) -> String {
    format!(
        "found U+{:04X}, which is never generated\n\
         hint: of the control characters, only \\b, \\f, \\n, \\r and \\t are generated",
        u32::from(character)
    )
}

/// Returns the pattern in the compiler's dialect, or the reason why it cannot be enforced.
pub(super) fn translate(pattern: &str) -> Result<String, String> {
    let mut translator =
        Translator { chars: pattern.chars().collect(), at: 0, written: String::new(), depth: 0 };
    translator.whole()?;
    Ok(translator.written)
}

/// What an escape or an item of a class stands for.
enum Atom {
    Char(char),
    /// Items of a class.
    Set(String),
}

struct Translator {
    chars: Vec<char>,
    at: usize,
    written: String,
    depth: usize,
}

impl Translator {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek();
        self.at += usize::from(next.is_some());
        next
    }

    /// Skips `text` if it comes next.
    fn skip(&mut self, text: &str) -> bool {
        let len = text.chars().count();
        let is_next = self.chars[self.at..].iter().copied().take(len).eq(text.chars());
        self.at += if is_next { len } else { 0 };
        is_next
    }

    /// Returns what has been read since `from`.
    fn since(&self, from: usize) -> String {
        self.chars[from..self.at].iter().collect()
    }

    /// Translates the pattern, which may begin with flags for all of it, as Python's do.
    fn whole(&mut self) -> Result<(), String> {
        let leading = ["(?i)", "(?s)", "(?is)", "(?si)"].iter().find(|flags| self.skip(flags));
        let flags = leading.copied().unwrap_or_default();
        let is_folded = flags.contains('i');
        self.written.push_str(if is_folded { "(?i:" } else { "" });
        self.alternatives(flags.contains('s'))?;
        self.written.push_str(if is_folded { ")" } else { "" });
        match self.peek() {
            Some(_) => Err("found a ) without its (".to_owned()),
            None => Ok(()),
        }
    }

    /// Translates alternatives, up to the end of their group. Returns the largest product of nested
    /// counts.
    fn alternatives(&mut self, dot_all: bool) -> Result<u64, String> {
        let mut counted = 1;
        loop {
            // An atom takes its own quantifier, so one that comes here is misplaced.
            if let Some((found, _)) = self.quantifier_text()? {
                return Err(format!("found the quantifier {found} with nothing to repeat"));
            }
            match self.peek() {
                None | Some(')') => return Ok(counted),
                Some(next @ ('|' | '^' | '$')) => {
                    self.at += 1;
                    self.written.push(next);
                }
                Some(_) => {
                    let inner = self.atom(dot_all)?;
                    let times = self.quantifier()?.max(1);
                    counted = counted.max(nested(inner, times)?);
                }
            }
        }
    }

    /// Translates a character, a class or a group, without its quantifier. Returns the largest
    /// product of nested counts inside.
    fn atom(&mut self, dot_all: bool) -> Result<u64, String> {
        match self.next() {
            Some('(') => return self.group(dot_all),
            Some('[') => self.class()?,
            Some('.') if dot_all => {
                write!(self.written, "[^{UNWRITABLE}]").expect("a string takes all text")
            }
            Some('.') => {
                write!(self.written, "[^{LINE_ENDS}{UNWRITABLE}]").expect("a string takes all text")
            }
            Some('\\') => match self.escape(false)? {
                Atom::Char(character) => self.literal(character)?,
                Atom::Set(items) => self.write_class(&items),
            },
            Some(character) => self.literal(character)?,
            None => {}
        }
        Ok(1)
    }

    fn literal(&mut self, character: char) -> Result<(), String> {
        if !is_writable(character) {
            return Err(unwritable(character));
        }
        self.written.push_str(&item(character));
        Ok(())
    }

    fn write_class(&mut self, items: &str) {
        write!(self.written, "[[{items}]&&[^{UNWRITABLE}]]").expect("a string takes all text");
    }

    fn group(&mut self, dot_all: bool) -> Result<u64, String> {
        self.depth += 1;
        if GROUP_DEPTH_MAX < self.depth {
            return Err(format!("more than {GROUP_DEPTH_MAX} levels of groups"));
        }
        let mut dot_all = dot_all;
        let mut flags = String::new();
        if self.skip("?") {
            let around = ["=", "!", "<=", "<!"].iter().find(|it| self.skip(it));
            if let Some(around) = around {
                return Err(format!("found (?{around}, but lookarounds are not supported"));
            }
            if self.skip("<") || self.skip("P<") {
                while self.next().is_some_and(|it| it != '>') {}
            } else {
                (flags, dot_all) = self.flags(dot_all)?;
            }
        }
        write!(self.written, "(?{flags}:").expect("a string takes all text");
        let counted = self.alternatives(dot_all)?;
        if self.next() != Some(')') {
            return Err("found a ( without its )".to_owned());
        }
        self.written.push(')');
        self.depth -= 1;
        Ok(counted)
    }

    /// Reads the flags of a group, up to the colon. Returns those that the compiler shall know, and
    /// whether `.` matches line ends.
    fn flags(&mut self, mut dot_all: bool) -> Result<(String, bool), String> {
        let from = self.at;
        let (mut folds, mut is_set) = (None, true);
        loop {
            match self.next() {
                Some('i') => folds = Some(is_set),
                Some('s') => dot_all = is_set,
                Some('-') if is_set => is_set = false,
                Some(':') => break,
                _ => {
                    let found = self.since(from);
                    return Err(format!(
                        "found (?{found}, which ECMA-262 does not have, or which is not supported\n\
                         hint: the flags of a group can be i and s: (?i:…)"
                    ));
                }
            }
        }
        let flags = folds.map_or("", |is_set| if is_set { "i" } else { "-i" });
        Ok((flags.to_owned(), dot_all))
    }

    /// Translates the quantifier of the last atom, if it has one. Returns its maximum, or its
    /// minimum if it has no maximum.
    fn quantifier(&mut self) -> Result<u64, String> {
        let Some((text, times)) = self.quantifier_text()? else { return Ok(1) };
        self.written.push_str(&text);
        // Laziness changes what a group captures, not what matches.
        self.skip("?");
        Ok(times)
    }

    /// Reads a quantifier, if one comes next.
    fn quantifier_text(&mut self) -> Result<Option<(String, u64)>, String> {
        let Some(next) = self.peek() else { return Ok(None) };
        match next {
            '*' | '+' | '?' => {
                self.at += 1;
                return Ok(Some((next.to_string(), 1)));
            }
            '{' => {}
            _ => return Ok(None),
        }
        let rest = &self.chars[self.at + 1..];
        let len = rest.iter().take(COUNT_CHARS_MAX).position(|it| *it == '}');
        let Some(len) = len else { return Ok(None) };
        let inside: String = rest[..len].iter().collect();
        if inside.is_empty() || !inside.bytes().all(|it| it.is_ascii_digit() || it == b',') {
            // Without a count, the brace stands for itself.
            return Ok(None);
        }
        let found = format!("{{{inside}}}");
        let (least, most) = inside.split_once(',').unwrap_or((&inside, &inside));
        let least: Option<u32> = least.parse().ok();
        let most = if most.is_empty() { least } else { most.parse().ok() };
        // Python and Rust take {,5} for {0,5}, ECMA-262 for a text.
        let (Some(least), Some(times)) = (least, most) else {
            return Err(format!("found the quantifier {found} without a minimum, or too large"));
        };
        if times < least {
            return Err(format!("found the quantifier {found}, whose minimum exceeds its maximum"));
        }
        self.at += len + 2;
        Ok(Some((found, times.into())))
    }

    /// Reads an escape after its backslash.
    fn escape(&mut self, in_class: bool) -> Result<Atom, String> {
        let negated = |items: &str| Atom::Set(format!("[^{items}]"));
        let Some(letter) = self.next() else { return Err("found a \\ at the end".to_owned()) };
        Ok(match letter {
            'd' => Atom::Set(DIGIT.to_owned()),
            'w' => Atom::Set(WORD.to_owned()),
            's' => Atom::Set(SPACE.to_owned()),
            'D' => negated(DIGIT),
            'W' => negated(WORD),
            'S' => negated(SPACE),
            'p' | 'P' => Atom::Set(self.property(letter)?),
            't' => Atom::Char('\t'),
            'n' => Atom::Char('\n'),
            'v' => Atom::Char('\u{b}'),
            'f' => Atom::Char('\u{c}'),
            'r' => Atom::Char('\r'),
            'b' if in_class => Atom::Char('\u{8}'),
            '0' if !self.peek().is_some_and(|it| it.is_ascii_digit()) => Atom::Char('\0'),
            'c' => match self.next() {
                Some(it) if it.is_ascii_alphabetic() => Atom::Char(char::from(it as u8 % 32)),
                _ => return Err("found \\c without a letter".to_owned()),
            },
            'x' => Atom::Char(
                self.hex(2).and_then(char::from_u32).ok_or("found \\x without two digits")?,
            ),
            'u' => Atom::Char(self.unicode()?),
            'b' | 'B' => {
                return Err(format!("found \\{letter}, but word boundaries are not supported"));
            }
            'k' | '0'..='9' => {
                return Err(format!("found \\{letter}, but back-references are not supported"));
            }
            it if it.is_alphanumeric() => {
                return Err(format!("found \\{it}, which ECMA-262 does not have"));
            }
            it => Atom::Char(it),
        })
    }

    /// Reads a hexadecimal number of `len` digits.
    fn hex(&mut self, len: usize) -> Option<u32> {
        let digits: String = self.chars.get(self.at..self.at + len)?.iter().collect();
        let number = digits.bytes().all(|it| it.is_ascii_hexdigit());
        let number = number.then(|| u32::from_str_radix(&digits, 16).ok()).flatten()?;
        self.at += len;
        Some(number)
    }

    /// Reads the character of `\u`: four digits, two surrogates, or a number in braces.
    fn unicode(&mut self) -> Result<char, String> {
        let wrong = "found \\u without the number of a character";
        if self.skip("{") {
            let rest = &self.chars[self.at..];
            let len = rest.iter().position(|it| *it == '}').ok_or(wrong)?;
            let number = self.hex(len).and_then(char::from_u32).ok_or(wrong)?;
            self.at += 1;
            return Ok(number);
        }
        let first = self.hex(4).ok_or(wrong)?;
        if !(0xd800..0xdc00).contains(&first) {
            return char::from_u32(first).ok_or(wrong.to_owned());
        }
        let second = if self.skip("\\u") { self.hex(4) } else { None };
        let second = second.filter(|it| (0xdc00..0xe000).contains(it)).ok_or(wrong)?;
        char::from_u32(0x10000 + ((first - 0xd800) << 10) + second - 0xdc00).ok_or(wrong.to_owned())
    }

    /// Reads the name of a Unicode property. The compiler refuses those that it does not know.
    fn property(&mut self, letter: char) -> Result<String, String> {
        let from = self.at;
        let is_open = self.skip("{");
        while is_open
            && self.peek().is_some_and(|it| it.is_ascii_alphanumeric() || "_=".contains(it))
        {
            self.at += 1;
        }
        if self.at <= from + 1 || !self.skip("}") {
            return Err(format!("found \\{letter} without the name of a property: \\p{{L}}"));
        }
        Ok(format!("\\{letter}{}", self.chars[from..self.at].iter().collect::<String>()))
    }

    /// Translates a class after its opening bracket.
    fn class(&mut self) -> Result<(), String> {
        let is_negated = self.skip("^");
        let mut items = String::new();
        while !self.skip("]") {
            let low = self.class_atom()?;
            let is_range = self.peek() == Some('-')
                && self.chars.get(self.at + 1).is_some_and(|it| *it != ']');
            if !is_range {
                items.push_str(&low.items());
                continue;
            }
            self.forbid_set_operators()?;
            self.at += 1;
            let high = self.class_atom()?;
            match (&low, &high) {
                (Atom::Char(low), Atom::Char(high)) if high < low => {
                    return Err(format!("found the range {low}-{high}, which is out of order"));
                }
                (Atom::Char(low), Atom::Char(high)) => {
                    write!(items, "{}-{}", item(*low), item(*high))
                        .expect("a string takes all text");
                }
                // Beside a set, the hyphen stands for itself.
                _ => items.push_str(&[low.items(), item('-'), high.items()].concat()),
            }
        }
        match (is_negated, items.is_empty()) {
            (true, _) => {
                write!(self.written, "[^{items}{UNWRITABLE}]").expect("a string takes all text")
            }
            (false, true) => return Err("found [], which no character matches".to_owned()),
            (false, false) => self.write_class(&items),
        }
        Ok(())
    }

    /// Reads one character or escape of a class.
    fn class_atom(&mut self) -> Result<Atom, String> {
        self.forbid_set_operators()?;
        match self.next() {
            None => Err("found a [ without its ]".to_owned()),
            Some('\\') => self.escape(true),
            Some(character) => Ok(Atom::Char(character)),
        }
    }

    /// Fails at what other dialects take for operators of classes, and ECMA-262 for characters.
    fn forbid_set_operators(&self) -> Result<(), String> {
        let rest = &self.chars[self.at..];
        let is_next = |text: &&&str| rest.iter().copied().take(2).eq(text.chars());
        match ["&&", "--", "~~", "[:"].iter().find(is_next) {
            Some(found) => Err(format!(
                "found {found} in a class, which dialects of regular expressions read differently\n\
                 hint: escape the characters with backslashes, or write the class without operators"
            )),
            None => Ok(()),
        }
    }
}

impl Atom {
    fn items(&self) -> String {
        match self {
            Atom::Char(character) => item(*character),
            Atom::Set(items) => items.clone(),
        }
    }
}

/// Writes a character such that it stands for itself, inside and outside of classes.
fn item(character: char) -> String {
    if character.is_ascii_alphanumeric() {
        character.to_string()
    } else {
        format!("\\x{{{:X}}}", u32::from(character))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constructs_keep_the_meaning_that_ecma_262_gives_them() {
        let cases = [
            (r"^a\.b$", r"^a\x{2E}b$"),
            (r"^(?:a|b)+?$", r"^(?:a|b)+$"),
            (r"(?<year>\d{4})", r"(?:[[0-9]&&[^\x{0}-\x{7}\x{B}\x{E}-\x{1F}\x{7F}]]{4})"),
            (r#"[^"\\]"#, r"[^\x{22}\x{5C}\x{0}-\x{7}\x{B}\x{E}-\x{1F}\x{7F}]"),
            (r"\ud83d\ude00\u{61}\x41\<", r"\x{1F600}aA\x{3C}"),
            (r"(?i)^k$", r"(?i:^k$)"),
            (r"{a}{2}", r"\x{7B}a\x{7D}{2}"),
            (r"[\w-.]", r"[[0-9A-Za-z_\x{2D}\x{2E}]&&[^\x{0}-\x{7}\x{B}\x{E}-\x{1F}\x{7F}]]"),
        ];
        for (pattern, expected) in cases {
            assert_eq!(translate(pattern).as_deref(), Ok(expected), "{pattern}");
        }
    }

    #[test]
    fn what_other_dialects_read_differently_is_refused_with_the_reason() {
        let cases = [
            ("[[:alpha:]]", "[: in a class"),
            ("[a-z&&[^aeiou]]", "&& in a class"),
            ("[a-c--b]", "-- in a class"),
            ("[a~~b]", "~~ in a class"),
            (r"\a", r"\a, which"),
            (r"a\Z", r"\Z, which"),
            ("(?x)^a b$", "(?x"),
            ("a(?i)b", "(?i)"),
            ("(?m)^a$", "(?m"),
            ("a{,3}", "{,3}"),
            ("a**", "the quantifier *"),
            ("^*", "the quantifier *"),
            ("(?=a)b", "lookarounds"),
            (r"(a)\1", "back-references"),
            (r"\bword", "word boundaries"),
            ("a\u{1}b", "U+0001"),
            (r"a\x7f", "U+007F"),
            ("(a", "("),
            ("a)", ")"),
            ("[a", "["),
            ("[]", "[]"),
            ("[b-a]", "b-a"),
            (r"\ud83d", r"\u"),
            ("a{2,1}", "{2,1}"),
            ("^(((([a-z]{1,1000}){1,1000}){1,1000}){1,1000})$", "nested quantifiers"),
        ];
        for (pattern, expected) in cases {
            let reason = translate(pattern).expect_err(pattern);
            assert!(reason.contains(expected), "{pattern}: {reason}");
        }
    }
}
