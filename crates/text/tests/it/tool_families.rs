//! Recorded answers of every family, complete and in pieces, and text that only resembles them.

use std::sync::{Arc, LazyLock};

use jackalope_text::{
    AnswerEnd, AnswerFormat, AnswerParser, ChatTemplate, Segment, Tokenizer, ToolCall, ToolFormat,
    ToolSpec,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::checkpoint::{Checkpoint, data, tokenizer};
use crate::examples::{EXAMPLES, OSLO};

/// Returns the tools that the examples call.
pub(crate) fn tools() -> Arc<[ToolSpec]> {
    let parameters = json!({
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer", "minimum": 0, "maximum": 9},
            "metric": {"type": "boolean"},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
        },
        "additionalProperties": false,
        "required": ["city", "days"],
    });
    let tool = |name: &str, parameters: Value| ToolSpec {
        name: name.to_owned(),
        parameters,
        strict: true,
    };
    Arc::new([
        tool("weather", parameters),
        tool("time", json!({"type": "object", "properties": {}, "additionalProperties": false})),
        tool(
            "we",
            json!({"type": "object", "properties": {"note": {"type": "string", "enum": ["x y", "\"q\""]}}, "additionalProperties": false}),
        ),
        tool(
            "python",
            json!({"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"], "additionalProperties": false}),
        ),
    ])
}

/// Returns the format with these names.
pub(crate) fn format(reasoning: &str, tools: &str) -> AnswerFormat {
    static QWEN: LazyLock<Tokenizer> = LazyLock::new(|| tokenizer("qwen"));
    AnswerFormat::detect(&QWEN, None).from_names(&QWEN, reasoning, tools).unwrap()
}

/// The segments of an answer in pieces, neighbouring ones of a kind joined.
pub(crate) fn parse<S: AsRef<str>>(parser: AnswerParser, pieces: &[S]) -> Vec<Segment> {
    parse_until(parser, pieces, AnswerEnd::Stopped)
}

/// The same, with an end of this kind. A call is joined with its arguments.
pub(crate) fn parse_until<S: AsRef<str>>(
    mut parser: AnswerParser,
    pieces: &[S],
    end: AnswerEnd,
) -> Vec<Segment> {
    let mut segments: Vec<Segment> =
        pieces.iter().flat_map(|piece| parser.push(piece.as_ref())).collect();
    segments.extend(parser.finish(end));
    let mut joined: Vec<Segment> = Vec::new();
    let mut is_open = false;
    for segment in segments {
        assert_eq!(is_open, matches!(segment, Segment::Arguments(_) | Segment::CallEnd));
        is_open = matches!(segment, Segment::Arguments(_) | Segment::Call(_));
        match (joined.last_mut(), segment) {
            (_, Segment::CallEnd) => {}
            (Some(Segment::Call(call)), Segment::Arguments(more)) => call.arguments.push_str(&more),
            (Some(Segment::Text(before)), Segment::Text(text)) => before.push_str(&text),
            (Some(Segment::Reasoning(before)), Segment::Reasoning(text)) => before.push_str(&text),
            (_, segment) => joined.push(segment),
        }
    }
    joined
}

fn pieces(whole: &str, cut: usize) -> Vec<String> {
    let characters: Vec<char> = whole.chars().collect();
    characters.chunks(cut).map(|piece| piece.iter().collect()).collect()
}

/// Segments as a line of text each, which is easy to read and to write.
fn shown(segments: &[Segment]) -> Vec<String> {
    let show = |segment: &Segment| match segment {
        Segment::Arguments(_) | Segment::CallEnd => unreachable!("they are joined"),
        Segment::Text(text) => format!("text {text}"),
        Segment::Reasoning(text) => format!("thought {text}"),
        Segment::Call(ToolCall { id, name, arguments }) => {
            let id = id.as_deref().map(|id| format!(" #{id}")).unwrap_or_default();
            format!("call {name}{id} {arguments}")
        }
    };
    segments.iter().map(show).collect()
}

