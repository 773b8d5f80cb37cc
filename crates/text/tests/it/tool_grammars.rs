//! The parser recognises calls in answers that are sampled at random from the grammars of tool calls.

use std::collections::BTreeSet;
use std::sync::Arc;

use jackalope_text::{
    AnswerFormat, AnswerParser, CallCount, Detokenizer, Segment, TokenId, Tokenizer, ToolDemand,
    ToolFormat, ToolGrammarError, ToolSpec,
};
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

use crate::checkpoint::Checkpoint;
use crate::tool_families::{parse, tools};

/// Special tokens that real vocabularies have.
const SPECIAL: &[&str] = &[
    "<|channel|>",
    "<|message|>",
    "<|start|>",
    "<|end|>",
    "<|constrain|>",
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|\"|>",
    "<escape>",
    "<start_function_call>",
    "<end_function_call>",
    "<|tool_call_start|>",
    "｜DSML｜",
    "<|open|>",
    "<|close|>",
    "<|sep|>",
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    "<|START_RESPONSE|>",
    "<|END_RESPONSE|>",
    "<|tools_prefix|>",
    "<|tools_suffix|>",
    "]<]minimax[>[",
    "<|begin|>",
    "<|content|>",
    "<|tool_calls|>",
    "<|tool_call:begin|>",
    "<|tool_call:name|>",
    "<|tool_call:args|>",
    "<|tool_call:end|>",
    "<|tool_call:start|>",
    "<|tool_arg:start|>",
    "<|tool_arg:value|>",
    "<|tool_arg:end|>",
    "<|action_start|>",
    "<|plugin|>",
    "<|action_end|>",
    "<the end>",
];

/// Tokens that end text early, and tokens that begin calls.
const ENDS: &[&str] = &[
    "<start_function_call>",
    "<|tool_call_start|>",
    "\n</parameter>\n",
    "</parameter>\n",
    "</arg_value>\n",
    "<|\"|>",
    "<escape>",
    "\"",
    "}",
    "]",
    "<tool_call>",
    "<function=",
    "<minimax:tool_call>",
    "[TOOL_CALLS]",
    "<｜tool▁calls▁begin｜>",
    "<|tool_calls_section_begin|>",
    "<|tool_call>",
    "{\"name\"",
    "[{\"name\"",
    "[we(",
    "<|channel|>commentary to=functions.",
];

/// Returns the same for one family: also the tokens of its own markup.
fn ends(name: &str) -> Vec<&'static str> {
    let own: &[&str] = match name {
        "seed_oss" => &["<seed:tool_call>"],
        "cohere" => &["<|START_ACTION|>"],
        "command_r" => &["Action:"],
        "deepseek_v32" => &["<｜DSML｜function_calls>", "</｜DSML｜parameter>\n"],
        "deepseek_v4" => &["<｜DSML｜tool_calls>", "</｜DSML｜parameter>\n"],
        "deepseek_v41" => &["<｜DSML｜ calls>", "</｜DSML｜ parameter>\n"],
        "longcat" | "longcat_json" => &["<longcat_tool_call>", "</longcat_arg_value>\n"],
        "apertus" => &["<|tools_prefix|>"],
        "kimi_k3" => {
            &["<|open|>tools<|sep|>", "<|close|>argument<|sep|>", "<|close|>response<|sep|>"]
        }
        "olmo3" => &["<function_calls>"],
        "solar_open" => &["<|end|><|begin|>assistant", "<|tool_calls|>"],
        "solar_open2" => &["<|tool_call:start|>", "<|tool_arg:end|>\n"],
        "nemotron_json" => &["<TOOLCALL>"],
        "hunyuan_a13b" | "minimax_m1" => &["<tool_calls>"],
        "internlm" => &["<|action_start|>"],
        "minicpm5" => &["<function name=\"", "</param>"],
        "minimax_m3" => {
            &["]<]minimax[>[<tool_call>", "]<]minimax[>[</city>", "]<]minimax[>[</code>"]
        }
        _ => &[],
    };
    [ENDS, own].concat()
}

/// Creates a tokenizer with all of these special tokens, or only with the end token.
fn tokenizer(special: &[&str]) -> Tokenizer {
    let added: serde_json::Map<String, Value> = special
        .iter()
        .enumerate()
        .map(|(idx, text)| {
            (
                (100_000 + idx).to_string(),
                json!({
                    "content": text, "special": true, "lstrip": false, "rstrip": false,
                    "normalized": false, "single_word": false,
                }),
            )
        })
        .collect();
    let config = json!({ "added_tokens_decoder": added }).to_string();
    let checkpoint = Checkpoint::of("qwen").with("tokenizer_config.json", &config);
    Tokenizer::load(checkpoint.dir()).unwrap()
}

