//! Hostile constraints: deep, long and tangled ones are compiled or rejected, and never crash the
//! process.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::OnceLock;

use jackalope_text::Tokenizer;
use jackalope_text::grammar::{Constraint, GrammarCompiler, GrammarError};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// Stack size of a server's worker thread.
const WORKER_STACK_BYTES: usize = 2 << 20;

fn compiler() -> &'static GrammarCompiler {
    static COMPILER: OnceLock<GrammarCompiler> = OnceLock::new();
    COMPILER.get_or_init(|| {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/jackalope-mini");
        GrammarCompiler::new(&Tokenizer::load(&dir).unwrap()).unwrap()
    })
}

/// Compiles a constraint and follows it for some tokens, on a thread with the stack of a server's
/// worker. Checks that an error has a short message.
fn compile_and_follow(constraint: Constraint) -> Result<(), GrammarError> {
    let work = move || {
        let grammar = compiler().compile(&constraint)?;
        let mut matcher = grammar.start();
        let mut words = vec![0; 4096];
        for _ in 0..8 {
            // A grammar may become too complex to follow, which counts as rejected too.
            matcher.fill(&mut words)?;
            let word = words.iter().position(|word| *word != 0);
            let Some(word) = word else { break };
            matcher.accept(word as u32 * 32 + words[word].trailing_zeros())?;
        }
        drop(matcher.clone());
        Ok(())
    };
    let thread = std::thread::Builder::new().stack_size(WORKER_STACK_BYTES);
    let result: Result<(), GrammarError> = thread.spawn(work).unwrap().join().unwrap();
    if let Err(err) = &result {
        assert!(!err.to_string().is_empty() && err.to_string().len() < 1000, "{err}");
    }
    result
}

/// Definitions `d0` to `d{len}`, each of which refers to the next one through `link`.
fn chain(len: usize, link: impl Fn(Value) -> Value) -> Value {
    let mut defs = Map::new();
    for idx in 0..len {
        defs.insert(format!("d{idx}"), link(json!({"$ref": format!("#/$defs/d{}", idx + 1)})));
    }
    defs.insert(format!("d{len}"), json!({"type": "null"}));
    json!({"$ref": "#/$defs/d0", "$defs": defs})
}

type Link = fn(Value) -> Value;

const LINKS: [(&str, Link); 8] = [
    ("items", |it| json!({"type": "array", "items": it})),
    ("properties", |it| json!({"type": "object", "properties": {"a": it}, "required": ["a"]})),
    ("anyOf", |it| json!({"anyOf": [{"type": "string"}, it]})),
    ("oneOf", |it| json!({"oneOf": [{"type": "string"}, it]})),
    ("allOf", |it| json!({"allOf": [it]})),
    ("prefixItems", |it| json!({"type": "array", "prefixItems": [it]})),
    ("additionalProperties", |it| json!({"type": "object", "additionalProperties": it})),
    ("plain", |it| it),
];

#[test]
fn chains_of_references_of_any_length_are_compiled_or_refused_with_the_limit() {
    for (name, link) in LINKS {
        for len in [10, 300, 1500, 4000] {
            let result = compile_and_follow(Constraint::JsonSchema(chain(len, link)));
            if len == 10 {
                // `oneOf` cannot be enforced: both alternatives accept strings.
                assert_eq!(result.is_ok(), name != "oneOf", "{name}: {result:?}");
            } else if 1500 <= len {
                let err = result.expect_err("far too deep");
                assert!(matches!(err, GrammarError::TooLarge { limit, .. } if 0 < limit), "{err}");
            }
        }
    }
}