#[test]
fn every_family_is_read_whole_and_in_pieces() {
    for (reasoning, tool, answer, expected) in EXAMPLES.iter() {
        let format = format(reasoning, tool);
        let parser = || AnswerParser::new(&format, Some(tools()), false);
        assert_eq!(shown(&parse(parser(), &[answer])), *expected, "{tool}: {answer}");
        for cut in [1, 2, 3, 7] {
            let parsed = parse(parser(), &pieces(answer, cut));
            assert_eq!(shown(&parsed), *expected, "{tool} cut by {cut}: {answer}");
        }
    }
    for name in ToolFormat::names() {
        let is_shown = EXAMPLES
            .iter()
            .any(|(_, tool, ..)| format("none", tool).tools == ToolFormat::named(name));
        assert!(is_shown, "{name} has no example");
    }
}

#[test]
fn a_thought_that_the_prompt_opened_ends_where_it_is_closed() {
    let format = format("think", "hermes");
    let parser = || AnswerParser::new(&format, None, true);
    assert!(parser().is_reasoning());
    let answer = "\nHm.\n</think>\n\nYes.";
    for cut in [1, 5, 100] {
        let parsed = shown(&parse(parser(), &pieces(answer, cut)));
        assert_eq!(parsed, ["thought Hm.", "text Yes."]);
    }
    let tokenizer = tokenizer("qwen");
    let opens =
        |prompt: &str| format.opened_by(&tokenizer, &tokenizer.encode(prompt, false).unwrap());
    assert!(opens("<|im_start|>assistant\n<think>\n"));
    assert!(!opens("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
    assert!(!opens("What is <think>?<|im_end|>\n<|im_start|>assistant\n"));
    assert!(!opens(""));
}

/// A request without tools leaves calls in the text, but not the names of recipients.
#[test]
fn a_message_to_the_user_has_no_header_without_tools_either() {
    let format = format("none", "functionary_v3_2").without_tools();
    let cases = [
        ("all\nHello >>>time\n{}", "text Hello >>>time\n{}"),
        (">>>all\nHello", "text Hello"),
        ("time\n{}", "text time\n{}"),
    ];
    for (answer, expected) in cases {
        for cut in [1, 2, 100] {
            let parsed = parse(AnswerParser::new(&format, None, false), &pieces(answer, cut));
            assert_eq!(shown(&parsed), [expected], "{answer} cut by {cut}");
        }
    }
}

/// A call of an unknown tool is content.
#[test]
fn a_call_of_an_unknown_tool_is_content_as_it_was_written() {
    let others: Arc<[ToolSpec]> =
        tools().iter().filter(|tool| tool.name == "we").cloned().collect();
    for (_, tool, answer, expected) in EXAMPLES.iter() {
        let format = format("none", tool);
        let parsed = parse(AnswerParser::new(&format, Some(Arc::clone(&others)), false), &[answer]);
        let written = without_recipients(tool, answer).replace(">>>all\n", "");
        for segment in &parsed {
            match segment {
                Segment::Call(call) => assert_eq!(call.name, "we"),
                Segment::Text(text) => assert!(written.contains(text.as_str()), "{text:?}"),
                other => panic!("not expected: {other:?}"),
            }
        }
        if !expected.iter().any(|line| line.starts_with("call we ")) {
            assert_eq!(parsed, [Segment::Text(written)], "{tool}");
        }
    }
}

#[test]
fn the_template_and_the_vocabulary_tell_the_format() {
    let of_template = |source: &str| {
        let checkpoint = Checkpoint::with_template(source);
        let tokenizer = Tokenizer::load(checkpoint.dir()).unwrap();
        let template = ChatTemplate::load(checkpoint.dir(), &tokenizer).unwrap();
        AnswerFormat::detect(&tokenizer, template.as_ref())
    };
    let tools_of = |source: &str| of_template(source).tools.map(|tools| tools.name());
    let cases = [
        ("qwen2.5", "hermes"),
        ("qwen3", "hermes"),
        ("hermes-generation", "hermes"),
        ("qwen3-coder", "qwen3_coder"),
        ("llama3.1", "llama3_json"),
        ("mistral", "mistral"),
        ("deepseek", "deepseek_v3"),
    ];
    for (name, expected) in cases {
        let source = std::fs::read_to_string(data(&format!("templates/{name}.jinja"))).unwrap();
        assert_eq!(tools_of(&source), Some(expected), "{name}");
    }
    assert_eq!(tools_of("{{ messages[0].content }}"), None);
    assert_eq!(tools_of("{{ tools }}{{ messages[0].content }}"), Some("json"));
    assert_eq!(tools_of("<tool_call>{name}\n<arg_key>"), Some("glm45"));
    assert_eq!(tools_of("<minimax:tool_call>"), Some("minimax_m2"));
    assert_eq!(tools_of("[TOOL_CALLS]f[ARGS]"), Some("mistral_args"));
    assert_eq!(tools_of("<｜tool▁calls▁begin｜>"), Some("deepseek_v31"));
    let functionary = "<|start_header_id|><function=f>{}</function><|python_tag|>";
    assert_eq!(tools_of(functionary), Some("functionary"));
    let functionary =
        "<|start_header_id|>{{ '>>>all\\n' + message.content }}<function=f></function>";
    assert_eq!(tools_of(functionary), Some("functionary_v3_2"));
    let step = "<tool_call>\n<function=f>\n<parameter=p>";
    assert_eq!(tools_of(step), ToolFormat::named("step3p5").map(|it| it.name()));
    for (alias, name) in
        [("granite3", "json"), ("meetkai", "functionary"), ("poolside_v1", "glm45")]
    {
        assert_eq!(ToolFormat::named(alias).map(|it| it.name()), Some(name));
    }
    assert_eq!(tools_of("<|channel|>final<|message|>"), Some("harmony"));
    // The vocabulary has it.
    assert_eq!(of_template("").reasoning.map(|reasoning| reasoning.name()), Some("think"));

    let tokenizer = tokenizer("qwen");
    let detected = AnswerFormat::detect(&tokenizer, None);
    let refused = detected.from_names(&tokenizer, "auto", "klingon").unwrap_err().to_string();
    assert!(refused.contains("tool parser \"klingon\" is unknown"), "{refused}");
    assert!(refused.contains("hint: known are none, auto, harmony, "), "{refused}");
    let reasoning = detected.reasoning.unwrap();
    assert_eq!(reasoning.close_tokens(&tokenizer), [tokenizer.token_id("</think>").unwrap()]);
    assert_eq!(reasoning.open_tokens(&tokenizer), [tokenizer.token_id("<think>").unwrap()]);
    let cut = tokenizer.decode(&reasoning.cut_tokens(&tokenizer), false);
    assert_eq!(cut, "</think>\n\n");
}

/// Returns the segments of an answer that is cut after `num_chars` characters.
fn said_until(answer: &str, num_chars: usize, format: &AnswerFormat) -> Vec<Segment> {
    let cut: String = answer.chars().take(num_chars).collect();
    let parser = || AnswerParser::new(format, Some(tools()), false);
    let whole = parse_until(parser(), &[&cut], AnswerEnd::Cut);
    for pieces in [pieces(&cut, 1), pieces(&cut, 3)] {
        assert_eq!(parse_until(parser(), &pieces, AnswerEnd::Cut), whole, "{cut:?}");
    }
    whole
}

/// Wherever an answer is cut, it says a part of what it would have said: content and thoughts never hold
/// markup, and a call is there as soon as its name is known.
#[test]
fn an_answer_that_is_cut_anywhere_says_a_part_of_the_whole() {
    for (reasoning, tool, answer, expected) in EXAMPLES.iter() {
        // Text that only begins like a call is recognised as content at its end.
        let is_read = !answer.is_empty()
            && !expected.iter().any(|line| line.starts_with("text ") && line.contains(&**answer));
        if !is_read {
            continue;
        }
        let format = format(reasoning, tool);
        let all = parse(AnswerParser::new(&format, Some(tools()), false), &[answer]);
        let mut num_calls = 0;
        for num_chars in 0..=answer.chars().count() {
            let mut said = said_until(answer, num_chars, &format);
            said.retain(|it| !matches!(it, Segment::Text(text) if text.trim_ascii().is_empty()));
            let shown = (tool, num_chars, &said);
            assert!(said.len() <= all.len(), "{shown:?}");
            for (idx, (part, whole)) in said.iter().zip(&all).enumerate() {
                let is_last = idx + 1 == said.len();
                match (part, whole) {
                    (Segment::Text(part), Segment::Text(whole))
                    | (Segment::Reasoning(part), Segment::Reasoning(whole)) => {
                        assert!(whole.starts_with(part.trim_ascii_end()), "{shown:?}");
                    }
                    (Segment::Call(part), Segment::Call(whole)) => {
                        assert_eq!((&part.name, is_last || part == whole), (&whole.name, true));
                        assert!(whole.arguments.starts_with(&part.arguments), "{shown:?}");
                    }
                    _ => panic!("{shown:?}"),
                }
            }
            let calls = said.iter().filter(|it| matches!(it, Segment::Call(_))).count();
            assert!(calls >= num_calls, "a call vanished: {shown:?}");
            num_calls = calls;
        }
        // Source code has no end but that of the answer.
        if !expected.last().is_some_and(|last| last.starts_with("call python ")) {
            assert_eq!(said_until(answer, usize::MAX, &format), all, "{tool}: {answer}");
        }
    }
}

/// Families whose markup shows before its end that it is a call, and a text that is long.
#[test]
fn arguments_come_while_they_are_written() {
    let text = "word ".repeat(200);
    let json = format!("{{\"city\": \"{text}\", \"days\": 3}}");
    let waiting = [
        "mistral",
        "json",
        "pythonic",
        "lfm2",
        "olmo3",
        "minicpm3",
        "gemma4",
        "function_gemma",
        "minimax_m3",
    ];
    for (reasoning, tool, answer, expected) in EXAMPLES.iter() {
        let is_call = expected.contains(&OSLO) && answer.contains("Oslo");
        if !is_call || waiting.contains(&format("none", tool).tools.unwrap().name()) {
            continue;
        }
        let answer = answer.replace("Oslo", &text);
        let mut parser = AnswerParser::new(&format(reasoning, tool), Some(tools()), false);
        let (mut arguments, mut longest) = (String::new(), 0);
        let mut until_end = 0;
        for piece in pieces(&answer, 5) {
            for segment in parser.push(&piece) {
                let more = match segment {
                    Segment::Call(call) if call.name == "weather" && until_end == 0 => {
                        call.arguments
                    }
                    Segment::Arguments(more) if until_end == 0 => more,
                    Segment::CallEnd => {
                        until_end = 1;
                        continue;
                    }
                    _ => continue,
                };
                longest = longest.max(more.len());
                arguments.push_str(&more);
            }
        }
        assert_eq!(arguments, json, "{tool}");
        assert!(longest <= 40, "{tool}: a piece of {longest} bytes");
    }
}

#[test]
fn source_code_for_python_comes_while_it_is_written() {
    let format = format("none", "functionary_v3_2");
    let line = "x = \"é\" >> 1\n";
    let mut parser = AnswerParser::new(&format, Some(tools()), false);
    let mut arguments = String::new();
    for piece in std::iter::once("python\n").chain(std::iter::repeat_n(line, 50)) {
        for segment in parser.push(piece) {
            match segment {
                Segment::Call(call) => {
                    assert_eq!(call.name, "python");
                    arguments.push_str(&call.arguments);
                }
                Segment::Arguments(more) => {
                    assert!(more.len() <= 2 * line.len(), "{more:?}");
                    arguments.push_str(&more);
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(arguments.len() > 40 * line.len(), "held back: {arguments:?}");
    for segment in parser.finish(AnswerEnd::Stopped) {
        if let Segment::Arguments(more) = segment {
            arguments.push_str(&more);
        }
    }
    let arguments: Value = serde_json::from_str(&arguments).unwrap();
    assert_eq!(arguments, json!({"code": line.repeat(50)}));
}

/// Parts of all markup there is, and what stands between.
fn fragment() -> impl Strategy<Value = String> {
    const CUTS: [&str; 7] = ["<", ">", "[", "]", "{", "}", "\n"];
    let marks = EXAMPLES.iter().flat_map(|(_, _, answer, _)| {
        let parts = CUTS.iter().flat_map(|cut| answer.split_inclusive(*cut));
        std::iter::once(*answer).chain(parts).map(str::to_owned)
    });
    let plain = ["é", "\"", "\\", " ", "\n\n", "<", "｜", "words ", "'", "'''", "\u{0}"];
    let all: Vec<String> = marks.chain(plain.map(str::to_owned)).collect();
    prop::sample::select(all)
}

/// The answer without the line that names the user as its recipient, in the format that has one.
fn without_recipients<'a>(tool: &str, answer: &'a str) -> &'a str {
    let is_named = format("none", tool).tools == ToolFormat::named("functionary_v3_2");
    answer.trim_ascii_start().strip_prefix("all\n").filter(|_| is_named).unwrap_or(answer)
}

/// The text without white space and without the markup of the reasoning's formats.
fn unmarked(text: &str) -> String {
    const MARKUP: &[&str] = &[
        ">>>all",
        "<think>",
        "</think>",
        "[THINK]",
        "[/THINK]",
        "<seed:think>",
        "</seed:think>",
        "<|channel>thought",
        "<channel|>",
        "<|channel|>analysis<|message|>",
        "<|channel|>final<|message|>",
        "<|channel|>commentary<|message|>",
        "<|start|>assistant",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "</tool_call>",
        "<|/tool_call|>",
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        "<|START_RESPONSE|>",
        "<|END_RESPONSE|>",
        "<|START_TEXT|>",
        "<|END_TEXT|>",
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|>",
        "<|open|>response<|sep|>",
        "<|close|>response<|sep|>",
        "<|close|>message<|sep|>",
        "<|inner_prefix|>",
        "<|inner_suffix|>",
        "<|think|>",
        "<|begin|>assistant",
        "<|content|>",
        "<|flush|>",
        "<|calls|>",
        "<|think:start|>",
        "<|think:end|>",
        "<longcat_think>",
        "</longcat_think>",
        "<mm:think>",
        "</mm:think>",
        "<|thought_start|>",
        "<|thought_end|>",
        "◁think▷",
        "◁/think▷",
        "<answer>",
        "</answer>",
        "<response>",
        "</response>",
        // White space has been removed.
        "Hereismythoughtprocess:",
        "Hereismyresponse:",
        "\n",
    ];
    let mut text: String =
        text.chars().filter(|character| !character.is_ascii_whitespace()).collect();
    while let Some(mark) = MARKUP.iter().find(|mark| text.contains(**mark)) {
        text = text.replacen(mark, "", 1);
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn the_pieces_of_no_family_matter(
        fragments in prop::collection::vec(fragment(), 0..10),
        example in 0..EXAMPLES.len(),
        cut in 1..9_usize,
        in_reasoning: bool,
        with_tools: bool,
    ) {
        let (reasoning, tool, ..) = EXAMPLES[example];
        let format = format(reasoning, tool);
        let parser = || AnswerParser::new(&format, with_tools.then(tools), in_reasoning);
        let whole = fragments.concat();
        let expected = parse(parser(), &[&whole]);
        prop_assert_eq!(&parse(parser(), &fragments), &expected);
        prop_assert_eq!(&parse(parser(), &pieces(&whole, cut)), &expected);

        // Nothing is lost but markup, and the white space around it.
        let has_calls = expected.iter().any(|segment| matches!(segment, Segment::Call(_)));
        let kept: String = expected.iter().map(|segment| match segment {
            Segment::Call(_) | Segment::Arguments(_) | Segment::CallEnd => "",
            Segment::Text(text) | Segment::Reasoning(text) => text,
        }).collect();
        if !has_calls {
            prop_assert_eq!(unmarked(&kept), unmarked(without_recipients(tool, &whole)));
        }
        let mut rest = whole.chars();
        prop_assert!(kept.chars().all(|kept| rest.any(|character| character == kept)));
    }
}
