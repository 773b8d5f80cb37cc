//! Grammars over real vocabularies: a token is allowed exactly if the text can still be completed after it.

mod schemas;

use std::path::Path;
use std::sync::OnceLock;

use jackalope_text::grammar::{
    CompiledGrammar, Constraint, GrammarCompiler, GrammarError, Matcher,
};
use jackalope_text::{TokenId, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Numbers that a model has beyond the tokenizer's.
const NUM_PADDED: usize = 70;

struct Model {
    tokenizer: Tokenizer,
    compiler: GrammarCompiler,
}

fn shipped() -> &'static Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL.get_or_init(|| {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/jackalope-mini");
        let tokenizer = Tokenizer::load(&dir).unwrap();
        Model { compiler: GrammarCompiler::new(&tokenizer).unwrap(), tokenizer }
    })
}

impl Model {
    fn compile(&self, constraint: &Constraint) -> Result<CompiledGrammar, GrammarError> {
        self.compiler.compile(constraint)
    }

    fn allowed(&self, matcher: &mut Matcher) -> Vec<TokenId> {
        let mut words = vec![u32::MAX; (self.tokenizer.vocab_size() + NUM_PADDED).div_ceil(32)];
        matcher.fill(&mut words).unwrap();
        let is_set = |token: &TokenId| words[*token as usize / 32] >> (token % 32) & 1 == 1;
        (0..words.len() as u32 * 32).filter(is_set).collect()
    }

    /// Samples allowed tokens at random, and ends at random where the end is allowed.
    fn random_text(
        &self,
        grammar: &CompiledGrammar,
        state: &mut u64,
        most: usize,
    ) -> Option<String> {
        let mut matcher = grammar.start();
        let mut bytes = Vec::new();
        for _ in 0..most {
            let allowed = self.allowed(&mut matcher);
            assert!(!allowed.is_empty(), "something may always follow {}", lossy(&bytes));
            let end = allowed.iter().copied().find(|token| self.is_end(*token));
            let token = match end {
                Some(end) if next(state).is_multiple_of(3) => end,
                // There are few short tokens; half of the samples are taken from them, or no bracket would ever close.
                _ if next(state).is_multiple_of(2) => {
                    let short = |it: &&TokenId| self.tokenizer.token_bytes(**it).len() <= 1;
                    let short: Vec<TokenId> = allowed.iter().filter(short).copied().collect();
                    *pick(if short.is_empty() { &allowed } else { &short }, state)
                }
                _ => *pick(&allowed, state),
            };
            matcher.accept(token).unwrap();
            if self.is_end(token) {
                assert!(matcher.is_over() && self.allowed(&mut matcher).is_empty());
                return Some(String::from_utf8(bytes).expect("a complete text is UTF-8"));
            }
            assert!(!self.tokenizer.is_special(token), "{token} is no text");
            bytes.extend(self.tokenizer.token_bytes(token));
        }
        None
    }

    fn is_end(&self, token: TokenId) -> bool {
        self.tokenizer.eos_token_ids().contains(&token)
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Xorshift (Marsaglia 2003).
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn pick<'a, T>(all: &'a [T], state: &mut u64) -> &'a T {
    &all[(next(state) % all.len() as u64) as usize]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The definition: a token is allowed if some choice begins with the text and the token's bytes,
    /// an end token if the text is a choice.
    #[test]
    fn a_choice_allows_exactly_what_can_be_completed(
        choices in prop::collection::vec("[a-c é-]{1,6}|[a-z]{1,12}|\\PC{1,4}", 1..8),
        seed in 1u64..,
    ) {
        let model = shipped();
        let mut state = seed;
        let grammar = model.compile(&Constraint::Choice(choices.clone())).unwrap();
        let mut matcher = grammar.start();
        let mut text: Vec<u8> = Vec::new();
        loop {
            let allowed = model.allowed(&mut matcher);
            let can_follow = |token: TokenId| {
                if model.is_end(token) {
                    return choices.iter().any(|choice| choice.as_bytes() == text);
                }
                let bytes = model.tokenizer.token_bytes(token);
                let longer = [&text[..], &bytes[..]].concat();
                let is_text = !bytes.is_empty() && !model.tokenizer.is_special(token);
                is_text && choices.iter().any(|choice| choice.as_bytes().starts_with(&longer))
            };
            let expected: Vec<TokenId> = (0..model.tokenizer.vocab_size() as TokenId)
                .filter(|token| can_follow(*token))
                .collect();
            prop_assert_eq!(&allowed, &expected, "after {:?} of {:?}", lossy(&text), choices);
            let is_choice = choices.iter().any(|choice| choice.as_bytes() == text);
            prop_assert_eq!(matcher.may_end().unwrap(), is_choice);
            let token = *pick(&allowed, &mut state);
            matcher.accept(token).unwrap();
            if model.is_end(token) {
                break;
            }
            text.extend(model.tokenizer.token_bytes(token));
        }
    }
}

/// Function that checks in plain code whether a value matches a schema.
type Check = fn(&Value) -> bool;