#[test]
fn chains_of_rules_and_terminals_of_any_length_are_compiled_or_refused_with_the_limit() {
    let chain = |name: &str, len: usize, body: &str| {
        let mut grammar = format!("start: {name}0\n");
        for idx in 0..len {
            let next = format!("{name}{}", idx + 1);
            writeln!(grammar, "{name}{idx}: {}", body.replace('@', &next)).unwrap();
        }
        writeln!(grammar, "{name}{len}: \"z\"").unwrap();
        grammar
    };
    for (name, body) in [
        ("r", "@"),
        ("r", "\"a\" @"),
        ("r", "\"a\" @ | \"b\""),
        ("r", "(\"a\" @)*"),
        ("T", "@"),
        ("T", "\"a\" @"),
        ("T", "\"a\" @ | \"b\""),
        ("T", "(\"a\" @)?"),
    ] {
        for len in [10, 300, 1500, 2040, 10_000] {
            let result = compile_and_follow(Constraint::Lark(chain(name, len, body)));
            if len == 10 {
                assert_eq!(result, Ok(()), "{name} {body}");
            } else if len == 10_000 {
                let err = result.expect_err("far too many");
                assert!(matches!(err, GrammarError::TooLarge { .. }), "{err}");
            }
        }
    }
}

#[test]
fn brackets_and_regular_expressions_of_any_depth_are_compiled_or_refused() {
    for depth in [10, 60, 100, 1000, 8000] {
        let nested = |open: &str, inner: &str, close: &str| {
            format!("{}{inner}{}", open.repeat(depth), close.repeat(depth))
        };
        let lark = |body: String| Constraint::Lark(format!("start: {body}\n"));
        let hostile = [
            lark(nested("(", "\"a\"", ")")),
            lark(nested("[", "\"a\"", "]")),
            lark(nested("(\"b\" ", "\"a\"", ")?")),
            lark("\"a\" ".repeat(depth)),
            lark(format!("\"a\" {}", "| \"b\" \"c\" ".repeat(depth))),
            Constraint::Regex(nested("(", "a", ")")),
            Constraint::Regex(nested("(?:a|", "b", ")*")),
            Constraint::Regex("a?".repeat(depth)),
            Constraint::Regex("(a|b)".repeat(depth)),
            Constraint::Regex(format!("a{{{depth}}}")),
            Constraint::Regex(format!("(a{{1,{depth}}}){{1,{depth}}}")),
        ];
        for constraint in hostile {
            let result = compile_and_follow(constraint.clone());
            assert!(depth != 10 || result.is_ok(), "{constraint:?}: {result:?}");
        }
    }
}

/// Schemas whose definitions refer to each other at random.
fn tangle() -> impl Strategy<Value = Value> {
    let definition = prop::collection::vec((0..LINKS.len(), 0..40_usize), 1..4);
    prop::collection::vec(definition, 1..40).prop_map(|definitions| {
        let num_definitions = definitions.len();
        let mut defs = Map::new();
        for (idx, links) in definitions.into_iter().enumerate() {
            let target = |to: usize| json!({"$ref": format!("#/$defs/d{}", to % num_definitions)});
            let schemas: Vec<Value> =
                links.into_iter().map(|(link, to)| LINKS[link].1(target(to))).collect();
            let schema = match schemas.len() {
                1 => schemas[0].clone(),
                _ => json!({"anyOf": schemas}),
            };
            defs.insert(format!("d{idx}"), schema);
        }
        json!({"$ref": "#/$defs/d0", "$defs": defs})
    })
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 64, ..ProptestConfig::default() })]

    #[test]
    fn schemas_that_refer_to_each_other_at_random_never_end_the_process(schema in tangle()) {
        let _ = compile_and_follow(Constraint::JsonSchema(schema));
    }

    #[test]
    fn random_regular_expressions_never_end_the_process(regex in r"[()|*+?{},0-9a-c\\\[\].^$]{0,60}") {
        let _ = compile_and_follow(Constraint::Regex(regex));
    }

    #[test]
    fn random_grammars_never_end_the_process(
        grammar in "start: (r|T|\"a\"| ){1,6}\n((r|r1|T|U)(: | \\| |\n|\"x\"|r|T|r1|U|/[a-c(|)*]{0,6}/|[()\\[\\]*+?]){1,12}\n){1,6}"
    ) {
        let _ = compile_and_follow(Constraint::Lark(grammar));
    }
}