fn factory(tokenizer: &Tokenizer) -> ParserFactory {
    let size = TokenId::try_from(tokenizer.vocab_size()).unwrap();
    let words: Vec<Vec<u8>> = (0..size)
        .map(|token| {
            let bytes = tokenizer.token_bytes(token);
            if tokenizer.is_special(token) { [&[0xff], bytes.as_slice()].concat() } else { bytes }
        })
        .collect();
    let info = TokRxInfo::new(size, tokenizer.token_id("<the end>").unwrap());
    let env = Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, &words)));
    ParserFactory::new_simple(&(env as _)).unwrap()
}

/// Numbers that look random (xorshift64*).
struct Draws(u64);

impl Draws {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(high).unwrap() % limit
    }
}

/// Samples an answer that the grammar allows; `None` if it did not end.
fn draw(
    factory: &ParserFactory,
    tokenizer: &Tokenizer,
    grammar: &str,
    ends: &[&str],
    draws: &mut Draws,
) -> Option<String> {
    let parser = factory.create_parser(TopLevelGrammar::from_lark(grammar.to_owned()));
    let mut matcher = Matcher::new(parser);
    assert!(!matcher.is_error(), "{:?}\n{grammar}", matcher.get_error());
    let end = tokenizer.token_id("<the end>").unwrap();
    let mut tokens = Vec::new();
    for _ in 0..400 {
        if matcher.is_stopped() {
            break;
        }
        if matcher.is_accepting().unwrap() && draws.below(4) == 0 {
            tokens.push(end);
            break;
        }
        if draws.below(3) == 0 {
            let wanted = tokenizer.encode(ends[draws.below(ends.len())], false).unwrap();
            let taken = matcher.try_consume_tokens(&wanted).unwrap();
            tokens.extend(&wanted[..taken]);
            continue;
        }
        let allowed = matcher.compute_mask().unwrap().to_list();
        assert!(!allowed.is_empty(), "{grammar}");
        let token = allowed[draws.below(allowed.len())];
        tokens.push(token);
        if token == end {
            break;
        }
        matcher.consume_token(token).unwrap();
    }
    if tokens.last() == Some(&end) {
        tokens.pop();
    } else if !matcher.is_stopped() {
        return None;
    }
    Some(tokenizer.decode(&tokens, false))
}

/// Checks that the arguments match the schema.
fn check_arguments(name: &str, arguments: &str) {
    let arguments: serde_json::Map<String, Value> = serde_json::from_str(arguments).unwrap();
    match name {
        "weather" => {
            assert!(arguments["city"].is_string(), "{arguments:?}");
            assert!(arguments["days"].as_i64().is_some_and(|days| (0..10).contains(&days)));
            assert!(arguments.get("metric").is_none_or(Value::is_boolean), "{arguments:?}");
            assert!(arguments.get("tags").is_none_or(Value::is_array), "{arguments:?}");
        }
        "we" => assert!(
            arguments.get("note").is_none_or(|note| note == "x y" || note == "\"q\""),
            "{arguments:?}"
        ),
        "python" => assert!(arguments["code"].is_string(), "{arguments:?}"),
        other => assert_eq!(other, "time"),
    }
}

fn formats(tokenizer: &Tokenizer) -> Vec<AnswerFormat> {
    let names: BTreeSet<&str> =
        ToolFormat::names().map(|name| ToolFormat::named(name).unwrap().name()).collect();
    let detected = AnswerFormat::detect(tokenizer, None);
    let format = |name: &str| {
        let reasoning = match name {
            "harmony" | "cohere" | "kimi_k3" | "solar_open" => name,
            _ => "none",
        };
        detected.from_names(tokenizer, reasoning, name).unwrap()
    };
    names.into_iter().map(format).collect()
}

