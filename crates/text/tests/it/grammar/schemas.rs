//! Schemas over a real vocabulary: exactly the valid texts can be written, byte by byte.

use std::sync::OnceLock;

use jackalope_text::TokenId;
use jackalope_text::grammar::{CompiledGrammar, Constraint, GrammarError};
use serde_json::{Value, json};

use super::shipped;

/// Returns the token of each byte.
fn tokens() -> &'static [Option<TokenId>] {
    static TOKENS: OnceLock<Vec<Option<TokenId>>> = OnceLock::new();
    TOKENS.get_or_init(|| {
        let tokenizer = &shipped().tokenizer;
        let mut tokens = vec![None; 256];
        for token in (0..tokenizer.vocab_size() as TokenId).rev() {
            if let [byte] = tokenizer.token_bytes(token)[..]
                && !tokenizer.is_special(token)
            {
                tokens[usize::from(byte)] = Some(token);
            }
        }
        tokens
    })
}

fn token(byte: u8) -> TokenId {
    tokens()[usize::from(byte)].expect("each byte has a token")
}

fn compile(schema: &Value) -> Result<CompiledGrammar, GrammarError> {
    shipped().compiler.compile(&Constraint::JsonSchema(schema.clone()))
}

/// Whether the masks allow the text and its end.
fn allows(grammar: &CompiledGrammar, text: &str) -> bool {
    let mut matcher = grammar.start();
    let mut words = vec![0; shipped().tokenizer.vocab_size().div_ceil(32)];
    for byte in text.bytes() {
        let token = token(byte);
        matcher.fill(&mut words).unwrap();
        if words[token as usize / 32] >> (token % 32) & 1 == 0 {
            return false;
        }
        matcher.accept(token).unwrap();
    }
    matcher.may_end().unwrap()
}

/// Checks which texts a schema allows.
fn check(schema: &Value, valid: &[&str], invalid: &[&str]) {
    let grammar = compile(schema).unwrap_or_else(|err| panic!("{schema}: {err}"));
    for text in valid {
        assert!(allows(&grammar, text), "{schema} allows {text}");
    }
    for text in invalid {
        assert!(!allows(&grammar, text), "{schema} does not allow {text}");
    }
}

fn refusal(schema: &Value) -> String {
    match compile(schema) {
        Ok(_) => panic!("{schema} is compiled"),
        Err(err) => err.to_string(),
    }
}

