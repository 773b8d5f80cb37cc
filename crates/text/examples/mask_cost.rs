//! What it costs to say which tokens may come next: `mask_cost [TOKENIZER_DIR]`. Without a folder, a
//! made-up vocabulary of 150,000 tokens is measured.
//!
//! Answers are sampled at random from the masks. Each figure is for one token: accepting it and filling the
//! next mask, as the engine does between two samples.

#![expect(clippy::print_stdout, reason = "an example speaks to people")]
#![expect(clippy::expect_used, reason = "an example ends where something is wrong")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jackalope_text::grammar::{Constraint, GrammarCompiler};
use jackalope_text::{TokenId, Tokenizer};
use serde_json::{Map, Value, json};

const VOCAB_SIZE: usize = 150_000;
const ANSWERS: usize = 40;
const ANSWER_TOKENS_MAX: usize = 200;

fn main() {
    let dir = match std::env::args_os().nth(1) {
        Some(dir) => PathBuf::from(dir),
        None => made_up(),
    };
    let tokenizer = Tokenizer::load(&dir).expect("the folder has a tokenizer");
    let begin = Instant::now();
    let compiler = GrammarCompiler::new(&tokenizer).expect("the vocabulary is a real one");
    println!("{} tokens, trie in {:?}", tokenizer.vocab_size(), begin.elapsed());
    println!(
        "{:24} {:>9} {:>8} {:>8} {:>8} {:>8}",
        "", "compile", "median", "p90", "p99", "tokens"
    );
    let mut all = Vec::new();
    for (name, constraint) in constraints() {
        let begin = Instant::now();
        let grammar = compiler.compile(&constraint).expect("it can be enforced");
        let compiled = begin.elapsed();
        let mut state = 7;
        let mut costs = Vec::new();
        let mut words = vec![0; tokenizer.vocab_size().div_ceil(32)];
        for _ in 0..ANSWERS {
            let mut matcher = grammar.start();
            matcher.fill(&mut words).expect("the grammar has a beginning");
            for _ in 0..ANSWER_TOKENS_MAX {
                let token = pick(&words, &mut state);
                let begin = Instant::now();
                matcher.accept(token).expect("the mask allows it");
                matcher.fill(&mut words).expect("the grammar is simple enough");
                costs.push(begin.elapsed());
                if matcher.is_over() {
                    break;
                }
            }
        }
        print_line(name, compiled, &mut costs);
        all.extend(costs);
    }
    print_line("all", Duration::ZERO, &mut all);
}

fn print_line(name: &str, compiled: Duration, costs: &mut [Duration]) {
    costs.sort_unstable();
    let at = |part: f64| costs[((costs.len() - 1) as f64 * part) as usize];
    println!(
        "{name:24} {:>6.1} ms {:>5} us {:>5} us {:>5} us {:>8}",
        compiled.as_secs_f64() * 1e3,
        at(0.5).as_micros(),
        at(0.9).as_micros(),
        at(0.99).as_micros(),
        costs.len()
    );
}

/// A random token of the mask: the first one from a random place on.
fn pick(words: &[u32], state: &mut u64) -> TokenId {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    let num_bits = words.len() * 32;
    let start = (*state % num_bits as u64) as usize;
    let is_set = |bit: &usize| words[bit / 32] >> (bit % 32) & 1 == 1;
    let bit = (start..num_bits).chain(0..start).find(is_set).expect("some token is allowed");
    TokenId::try_from(bit).expect("token numbers have 32 bits")
}

