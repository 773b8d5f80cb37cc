//! Compares tool calls in streamed text with those in the complete text.

use std::sync::LazyLock;

use jackalope_text::{AnswerFormat, AnswerParser, Segment, ToolCall};
use proptest::prelude::*;
use serde_json::json;

use crate::tool_families::{format, parse};

fn parser() -> AnswerParser {
    static FORMAT: LazyLock<AnswerFormat> = LazyLock::new(|| format("none", "hermes"));
    AnswerParser::new(&FORMAT, None, false)
}

/// The segments of text in pieces, neighbouring content joined.
fn split<S: AsRef<str>>(pieces: &[S]) -> Vec<Segment> {
    parse(parser(), pieces)
}

fn text(text: &str) -> Segment {
    Segment::Text(text.to_owned())
}

fn call(name: &str, arguments: &str) -> Segment {
    Segment::Call(ToolCall { id: None, name: name.to_owned(), arguments: arguments.to_owned() })
}

/// Cuts a text at every character.
fn characters(whole: &str) -> Vec<String> {
    whole.chars().map(String::from).collect()
}

#[test]
fn calls_are_taken_out_of_the_content() {
    let cases = [
        ("", vec![]),
        ("Just text. ", vec![text("Just text. ")]),
        (
            "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>",
            vec![call("weather", "{\"city\": \"Oslo\"}")],
        ),
        (
            "Let me look.\n<tool_call>{\"arguments\":{},\"name\":\"a\"}</tool_call>\n\
             <tool_call>\n{\"name\": \"b\"}\n</tool_call>\n",
            vec![text("Let me look."), call("a", "{}"), call("b", "{}")],
        ),
        (
            "One <tool_call>{\"name\": \"a\", \"arguments\": {\"t\": \"</tool_call> }\\\"{\"}}</tool_call> two",
            vec![text("One"), call("a", "{\"t\": \"</tool_call> }\\\"{\"}"), text("two")],
        ),
        (
            "<tool_call>{\"name\": \"a\", \"arguments\": \"{\\\"x\\\": 1}\"}</tool_call>",
            vec![call("a", "{\"x\": 1}")],
        ),
        (
            "<tool_call>{\"name\": \"a\", \"parameters\": {\"n\": 12345678901234567890123, \"f\": 1.10}}</tool_call>",
            vec![call("a", "{\"n\": 12345678901234567890123, \"f\": 1.10}")],
        ),
        (
            "<tool_call>\n<tool_call>\n{\"name\": \"a\"}\n</tool_call>",
            vec![text("<tool_call>"), call("a", "{}")],
        ),
        (
            "<tool_call>{\"name\": \"a\"}\n<tool_call>{\"name\": \"b\"}</tool_call>",
            vec![call("a", "{}"), call("b", "{}")],
        ),
        ("<tool_call> {\"name\": \"a\", \"arguments\": {}}", vec![call("a", "{}")]),
        (
            "<tool_call>{\"name\": \"a\", \"arguments\": {}} more</tool_call>",
            vec![call("a", "{}"), text("more</tool_call>")],
        ),
        (
            "<tool_call>{\"name\": \"a\", \"arguments\": {\"b\": é",
            vec![call("a", "{\"b\": "), text("é")],
        ),
    ];
    for (whole, expected) in cases {
        assert_eq!(split(&[whole]), expected, "{whole:?}");
        assert_eq!(split(&characters(whole)), expected, "{whole:?} in pieces");
    }
}

#[test]
fn what_only_looks_like_a_call_stays_content() {
    let cases = [
        "<tool_call>",
        "text <tool_",
        "<tool_call>{\"name\": 1}</tool_call>",
        "<tool_call>{\"name\": \"a\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{\"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"a, \"arguments\": {}}</tool_call>",
        "<tool_call>[]</tool_call> and <tool_call>words</tool_call>",
        "<tool_call>\n<function=a>\n</function>\n</tool_call>",
        "<tool_call>{\"naïve\u{e9}\": é}</tool_call>",
        "white space    \n\n",
    ];
    for whole in cases {
        assert_eq!(split(&[whole]), [text(whole)], "{whole:?}");
        assert_eq!(split(&characters(whole)), [text(whole)], "{whole:?} in pieces");
    }
}

#[test]
fn content_is_passed_on_as_soon_as_it_cannot_be_a_call() {
    let mut parser = parser();
    assert_eq!(parser.push("Hello "), [text("Hello")]);
    assert_eq!(parser.push("<b>"), [text(" <b>")]);
    assert_eq!(parser.push("<tool_call>"), []);
    assert_eq!(parser.push("no JSON"), [text("<tool_call>no JSON")]);
    assert_eq!(parser.push("<tool_call>{\"a\": "), []);
    assert_eq!(parser.push("<"), [text("<tool_call>{\"a\":")]);
}

#[test]
fn a_call_that_never_ends_is_let_go_at_the_limit() {
    let endless = format!("<tool_call>{{\"name\": \"{}", "x".repeat(300 << 10));
    let mut parser = parser();
    let passed: usize = parser
        .push(&endless)
        .iter()
        .map(|segment| match segment {
            Segment::Text(text) => text.len(),
            _ => 0,
        })
        .sum();
    assert_eq!(passed, endless.len());
}

/// Pieces of calls and of what looks like calls.
fn fragment() -> impl Strategy<Value = String> {
    let parts = [
        "<tool_call>",
        "</tool_call>",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": [1, \"}\"]}}\n</tool_call>",
        "{\"name\": \"g\"}",
        "{",
        "}",
        "\"",
        "\\",
        "\n",
        "  ",
        "<tool",
        "é",
        "Some words. ",
    ];
    prop::sample::select(parts.map(str::to_owned).to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_pieces_do_not_matter(fragments in prop::collection::vec(fragment(), 0..12), cut in 1..9_usize) {
        let whole = fragments.concat();
        let expected = split(&[&whole]);
        prop_assert_eq!(&split(&fragments), &expected);
        let letters: Vec<char> = whole.chars().collect();
        let pieces: Vec<String> = letters.chunks(cut).map(|piece| piece.iter().collect()).collect();
        prop_assert_eq!(&split(&pieces), &expected);
    }

    #[test]
    fn nothing_is_lost_but_calls_and_the_white_space_around_them(
        fragments in prop::collection::vec(fragment(), 0..12),
    ) {
        let whole = fragments.concat();
        let mut rest = whole.as_str();
        for segment in split(&[&whole]) {
            match segment {
                Segment::Text(content) => {
                    // The end of a call, and white space, may be missing before it.
                    let start = rest.find(content.as_str()).expect("content comes from the text");
                    let left_out = rest[..start].replace("</tool_call>", "");
                    prop_assert!(left_out.trim().is_empty(), "left out {:?}", left_out);
                    rest = &rest[start + content.len()..];
                }
                Segment::Call(call) => {
                    let after = rest.trim_start();
                    let after = after.strip_prefix("</tool_call>").unwrap_or(after).trim_start();
                    let after = after.strip_prefix("<tool_call>").expect("a tag");
                    let mut values = serde_json::Deserializer::from_str(after).into_iter();
                    let written: serde_json::Value = values.next().unwrap().unwrap();
                    prop_assert_eq!(&written["name"], &json!(call.name));
                    rest = &after[values.byte_offset()..];
                }
                other => prop_assert!(false, "{:?}", other),
            }
        }
        let rest = rest.replace("</tool_call>", "");
        prop_assert!(rest.trim().is_empty(), "left {:?}", rest);
    }
}