/// Samples answers of one family and checks the parser's result.
fn check(
    format: &AnswerFormat,
    (tokenizer, factory): (&Tokenizer, &ParserFactory),
    demand: ToolDemand,
) {
    let grammar = format.grammar(&tools(), demand, None).unwrap().unwrap();
    let mut draws = Draws(0x9e37_79b9_7f4a_7c15);
    let ends = ends(format.tools.unwrap().name());
    let (mut num_answers, mut num_calls) = (0, 0);
    for _ in 0..400 {
        if num_answers >= 16 && num_calls > 0 {
            break;
        }
        let Some(answer) = draw(factory, tokenizer, &grammar, &ends, &mut draws) else {
            continue;
        };
        num_answers += 1;
        let segments = parse(AnswerParser::new(format, Some(tools()), false), &[&answer]);
        let mut count = 0;
        for segment in &segments {
            match segment {
                Segment::Call(call) => {
                    check_arguments(&call.name, &call.arguments);
                    count += 1;
                }
                Segment::Text(text) => assert!(
                    demand.text_before || text.trim().is_empty(),
                    "{format:?} {demand:?}: text {text:?} of {answer:?}\n{grammar}"
                ),
                other => panic!("{other:?}"),
            }
        }
        let fits = match demand.calls {
            CallCount::Any => true,
            CallCount::AtLeastOne => count > 0,
            CallCount::ExactlyOne => count == 1,
        };
        assert!(fits, "{format:?} {demand:?}: {count} calls in {answer:?}\n{grammar}");
        num_calls += count;
    }
    assert!(num_answers >= 16, "{format:?} {demand:?}: {num_answers} answers\n{grammar}");
    assert!(num_calls > 0, "{format:?} {demand:?}: no call\n{grammar}");
}

/// A model of Functionary writes Python as it is, where the tool's schema allows any text.
#[test]
fn a_grammar_allows_source_code_for_the_tool_that_takes_it() {
    let tokenizer = tokenizer(SPECIAL);
    let factory = factory(&tokenizer);
    let format = AnswerFormat::detect(&tokenizer, None);
    let format = format.from_names(&tokenizer, "none", "functionary_v3_2").unwrap();
    let allows = |name: &str, code: Value, answer: &str| {
        let tool = ToolSpec {
            name: name.to_owned(),
            parameters: json!({"type": "object", "properties": {"code": code}, "required": ["code"]}),
            strict: true,
        };
        let demand = ToolDemand { calls: CallCount::AtLeastOne, text_before: false };
        let grammar = format.grammar(&[tool], demand, None).unwrap().unwrap();
        let parser = factory.create_parser(TopLevelGrammar::from_lark(grammar));
        let mut matcher = Matcher::new(parser);
        let tokens = tokenizer.encode(answer, false).unwrap();
        let taken = matcher.try_consume_tokens(&tokens).unwrap();
        taken == tokens.len() && matcher.is_accepting().unwrap()
    };
    let text = json!({"type": "string"});
    assert!(allows("python", text.clone(), "python\nfor x in range(3):\n    print(x >> 1)"));
    assert!(allows("python", text.clone(), "python\n{\"code\": \"1\"}"));
    assert!(allows("python", text.clone(), "python\n{\"code\": \"1\"}>>>python\nprint(1)"));
    assert!(!allows("python", text.clone(), "python\n"));
    assert!(!allows("python", text.clone(), "python\n1\n>>>python\n2"));
    assert!(!allows("python", json!({"type": "string", "maxLength": 3}), "python\nprint(1)"));
    assert!(!allows("shell", text, "shell\nls"));
}

#[test]
fn lengths_of_values_do_not_count_the_newline_before_the_tag() {
    let tokenizer = tokenizer(SPECIAL);
    let factory = factory(&tokenizer);
    let format = AnswerFormat::detect(&tokenizer, None);
    let format = format.from_names(&tokenizer, "none", "qwen3_coder").unwrap();
    let allows = |bounds: Value, value: &str| {
        let mut text = json!({"type": "string"});
        text.as_object_mut().unwrap().extend(bounds.as_object().unwrap().clone());
        let tool = ToolSpec {
            name: "f".to_owned(),
            parameters: json!({"type": "object", "properties": {"a": text}, "required": ["a"]}),
            strict: true,
        };
        let demand = ToolDemand { calls: CallCount::AtLeastOne, text_before: false };
        let grammar = format.grammar(&[tool], demand, None).unwrap().unwrap();
        let parser = factory.create_parser(TopLevelGrammar::from_lark(grammar));
        let mut matcher = Matcher::new(parser);
        let answer = format!(
            "<tool_call>\n<function=f>\n<parameter=a>\n{value}</parameter>\n</function>\n</tool_call>"
        );
        let tokens = tokenizer.encode(&answer, false).unwrap();
        let taken = matcher.try_consume_tokens(&tokens).unwrap();
        taken == tokens.len() && matcher.is_accepting().unwrap()
    };
    let most = || json!({"maxLength": 3});
    let between = || json!({"minLength": 3, "maxLength": 4});
    let (none, least) = (|| json!({"maxLength": 0}), || json!({"minLength": 2}));
    for (bounds, values) in [
        (most(), &["", "\n", "abc", "abc\n", "a\nb\n", "ab\n\n", "é€x"][..]),
        (between(), &["abc", "abc\n", "abcd\n", "abcd", "ab\n\n"]),
        (none(), &["", "\n"]),
        (least(), &["ab", "ab\n", "a\n\n", "abcdefgh\n"]),
    ] {
        for value in values {
            assert!(allows(bounds.clone(), value), "{bounds} {value:?}");
        }
    }
    for (bounds, values) in [
        (most(), &["abcd", "abcd\n", "abc\n\n", "abcdefgh"][..]),
        (between(), &["ab", "ab\n", "abcde", "abcde\n"]),
        (none(), &["a", "a\n", "\n\n"]),
        (least(), &["", "\n", "a", "a\n"]),
    ] {
        for value in values {
            assert!(!allows(bounds.clone(), value), "{bounds} {value:?}");
        }
    }
}