#[test]
fn classes_that_exclude_quotes_and_backslashes_exclude_their_escapes() {
    for pattern in [r#"^[^"\\]{4}$"#, r#"^[^<>:"/\\|?*]{4}$"#, r#"^[^\x22\x5c]{4}$"#] {
        let schema = json!({"type": "string", "pattern": pattern});
        check(
            &schema,
            &[r#""abcd""#, r#""a\n\té""#],
            &[r#""\"abc""#, r#""abc\\""#, r#""a\u0001bc""#],
        );
    }
    let quotes = json!({"type": "string", "pattern": r#"^[^"]{4}$"#});
    check(&quotes, &[r#""a\\bc""#], &[r#""ab\"c""#, "\"ab\u{7f}c\""]);
    let all = json!({"type": "string", "pattern": "^[^a]{2}$"});
    check(&all, &[r#""\"\\""#, r#""bc""#], &[r#""ab""#]);
    let names = json!({
        "type": "object",
        "patternProperties": {r#"^[^"\\]+$"#: {"type": "null"}},
        "additionalProperties": false,
    });
    check(&names, &[r#"{"ab":null}"#, "{}"], &[r#"{"a\"":null}"#, r#"{"a\\":null}"#]);
}

#[test]
fn control_characters_are_refused_where_they_would_be_dropped() {
    for text in ["a\0b", "\u{1}", "\u{1f}", "\u{7f}"] {
        for schema in [
            json!({"const": text}),
            json!({"enum": ["z", {"a": [text]}]}),
            json!({"type": "string", "pattern": format!("^{text}$")}),
            json!({"type": "object", "patternProperties": {text: {}}}),
            json!({"type": "object", "properties": {text: {}}}),
            json!({"type": "object", "required": [text]}),
            json!({"const": {text: 1}}),
            json!({"type": "object", "properties": {"a": {"const": text}},
                "additionalProperties": false}),
        ] {
            let message = refusal(&schema);
            let number = format!(
                "U+{:04X}",
                u32::from(text.trim_matches(['a', 'b']).chars().next().unwrap())
            );
            assert!(message.contains(&number) && message.contains("hint: "), "{message}");
        }
    }
    check(&json!({"const": "a\n\u{8}\"\\"}), &[r#""a\n\b\"\\""#], &[r#""a""#]);
}

#[test]
fn patterns_mean_what_ecma_262_says() {
    let cases: [(&str, &[&str], &[&str]); 13] = [
        ("^.$", &["a", "é", "\u{85}", "😀"], &["\\n", "\\r", "\u{2028}", "\u{2029}", "ab"]),
        (r"^\s$", &[" ", "\u{a0}", "\u{feff}", "\u{2028}"], &["\u{85}", "\u{180e}", "a"]),
        (r"^\S$", &["\u{85}", "a"], &[" ", "\\n", "\u{feff}"]),
        (r"^\d\w$", &["1a", "1_"], &["٣a", "1é"]),
        (r"^[^\w]\W\D$", &["é- "], &["aé-", "é-1"]),
        (r"^[\w-.]$", &["-", ".", "a"], &[",", "+"]),
        (r"^[[a]$", &["[", "a"], &["]"]),
        ("^a|b$", &["ax", "xb"], &["xa", "bx"]),
        ("a.c", &["xabcx"], &["ac"]),
        (r"^[\u{1F600}-\u{1F64F}]\ud83d\ude00$", &["😁😀"], &["a😀"]),
        (r"^\p{Lu}\P{L}$", &["É1"], &["é1", "Éa"]),
        ("(?i)^k[^a]$", &["Kb", "kB"], &["kA", "ka"]),
        ("^(?<year>[0-9]{2,3}?)$", &["12", "123"], &["1", "1234"]),
    ];
    for (pattern, valid, invalid) in cases {
        let quoted = |texts: &[&str]| -> Vec<String> {
            texts.iter().map(|it| format!("\"{it}\"")).collect()
        };
        let (valid, invalid) = (quoted(valid), quoted(invalid));
        let valid: Vec<&str> = valid.iter().map(String::as_str).collect();
        let invalid: Vec<&str> = invalid.iter().map(String::as_str).collect();
        check(&json!({"type": "string", "pattern": pattern}), &valid, &invalid);
    }
    for (pattern, reason) in [
        ("^[[:alpha:]]$", "[: in a class"),
        (r"^\a$", r"\a, which"),
        ("(?x)^a b$", "(?x"),
        ("(a", "a ( without its )"),
        (r"^\p{Nonsense}$", "Unicode property not found"),
        ("(a$)+b", "anchors"),
    ] {
        let message = refusal(&json!({"type": "string", "pattern": pattern}));
        assert!(message.contains(reason), "{pattern}: {message}");
    }
}

#[test]
fn exclusive_bounds_are_enforced() {
    let number = |bounds: Value| {
        let mut schema = json!({"type": "number"});
        schema.as_object_mut().unwrap().extend(bounds.as_object().unwrap().clone());
        schema
    };
    check(
        &number(json!({"exclusiveMinimum": 0, "exclusiveMaximum": 0.5})),
        &["0.1", "0.0001", "0.49"],
        &["0", "0.0", "0.00", "-0", "0.5", "0.50"],
    );
    check(
        &number(json!({"exclusiveMinimum": 5, "maximum": 5.75})),
        &["5.001", "5.75", "5.70"],
        &["5", "5.0", "5.76", "4.9"],
    );
    check(
        &number(json!({"minimum": -0.01, "exclusiveMaximum": 0})),
        &["-0.01", "-0.001"],
        &["-0", "0", "-0.0", "-0.02"],
    );
    check(
        &number(json!({"minimum": -2.5, "exclusiveMaximum": -2})),
        &["-2.5", "-2.1"],
        &["-2", "-2.0", "-2.6"],
    );
    check(
        &number(json!({"minimum": 3, "exclusiveMinimum": true, "maximum": 3.5})),
        &["3.1", "3.5"],
        &["3", "3.0"],
    );
    check(
        &json!({"type": "number", "allOf": [{"exclusiveMinimum": 0}, {"maximum": 0.5}]}),
        &["0.5", "0.25"],
        &["0", "0.0", "0.6"],
    );
    check(
        &json!({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 3}),
        &["1", "2"],
        &["0", "3", "-1"],
    );
}

#[test]
fn numbers_beyond_exact_ones_are_refused_or_bound_by_the_nearest_exact_one() {
    let min: Value = serde_json::from_str("-1e20").unwrap();
    for kind in ["integer", "number"] {
        let all = json!({"type": kind, "minimum": min, "maximum": 1e300});
        check(&all, &["9007199254740992", "-9007199254740992", "0"], &["9007199254740993"]);
        let beyond = json!({"type": kind, "exclusiveMinimum": i64::MIN, "maximum": u64::MAX});
        check(&beyond, &["9007199254740992", "-7"], &["-9223372036854775808"]);
        for bounds in [
            json!({"minimum": -1e20, "maximum": -1e19}),
            json!({"minimum": 1e19, "maximum": 1e21}),
            json!({"minimum": 1e20}),
            json!({"exclusiveMaximum": i64::MIN}),
        ] {
            let mut schema = json!({"type": kind});
            schema.as_object_mut().unwrap().extend(bounds.as_object().unwrap().clone());
            assert!(refusal(&schema).contains("beyond 2^53"), "{schema}");
        }
    }
    for schema in ["12345678901234567890123", "-9007199254740993", "1e300"] {
        for schema in [format!(r#"{{"const": {schema}}}"#), format!(r#"{{"enum": [{schema}]}}"#)] {
            let schema: Value = serde_json::from_str(&schema).unwrap();
            assert!(refusal(&schema).contains("beyond 2^53"), "{schema}");
        }
    }
}

#[test]
fn whole_numbers_are_numbers_where_schemas_are_combined() {
    check(&json!({"type": "number", "allOf": [{"type": "integer"}]}), &["3", "-7"], &["1.5"]);
    let bounded =
        json!({"allOf": [{"type": "number", "minimum": 0}, {"type": "integer", "maximum": 5}]});
    check(&bounded, &["0", "5"], &["6", "-1", "0.5"]);
    let member = json!({"type": "object", "required": ["a"], "additionalProperties": false,
        "properties": {"a": {"allOf": [{"type": "number"}, {"type": "integer"}]}}});
    check(&member, &[r#"{"a":3}"#], &[r#"{"a":3.5}"#, "{}"]);
    let never = json!({"type": "object", "properties": {"a": false}, "required": ["a"]});
    assert!(refusal(&never).contains("no value satisfies it"), "{}", refusal(&never));
}

#[test]
fn decimals_are_read_as_the_nearest_floats() {
    let schema = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let constant = schema(r#"{"const": 123456789.123456789123}"#);
    check(&constant, &["123456789.12345679"], &["123456789.1234568"]);
    let narrow = schema(
        r#"{"type": "number", "minimum": 123456789.987654321, "maximum": 123456789.987654343}"#,
    );
    check(&narrow, &["123456789.98765433"], &["123456789.98765431", "123456789.98765436"]);
    let small = schema(r#"{"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e-29}"#);
    let just_above = "0.00000000000000000000000000001000000000000000046";
    check(&small, &["0.000000000000000000000000000005"], &[just_above]);
}

/// The bounds are quarters, so floats hold all of these numbers exactly.
#[test]
fn all_kinds_of_bounds_are_enforced_around_whole_numbers() {
    let texts: Vec<String> = (-10..=10)
        .flat_map(|it| [format!("{}", f64::from(it) / 4.0), format!("{:.3}", f64::from(it) / 4.0)])
        .chain(["-0".to_owned(), "-0.0".to_owned()])
        .collect();
    for (low, high) in
        [(0, 2), (0, 4), (-2, 0), (-4, -2), (4, 7), (-1, 1), (-7, 5), (-8, -4), (1, 2)]
    {
        for (least, most) in [
            ("minimum", "maximum"),
            ("exclusiveMinimum", "maximum"),
            ("minimum", "exclusiveMaximum"),
            ("exclusiveMinimum", "exclusiveMaximum"),
        ] {
            let (low, high) = (f64::from(low) / 4.0, f64::from(high) / 4.0);
            let schema = json!({"type": "number", least: low, most: high});
            let grammar = compile(&schema).unwrap_or_else(|err| panic!("{schema}: {err}"));
            for text in &texts {
                let value: f64 = text.parse().unwrap();
                let is_low = value < low || (value == low && least != "minimum");
                let is_high = high < value || (value == high && most != "maximum");
                if is_low || is_high {
                    assert!(!allows(&grammar, text), "{schema} does not allow {text}");
                }
            }
        }
    }
}

#[test]
fn multiples_are_enforced_or_refused_if_their_common_one_is_too_large() {
    check(
        &json!({"type": "number", "multipleOf": 0.07, "minimum": 0, "maximum": 1}),
        &["0.07", "0.14", "0.70", "0.7"],
        &["0.01", "0.08", "0.071"],
    );
    check(
        &json!({"type": "number", "allOf": [{"multipleOf": 0.5}, {"multipleOf": 0.3}]}),
        &["1.5", "3", "-4.5"],
        &["0.5", "0.3", "1.6"],
    );
    // Its steps would fit into 32 bits in another order.
    let schema = json!({"type": "number",
        "allOf": [{"multipleOf": 49}, {"multipleOf": 15_000}, {"multipleOf": 20_000}]});
    assert!(refusal(&schema).contains("common multiple"), "{schema}");
    for (left, right) in [(19_997.0, 19_991.0), (100_000.0, 19_999.0), (1_000_000.0, 0.000_01)] {
        let schema =
            json!({"allOf": [{"type": "number", "multipleOf": left}, {"multipleOf": right}]});
        assert!(refusal(&schema).contains("common multiple"), "{schema}");
    }
    // The compiler would visit a million remainders of the last one, for minutes.
    for number in [
        json!(1e-300),
        json!(0.53),
        json!(0.123_456_789),
        json!(4_294_967_291_u64),
        json!(1_000_003),
    ] {
        let schema = json!({"type": "number", "multipleOf": number});
        assert!(refusal(&schema).contains("multipleOf at # cannot be enforced"), "{schema}");
    }
}

#[test]
fn large_multiples_are_enforced_if_few_digits_precede_their_zeros() {
    for number in [3_600_u64, 19_997, 97_000_000, 300_000_000] {
        let twice = (2 * number).to_string();
        let (below, above) = ((number - 1).to_string(), (number + 10).to_string());
        let schema = json!({"type": "integer", "multipleOf": number});
        check(&schema, &[&twice, "0", &format!("-{number}")], &[&below, &above]);
    }
    assert!(refusal(&json!({"type": "integer", "multipleOf": 86_400})).contains("multipleOf"));
}

#[test]
fn multiples_that_the_compiler_reads_otherwise_are_enforced_as_common_multiples() {
    for (hundredths, number) in [(57, 0.57), (111, 1.11), (119, 1.19), (107, 1.07), (996, 9.96)] {
        let grammar = compile(&json!({"type": "number", "multipleOf": number})).unwrap();
        for value in (0..20 * hundredths).step_by(7).chain((0..20).map(|it| it * hundredths)) {
            let text = format!("{}.{:02}", value / 100, value % 100);
            assert_eq!(allows(&grammar, &text), value % hundredths == 0, "{number}: {text}");
        }
    }
    let bounded =
        json!({"type": "number", "multipleOf": 0.57, "minimum": 1, "exclusiveMaximum": 1.71});
    check(&bounded, &["1.14"], &["0.57", "1.71", "1.2"]);
    check(
        &json!({"multipleOf": 0.57, "allOf": [{"type": ["number", "null"]}, {"multipleOf": 0.5}]}),
        &["28.5", "-57", "null"],
        &["0.57", "0.5", "true"],
    );
    let referred = json!({"$defs": {"d": {"multipleOf": 0.57}}, "type": "array",
        "items": {"$ref": "#/$defs/d", "type": "number", "maximum": 2}});
    check(&referred, &["[0.57, 1.71]"], &["[0.58]", "[2.28]"]);
    check(&json!({"multipleOf": 0.57}), &["0.57", r#""x""#, "[0.1]", "null"], &["0.1"]);
    // Each is a pair; the common multiple of all of them, which nothing combines, is too large.
    let several = json!({"type": "object", "additionalProperties": false, "properties": {
        "a": {"type": "number", "multipleOf": 0.57}, "b": {"type": "number", "multipleOf": 1.11},
        "c": {"type": "number", "multipleOf": 1.19}, "d": {"type": "number", "multipleOf": 2.03}}});
    check(&several, &[r#"{"a": 0.57, "d": 4.06}"#], &[r#"{"a": 0.57, "d": 0.57}"#]);
}

/// Two objects that a required member tells apart.
fn tagged(ours: Value, theirs: Value) -> Value {
    let object = |tag: Value| {
        json!({"type": "object", "properties": {"k": tag, "v": {"type": "integer"}}, "required": ["k"],
            "additionalProperties": false})
    };
    json!({"$defs": {"A": object(ours), "B": object(theirs)},
        "oneOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}],
        "discriminator": {"propertyName": "k", "mapping": {"a": "#/$defs/A"}}})
}

#[test]
fn one_of_is_enforced_if_its_alternatives_provably_exclude_each_other() {
    check(
        &tagged(json!({"const": "a", "type": "string"}), json!({"enum": ["b", "c"]})),
        &[r#"{"k":"a"}"#, r#"{"k":"b","v":1}"#, r#"{"k":"c"}"#],
        &[r#"{"k":"d"}"#, "{}"],
    );
    check(
        &tagged(json!({"const": 1}), json!({"const": 2})),
        &[r#"{"k":1}"#, r#"{"k":2}"#],
        &[r#"{"k":3}"#],
    );
    let nullable = json!({"oneOf": [{"$ref": "#/$defs/A"}, {"type": "null"}],
        "$defs": {"A": {"allOf": [{"type": "string"}]}}});
    check(&nullable, &[r#""x""#, "null"], &["1"]);
    check(&json!({"oneOf": [{"const": 1}, {"const": 2}]}), &["1", "2"], &["3"]);
    let closed = json!({"oneOf": [
        {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"], "additionalProperties": false},
        {"type": "object", "properties": {"b": {"type": "null"}}, "required": ["b"], "additionalProperties": false},
    ]});
    check(&closed, &[r#"{"a":null}"#, r#"{"b":null}"#], &["{}", r#"{"a":null,"b":null}"#]);
    let recursive = json!({"$ref": "#/$defs/J", "$defs": {"J": {"oneOf": [
        {"type": "string"}, {"type": "array", "items": {"$ref": "#/$defs/J"}},
        {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
    ]}}});
    check(&recursive, &[r#"["a", [null, true]]"#, "false"], &["1", "{}"]);
    let beside = json!({"oneOf": [{"type": "string"}, {"type": "null"}], "anyOf": [{"const": "a"}, {"const": null}]});
    check(&beside, &[r#""a""#, "null"], &[r#""b""#]);

    for overlapping in [
        tagged(json!({"const": "a"}), json!({"enum": ["b", "a"]})),
        tagged(json!({"const": 1}), json!({"const": 1.0})),
        json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}),
        json!({"oneOf": [{"$ref": "#/$defs/A"}, {"type": "string"}], "$defs": {"A": {"type": ["string", "null"]}}}),
        json!({"oneOf": [{"properties": {"k": {"const": 1}}}, {"properties": {"k": {"const": 2}}}]}),
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"oneOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}}),
    ] {
        refusal(&overlapping);
    }
}

#[test]
fn values_without_an_end_are_left_out_or_refused() {
    let with_loop = |mut schema: Value| {
        schema["$defs"] = json!({"l": {"$ref": "#/$defs/l"}});
        schema
    };
    let endless = json!({"$ref": "#/$defs/l"});
    check(
        &with_loop(json!({"type": "object", "properties": {"b": {"const": 1}, "a": endless},
            "required": ["b"], "additionalProperties": false})),
        &[r#"{"b":1}"#],
        &[r#"{"b":1,"a":"#, "{"],
    );
    let members = with_loop(
        json!({"type": "object", "properties": {"a": endless}, "additionalProperties": false}),
    );
    check(&members, &["{}"], &[r#"{"a""#]);
    let grammar = compile(&members).unwrap();
    let mut matcher = grammar.start();
    matcher.accept(token(b'{')).unwrap();
    assert!(matcher.accept(token(b'"')).is_err());
    check(
        &with_loop(
            json!({"type": "array", "prefixItems": [{"const": 1}, endless], "items": false}),
        ),
        &["[]", "[1]"],
        &["[1, 2]"],
    );
    check(&with_loop(json!({"type": "array", "items": endless})), &["[]"], &[]);
    check(&with_loop(json!({"anyOf": [endless, {"type": "null"}]})), &["null"], &["1"]);
    let list = json!({"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}, "required": ["next"],
        "additionalProperties": false});
    let optional = json!({"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}, "const": {"$ref": "#/$defs/n"}},
        "additionalProperties": false, "$defs": {"n": list}});
    check(&optional, &["{}"], &[]);
    let tree = json!({"$ref": "#/$defs/t", "$defs": {"t": {"type": "object", "required": ["kids"],
        "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/t"}}}, "additionalProperties": false}}});
    check(&tree, &[r#"{"kids":[{"kids":[]}]}"#], &["{}"]);

    for schema in [
        with_loop(endless.clone()),
        with_loop(json!({"type": "array", "items": endless, "minItems": 1})),
        json!({"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}),
        json!({"allOf": [{"type": "object", "properties": {"x": {"$ref": "#"}}}, {"required": ["x"]}]}),
    ] {
        let message = refusal(&schema);
        assert!(message.contains("without an end"), "{schema}: {message}");
    }
}

#[test]
fn escapes_in_references_are_decoded() {
    let defs =
        json!({"a/b": {"const": 1}, "c d": {"const": 2}, "e~f": {"const": 3}, "é%": {"const": 4}});
    let mut schema = json!({"$defs": defs, "type": "array", "items": false, "minItems": 5, "prefixItems": [
        {"$ref": "#/$defs/a~1b"}, {"$ref": "#/$defs/c%20d"}, {"$ref": "#/$defs/e~0f"},
        {"$ref": "#/$defs/%C3%A9%25"}, {"$ref": "#/$defs/a%7E1b"},
    ]});
    check(&schema, &["[1,2,3,4,1]"], &["[1,2,3,4,2]"]);
    schema["$defs"] = json!({});
    assert!(refusal(&schema).contains("there is no schema at #/$defs/a~1b"));
    let by_pattern = json!({"type": "object", "patternProperties": {r"^\d$": {"const": 1}},
        "properties": {"a": {"$ref": r"#/patternProperties/^\d$"}}, "required": ["a"], "additionalProperties": false});
    check(&by_pattern, &[r#"{"a":1}"#, r#"{"a":1,"2":1}"#], &[r#"{"a":2}"#]);
}

#[test]
fn whole_numbers_may_be_written_as_floats() {
    let schema = json!({"type": "string", "minLength": 3.0, "maxLength": 4.0});
    check(&schema, &[r#""abc""#, r#""abcd""#], &[r#""ab""#, r#""abcde""#]);
    assert!(refusal(&json!({"minLength": 1.5})).contains("whole number"));
    assert!(refusal(&json!({"minProperties": 2.0})).contains("minProperties"));
}

#[test]
fn host_names_and_e_mail_addresses_have_bounded_lengths() {
    let quoted = |text: &str| format!("\"{text}\"");
    let label = "a".repeat(63);
    let (long, longer) = ([&label[..]; 4].join("."), quoted(&"a".repeat(64)));
    let longest = quoted(&long[..253]);
    let name = json!({"type": "string", "format": "hostname"});
    check(
        &name,
        &[r#""a-b.example""#, &longest],
        &[&longer, &quoted(&long[..254]), r#""-a""#, r#""a..b""#],
    );
    let address = |local: usize, label: usize| {
        quoted(&format!("{}@{}.org", "x".repeat(local), "a".repeat(label)))
    };
    check(
        &json!({"type": "string", "format": "email"}),
        &[&address(64, 63), r#""a.b+c@[127.0.0.1]""#],
        &[
            &address(65, 3),
            &address(3, 64),
            &quoted(&format!("{}@{}", "x".repeat(3), &long[..251])),
            r#""a..b@c""#,
        ],
    );
}

#[test]
fn a_regular_expression_is_refused_with_the_reason() {
    let refused =
        |constraint: Constraint| shipped().compiler.compile(&constraint).err().unwrap().to_string();
    let message = refused(Constraint::Regex("(a".to_owned()));
    assert!(message.contains("unclosed group"), "{message}");
    let message = refused(Constraint::Lark("start: /[b-a]/".to_owned()));
    assert!(message.contains("invalid character class range"), "{message}");
    let message = refused(Constraint::Regex("(([a-z]{1,1000}){1,1000}){1,1000}".to_owned()));
    assert!(message.contains("nested quantifiers"), "{message}");
}
