//! Bounds the work of the parser, and checks that the tables of the families are consistent.

use std::sync::Arc;

use super::parser::{AnswerEnd, CALL_BYTES_MAX};
use super::pattern::Step;
use super::{AnswerFormat, AnswerParser, ReasoningFormat, Segment, ToolFormat};

/// Maximum number of times that each byte may be examined, whatever the text and however it was
/// cut.
const WORK_PER_BYTE_MAX: u64 = 1024;

/// Bytes of each text that the parser gets in the smallest pieces: as many as show work that grows
/// with their square.
const BYTES_IN_PIECES: usize = 64 << 10;

/// Each family once.
fn formats() -> impl Iterator<Item = AnswerFormat> {
    let names = ToolFormat::names().filter(|name| ToolFormat::named(name).unwrap().name() == *name);
    names.map(|name| {
        let reasoning = match name {
            "harmony" | "gemma4" | "mistral" | "seed_oss" | "cohere" | "apertus" | "kimi_k3"
            | "longcat" | "solar_open" | "minimax_m3" | "minicpm3" | "hunyuan_a13b" => name,
            _ => "think",
        };
        AnswerFormat {
            reasoning: ReasoningFormat::named(reasoning),
            tools: ToolFormat::named(name),
            unread: None,
            special: Arc::new([]),
        }
    })
}

/// Texts that would make a naive parser examine the same bytes again and again.
fn hostile(format: &AnswerFormat) -> Vec<String> {
    let size = CALL_BYTES_MAX + (CALL_BYTES_MAX >> 2);
    let filled = |part: &str| part.repeat(size / part.len().max(1) + 1);
    let mut texts: Vec<String> =
        ["<<|", "[", "{", "{\"", " ", "\n<", "<tool_call>", "é<", "｜"].map(filled).to_vec();
    texts.push("<".repeat(1 << 20));
    texts.push(format!("{{\"name\": \"{}", filled("<tool_call>")));
    for pattern in format.tools.unwrap().family.patterns {
        // Every prefix of the markup, repeated.
        let mut begun = String::new();
        for step in pattern.steps {
            begun.push_str(match step {
                Step::Space => "\n \n",
                Step::Word => "name",
                Step::Json { .. } => "{\"a\": [1]}",
                Step::Python { .. } => "[f(a=1)]",
                Step::Branch(branches) => branches[0].0,
                Step::Back(_) | Step::End => "",
                Step::Literal(text) => text,
                Step::Rest(end) => {
                    let end = end.unwrap_or("x");
                    texts.push(format!("{begun}{}", filled("x")));
                    texts.push(format!("{begun}{}", filled(&end[..1])));
                    texts.push(format!("{begun}{}", filled(&format!("{end} "))));
                    ""
                }
                Step::Until(text) | Step::Skip(text) => {
                    texts.push(filled(&begun));
                    texts.push(format!("{begun}{}", filled("x")));
                    texts.push(format!("{begun}{}", filled(&text[..text.len() - 1])));
                    text
                }
            });
            texts.push(filled(&begun));
        }
    }
    texts
}

#[test]
fn the_work_grows_with_the_text_alone() {
    for format in formats() {
        for text in hostile(&format) {
            let text = text.as_str();
            let in_pieces = beginning(text, BYTES_IN_PIECES);
            for (cut, text) in [(5, in_pieces), (500, text), (usize::MAX, text)] {
                let mut parser = AnswerParser::new(&format, None, false);
                let (mut rest, mut passed) = (text, 0);
                while !rest.is_empty() {
                    let piece = beginning(rest, cut);
                    let segments = parser.push(piece);
                    passed += segments.iter().map(len_of).sum::<usize>();
                    rest = &rest[piece.len()..];
                    assert!(parser.held_bytes() <= CALL_BYTES_MAX + 512 || cut == usize::MAX);
                }
                passed += parser.finish(AnswerEnd::Stopped).iter().map(len_of).sum::<usize>();
                assert!(passed <= text.len());
                let limit = WORK_PER_BYTE_MAX * text.len() as u64;
                let start: String = text.chars().take(60).collect();
                assert!(
                    parser.work < limit,
                    "{format:?}, cut {cut}: {} for {} bytes of {start:?}",
                    parser.work,
                    text.len()
                );
            }
        }
    }
}

/// Returns the first `len` bytes of a text, and those of a character that they end in.
fn beginning(text: &str, len: usize) -> &str {
    let mut ends = len.min(text.len())..;
    &text[..ends.find(|end| text.is_char_boundary(*end)).unwrap()]
}

fn len_of(segment: &Segment) -> usize {
    match segment {
        Segment::Text(text) | Segment::Reasoning(text) => text.len(),
        Segment::Call(_) | Segment::Arguments(_) | Segment::CallEnd => 0,
    }
}

#[test]
fn no_trigger_is_the_beginning_of_a_later_one() {
    for format in formats() {
        let reasoning = format.reasoning.unwrap();
        let patterns = format.tools.unwrap().family.patterns.iter();
        let mut triggers = vec![reasoning.open()];
        triggers.extend(patterns.chain(reasoning.family.markup).map(|pattern| pattern.trigger));
        for (idx, one) in triggers.iter().enumerate() {
            for other in triggers.iter().skip(idx + 1) {
                assert!(!other.starts_with(one), "{format:?}: {one:?} and {other:?}");
            }
        }
    }
}

#[test]
fn every_name_is_known_once() {
    let mut tools: Vec<_> = ToolFormat::names().collect();
    let mut reasoning: Vec<_> = ReasoningFormat::names().collect();
    for names in [&mut tools, &mut reasoning] {
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
    assert!(tools.iter().all(|name| ToolFormat::named(name).is_some()));
    assert!(reasoning.iter().all(|name| ReasoningFormat::named(name).is_some()));
}