#[test]
fn random_texts_are_what_their_schema_says() {
    let cases: [(Value, Check); 9] = [
        (
            json!({"type": "object", "properties": {"a": {"type": "integer", "minimum": -3, "maximum": 14}},
            "required": ["a"], "additionalProperties": false}),
            |it| {
                it.as_object().unwrap().len() == 1 && (-3..=14).contains(&it["a"].as_i64().unwrap())
            },
        ),
        (
            json!({"type": "array", "items": {"enum": ["é", "\"", 3, null]}, "minItems": 2, "maxItems": 3}),
            |it| (2..=3).contains(&it.as_array().unwrap().len()),
        ),
        (json!({"type": "string", "format": "date"}), |it| {
            let date = it.as_str().unwrap();
            let (year, rest) = date.split_once('-').unwrap();
            let year: u32 = year.parse().unwrap();
            let leaps =
                year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
            0 < year && (rest != "02-29" || leaps)
        }),
        (json!({"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 99}), |it| {
            it.as_u64().unwrap().is_multiple_of(7)
        }),
        (json!({"type": "string", "minLength": 2, "maxLength": 3}), |it| {
            (2..=3).contains(&it.as_str().unwrap().chars().count())
        }),
        (
            json!({"properties": {"ab": {"type": "string"}}, "patternProperties": {"^a": {"maxLength": 2}},
            "type": "object", "required": ["ab"], "additionalProperties": false}),
            |it| it["ab"].as_str().unwrap().chars().count() <= 2,
        ),
        (json!({"type": "integer", "format": "uint8"}), |it| it.as_u64().unwrap() <= 255),
        (
            json!({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "required": ["left"],
            "properties": {"left": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/tree"}]}},
            "additionalProperties": false}}}),
            |it| it.get("left").is_some(),
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
            "additionalProperties": {"type": "null"}}),
            |it| {
                it["a"].is_boolean()
                    && it.as_object().unwrap().iter().all(|(key, it)| key == "a" || it.is_null())
            },
        ),
    ];
    let mut state = 9;
    for (schema, check) in cases {
        let grammar = shipped().compile(&Constraint::JsonSchema(schema.clone())).unwrap();
        let texts = (0..40).filter_map(|_| shipped().random_text(&grammar, &mut state, 150));
        let texts: Vec<String> = texts.collect();
        assert!(10 < texts.len(), "{schema}: only {} texts came to an end", texts.len());
        for text in texts {
            let value: Value = serde_json::from_str(&text).unwrap();
            assert!(check(&value), "{schema}\n{text}");
            assert!(!text.contains("  ") || text.contains('"'), "blanks are bounded: {text}");
        }
    }
}

#[test]
fn what_cannot_be_enforced_is_refused_by_keyword_and_place() {
    let refused = |schema: Value| {
        let err = shipped().compile(&Constraint::JsonSchema(schema)).map(|_| ()).unwrap_err();
        match err {
            GrammarError::Keyword { keyword, path, .. } => format!("{keyword} {path}"),
            other => other.to_string(),
        }
    };
    let inside = |keyword: &str, value: Value| {
        let mut schema = json!({"type": "object", "properties": {"a/b": {}}});
        schema["properties"]["a/b"][keyword] = value;
        refused(schema)
    };
    for keyword in [
        "not",
        "uniqueItems",
        "contains",
        "if",
        "then",
        "else",
        "dependentSchemas",
        "dependentRequired",
        "dependencies",
        "propertyNames",
        "unevaluatedProperties",
        "unevaluatedItems",
        "$dynamicRef",
        "nullable",
        "minLenght",
        "x-guidance",
        "minContains",
    ] {
        assert_eq!(inside(keyword, json!(true)), format!("{keyword} #/properties/a~1b"));
    }
    let place = " #/properties/a~1b";
    for (keyword, value) in [
        ("format", json!("regex")),
        ("$ref", json!("https://example.org/schema")),
        ("$ref", json!("#/$defs/missing")),
        ("$ref", json!("#anchor")),
        ("type", json!("text")),
        ("enum", json!([])),
        ("const", json!(9_007_199_254_740_993u64)),
        ("multipleOf", json!(0)),
        ("minProperties", json!(2)),
        ("additionalItems", json!(false)),
        ("$id", json!("https://example.org/")),
        ("maxLength", json!(-1)),
    ] {
        assert_eq!(inside(keyword, value), format!("{keyword}{place}"));
    }
    let overlapping = json!({"oneOf": [{"type": "integer"}, {"type": "number"}]});
    assert!(refused(overlapping).contains("oneOf"));
    assert!(refused(json!(false)).starts_with("false"));
    assert!(refused(json!({"type": "integer", "minimum": 3, "maximum": 2})).contains("minimum"));
    assert_eq!(refused(json!({"pattern": "(?=a)b"})), "pattern #");
    let mut deep = json!({});
    (0..70).for_each(|_| deep = json!({"items": deep}));
    assert!(refused(deep).contains("levels of nesting"));
    let long = json!({"description": "x".repeat(300 << 10)});
    assert!(refused(long).contains("more than the 262144"));
}