/// Samples answers of every family, with these special tokens in the vocabulary.
fn check_all(special: &[&str]) {
    let tokenizer = tokenizer(special);
    let factory = factory(&tokenizer);
    for format in formats(&tokenizer) {
        for calls in [CallCount::ExactlyOne, CallCount::AtLeastOne, CallCount::Any] {
            let text_before = calls == CallCount::Any;
            check(&format, (&tokenizer, &factory), ToolDemand { calls, text_before });
        }
        let demand = ToolDemand { calls: CallCount::AtLeastOne, text_before: true };
        check(&format, (&tokenizer, &factory), demand);
    }
}

#[test]
fn text_that_a_grammar_with_special_tokens_allows_parses_as_a_call() {
    check_all(SPECIAL);
}

#[test]
fn text_that_a_grammar_without_special_tokens_allows_parses_as_a_call() {
    check_all(&SPECIAL[SPECIAL.len() - 1..]);
}

#[test]
fn special_tokens_are_told_by_their_numbers() {
    let tokenizer = tokenizer(SPECIAL);
    let format = AnswerFormat::detect(&tokenizer, None);
    let format = format.from_names(&tokenizer, "none", "kimi_k2").unwrap();
    let kept = format.kept_tokens();
    let begin = tokenizer.token_id("<|tool_calls_section_begin|>").unwrap();
    assert!(kept.contains(&begin));
    assert!(!kept.contains(&tokenizer.token_id("[ARGS]").unwrap()));
    let demand = ToolDemand { calls: CallCount::ExactlyOne, text_before: false };
    let grammar = format.grammar(&tools(), demand, None).unwrap().unwrap();
    assert!(grammar.contains(&format!("<[{begin}]>")), "{grammar}");
}

#[test]
fn a_call_with_special_tokens_comes_through_the_detokeniser() {
    let tokenizer = Arc::new(tokenizer(SPECIAL));
    let format = AnswerFormat::detect(&tokenizer, None);
    let format = format.from_names(&tokenizer, "none", "deepseek_v31").unwrap();
    let answer = "[ARGS]é<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>time<｜tool▁sep｜>{}\
                  <｜tool▁call▁end｜><｜tool▁calls▁end｜><the end>";
    let mut detokenizer = Detokenizer::keeping(Arc::clone(&tokenizer), format.kept_tokens());
    let tokens = tokenizer.encode(answer, false).unwrap();
    let mut pieces: Vec<String> = tokens.iter().map(|token| detokenizer.push(*token)).collect();
    pieces.push(detokenizer.finish());
    let segments = parse(AnswerParser::new(&format, Some(tools()), false), &pieces);
    let [Segment::Text(text), Segment::Call(call)] = &segments[..] else { panic!("{segments:?}") };
    assert_eq!((text.as_str(), call.name.as_str(), call.arguments.as_str()), ("é", "time", "{}"));
}

#[test]
fn what_plain_text_cannot_hold_to_is_refused_by_name() {
    let tokenizer = tokenizer(SPECIAL);
    let format = AnswerFormat::detect(&tokenizer, None);
    let format = format.from_names(&tokenizer, "none", "qwen3_coder").unwrap();
    let demand = ToolDemand { calls: CallCount::ExactlyOne, text_before: false };
    let tool = |strict| ToolSpec {
        name: "f".to_owned(),
        parameters: json!({"type": "object", "properties": {"x": {"type": "string", "pattern": "a+"}}}),
        strict,
    };
    let refused = format.grammar(&[tool(true)], demand, None).unwrap();
    let Err(ToolGrammarError::Keyword { parameter, keyword, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!((parameter.as_str(), keyword.as_str()), ("x", "pattern"));
    assert!(format.grammar(&[tool(false)], demand, None).unwrap().is_ok());
    assert_eq!(format.grammar(&[], demand, None), Some(Err(ToolGrammarError::NoTools)));
    assert_eq!(format.without_tools().grammar(&[tool(true)], demand, None), None);
}