fn constraints() -> Vec<(&'static str, Constraint)> {
    let person = json!({"type": "object", "additionalProperties": false, "required": ["name", "age", "tags"],
        "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "email": {"type": "string", "format": "email"}, "born": {"type": "string", "format": "date"},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 5}}});
    let union = json!({"type": "array", "items": {"anyOf": [person.clone(), {"type": "null"}, {"type": "number"}]}});
    let tree = json!({"$defs": {"node": {"type": "object", "required": ["value", "children"],
        "additionalProperties": false, "properties": {"value": {"type": "string", "maxLength": 20},
            "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}}}}, "$ref": "#/$defs/node"});
    vec![
        ("json_object", Constraint::JsonObject),
        ("person", Constraint::JsonSchema(person)),
        ("union", Constraint::JsonSchema(union)),
        ("tree", Constraint::JsonSchema(tree)),
        ("regex", Constraint::Regex("[a-z]{3,12}( [a-z]{3,12}){2,8}\\.".to_owned())),
        (
            "choice",
            Constraint::Choice((0..200).map(|idx| format!("choice number {idx}")).collect()),
        ),
    ]
}

/// Writes a byte-level vocabulary like those of large models: bytes, words with and without a blank before them, in
/// three spellings, numbers, runs of punctuation as JSON and programs have them, and letters of other scripts.
fn made_up() -> PathBuf {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tmp/mask-cost");
    std::fs::create_dir_all(&dir).expect("the target folder can be written");
    let mut texts: Vec<String> = (0..=255_u32).map(byte_char).map(String::from).collect();
    texts.push("<|end|>".to_owned());
    let mut seen: BTreeSet<String> = texts.iter().cloned().collect();
    let mut add = |text: &str| {
        let written: String = text.bytes().map(|byte| byte_char(byte.into())).collect();
        if texts.len() < VOCAB_SIZE && seen.insert(written.clone()) {
            texts.push(written);
        }
    };
    let marks = [
        "\"", "\":", "\",", "{\"", "[", "]", "}", ",", ": ", "\n", "  ", "(", ")", ";", "\\", "'",
        "/",
    ];
    for first in marks {
        for second in marks {
            marks.iter().for_each(|third| add(&format!("{first}{second}{third}")));
        }
    }
    (0..1000).for_each(|number| add(&number.to_string()));
    (0x400..0x2000_u32).filter_map(char::from_u32).for_each(|it| add(&it.to_string()));
    let syllables: Vec<String> = "bcdfghklmnprstvwz"
        .chars()
        .flat_map(|first| "aeiou".chars().map(move |second| format!("{first}{second}")))
        .collect();
    for first in syllables.iter().map(String::as_str).chain(["un", "re", "in"]) {
        for second in &syllables {
            for third in ["", "n", "ing", "ed", "s", "tion", "er"] {
                let word = format!("{first}{second}{third}");
                let capital = format!("{}{}", first[..1].to_uppercase(), &word[1..]);
                for written in [&word, &capital, &format!(" {word}"), &format!(" {capital}")] {
                    add(written);
                }
            }
        }
    }
    (0..VOCAB_SIZE).for_each(|idx| {
        let [a, b, c] = [idx % 85, idx / 85 % 85, idx * 7 % 85].map(|it| &syllables[it]);
        add(&format!(" {a}{b}{c}"));
    });
    let vocab: Map<String, Value> =
        texts.iter().enumerate().map(|(id, it)| (it.clone(), json!(id))).collect();
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let tokenizer = json!({"version": "1.0", "pre_tokenizer": level, "decoder": level,
        "added_tokens": [{"id": 256, "content": "<|end|>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true}],
        "model": {"type": "BPE", "vocab": vocab, "merges": []}});
    let config = json!({"eos_token": "<|end|>"});
    let files = [("tokenizer.json", tokenizer), ("tokenizer_config.json", config)];
    for (name, value) in files {
        std::fs::write(dir.join(name), value.to_string())
            .expect("the target folder can be written");
    }
    dir
}

/// The character that stands for a byte, as in GPT-2's `bytes_to_unicode`.
fn byte_char(byte: u32) -> char {
    let is_printable = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let code = if is_printable(byte) {
        byte
    } else {
        256 + (0..byte).filter(|it| !is_printable(*it)).count() as u32
    };
    char::from_u32(code).expect("these are letters")
}