#[test]
fn what_only_describes_is_accepted() {
    let schema = json!({"$schema": "http://json-schema.org/draft-07/schema#", "$id": "urn:x", "title": "A",
        "description": "B", "default": 1, "examples": [1], "$comment": "c", "deprecated": true,
        "x-order": 1, "type": "integer", "format": "int32"});
    shipped().compile(&Constraint::JsonSchema(schema)).unwrap();
}

#[test]
fn other_constraints_are_compiled_or_refused() {
    let model = shipped();
    let mut state = 5;
    let mut text = |constraint: Constraint| {
        let grammar = model.compile(&constraint).unwrap();
        (0..50).find_map(|_| model.random_text(&grammar, &mut state, 60)).unwrap()
    };
    assert!(text(Constraint::JsonObject).starts_with('{'));
    let found = text(Constraint::Regex(r"^\d{3}-[xy]/\$$".to_owned()));
    assert!(found.len() == 7 && found.ends_with("/$") && found.as_bytes()[3] == b'-', "{found}");
    let lark = r#"start: "<call>" %json {"type": "object", "properties": {"a": {"type": "integer"}},
        "required": ["a"], "additionalProperties": false} "</call>" // %json {"not": 1}"#;
    let found = text(Constraint::Lark(lark.to_owned()));
    let inner = found.strip_prefix("<call>").unwrap().strip_suffix("</call>").unwrap();
    assert!(serde_json::from_str::<Value>(inner).unwrap()["a"].is_number());

    // A tool that need not be strict may get what two alternatives accept.
    let overlapping = r#"start: %json {"x-guidance": {"lenient": true},
        "oneOf": [{"type": "integer"}, {"type": "number"}]}"#;
    assert!(text(Constraint::Lark(overlapping.to_owned())).parse::<f64>().is_ok());

    let refused = |constraint| model.compile(&constraint).map(|_| ()).unwrap_err().to_string();
    let strict = r#"start: %json {"oneOf": [{"type": "integer"}, {"type": "number"}]}"#;
    assert!(refused(Constraint::Lark(strict.to_owned())).contains("oneOf"));
    let gbnf = refused(Constraint::Lark("root ::= \"a\"".to_owned()));
    assert!(gbnf.contains("Lark"), "{gbnf}");
    let schema = refused(Constraint::Lark("start: %json {\"not\": {}}".to_owned()));
    assert!(schema.contains("not at #"), "{schema}");
    assert!(refused(Constraint::Lark("start: nothing".to_owned())).contains("grammar"));
    assert!(refused(Constraint::Regex("(a".to_owned())).contains("regular expression"));
    assert_eq!(refused(Constraint::Choice(vec![])), GrammarError::NoChoice.to_string());
    assert!(refused(Constraint::Regex("a".repeat(20 << 10))).contains("16384"));
}

#[test]
fn a_special_token_is_allowed_only_where_the_grammar_names_it() {
    let model = shipped();
    let special: Vec<TokenId> = (0..model.tokenizer.vocab_size() as TokenId)
        .filter(|token| model.tokenizer.is_special(*token) && !model.is_end(*token))
        .collect();
    let named = special[0];
    let grammar = model.compile(&Constraint::Lark(format!("start: <[{named}]> /.*/"))).unwrap();
    let mut matcher = grammar.start();
    assert_eq!(model.allowed(&mut matcher), [named]);
    matcher.accept(named).unwrap();
    let allowed = model.allowed(&mut matcher);
    assert!(allowed.iter().all(|it| model.is_end(*it) || !model.tokenizer.is_special(*it)));
}

#[test]
fn a_token_that_is_not_allowed_is_refused() {
    let grammar = shipped().compile(&Constraint::Choice(vec!["yes".to_owned()])).unwrap();
    let token = shipped().tokenizer.encode("no", false).unwrap()[0];
    let end = shipped().tokenizer.eos_token_ids()[0];
    for token in [token, end, 1 << 20] {
        assert_eq!(grammar.start().accept(token), Err(GrammarError::Forbidden { token }));
    }
}

/// If a text can be parsed in many ways, following it takes longer with each token.
#[test]
fn a_grammar_that_takes_too_long_to_follow_is_given_up() {
    let model = shipped();
    let ambiguous = "start: list\nlist: list list | list list list | WORD\nWORD: /[a-z ]{1,4}/\n";
    let grammar = model.compile(&Constraint::Lark(ambiguous.to_owned())).unwrap();
    let token = model.tokenizer.encode("a", false).unwrap()[0];
    let mut matcher = grammar.start();
    let mut words = vec![0; model.tokenizer.vocab_size().div_ceil(32)];
    let err = (0..4_000)
        .find_map(|_| matcher.fill(&mut words).and_then(|()| matcher.accept(token)).err())
        .expect("it is given up");
    let is_too_slow = matches!(err, GrammarError::TooSlow { .. } | GrammarError::Match { .. });
    assert!(is_too_slow, "{err}");
}
