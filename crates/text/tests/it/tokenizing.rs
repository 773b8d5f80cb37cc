//! Compares tokens with those of the Python packages (`tests/data/make_tokenizers.py`,
//! `make_byte_pairs.py`, `make_sentence_pieces.py`).

use std::sync::OnceLock;

use jackalope_text::{ChatPrompt, TextError, TokenId, Tokenizer};
use proptest::prelude::*;
use serde_json::Value;

use crate::checkpoint::{
    BYTE_PAIRS, Checkpoint, FAMILIES, MISTRAL, SENTENCE_PIECES, data, data_json, tokenizer,
};

fn ids(value: &Value) -> Vec<TokenId> {
    serde_json::from_value(value.clone()).unwrap()
}

#[test]
fn every_family_encodes_and_decodes_like_the_python_package() {
    for family in FAMILIES.into_iter().chain(BYTE_PAIRS) {
        let tokenizer = tokenizer(family);
        let cases = data_json(&format!("tokenizers/{family}/cases.json"));
        for case in cases.as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let tokens = tokenizer.encode(text, false).unwrap();
            assert_eq!(tokens, ids(&case["ids"]), "{family}: {text:?}");
            let with_specials = tokenizer.encode(text, true).unwrap();
            assert_eq!(with_specials, ids(&case["ids_with_specials"]), "{family}: {text:?}");
            assert_eq!(tokenizer.decode(&tokens, false), case["decoded"], "{family}: {text:?}");
            let without = &case["decoded_without_specials"];
            assert_eq!(tokenizer.decode(&tokens, true), *without, "{family}: {text:?}");
        }
    }
}

/// Texts with and without user-defined pieces, spaces at both ends, unknown and invalid characters.
#[test]
fn pieces_of_sentence_piece_are_those_of_the_python_package() {
    for family in SENTENCE_PIECES {
        let tokenizer = tokenizer(family);
        let cases = data_json(&format!("tokenizers/{family}/cases.json"));
        let cases = cases.as_array().unwrap();
        assert!(200 < cases.len(), "{family}");
        for case in cases {
            let text = case["text"].as_str().unwrap();
            let tokens = tokenizer.encode(text, false).unwrap();
            let (mut found, mut expected) = (tokens.clone(), ids(&case["ids"]));
            if family.starts_with("sp_unigram") {
                // Of sequences that are equally likely, rounding decides.
                found.sort_unstable();
                expected.sort_unstable();
            }
            assert_eq!(found, expected, "{family}: {text:?}");
            if let Some(decoded) = case["decoded"].as_str() {
                assert_eq!(tokenizer.decode(&tokens, false), decoded, "{family}: {text:?}");
            }
            let bos = std::iter::once(1).chain(tokens);
            let bos: Vec<TokenId> = if text.is_empty() { vec![1] } else { bos.collect() };
            assert_eq!(tokenizer.encode(text, true).unwrap(), bos, "{family}: {text:?}");
        }
    }
}

#[test]
fn tokens_that_a_checkpoint_adds_to_its_pieces_keep_their_ids() {
    let model = std::fs::read(data("tokenizers/sp_llama/tokenizer.model")).unwrap();
    let len = tokenizer("sp_llama").vocab_size();
    let added = serde_json::json!({"<|im_start|>": len + 3, "<tool>": len});
    let special = r#"{"additional_special_tokens": ["<|im_start|>"], "bos_token": "<s>"}"#;
    let config = r#"{"add_bos_token": false, "added_tokens_decoder": {}}"#;
    let checkpoint = Checkpoint::empty()
        .with("added_tokens.json", &added.to_string())
        .with("special_tokens_map.json", special)
        .with("tokenizer_config.json", config);
    std::fs::write(checkpoint.dir().join("tokenizer.model"), model).unwrap();
    let tokenizer = Tokenizer::load(checkpoint.dir()).unwrap();
    let [start, tool] = ["<|im_start|>", "<tool>"].map(|text| tokenizer.token_id(text).unwrap());
    assert_eq!((start as usize, tool as usize), (len + 3, len));
    assert_eq!((tokenizer.is_special(start), tokenizer.is_special(tool)), (true, false));
    let tokens = tokenizer.encode("<|im_start|>a<tool>", true).unwrap();
    assert_eq!((tokens[0], *tokens.last().unwrap()), (start, tool));
    assert_eq!(tokenizer.bos_token_id(), Some(1));
}

#[test]
fn a_raw_prompt_begins_with_the_first_token_once() {
    let config = r#"{"bos_token": {"content": "<|begin_of_text|>", "special": true}}"#;
    let checkpoint = Checkpoint::of("llama3").with("tokenizer_config.json", config);
    let tokenizer = Tokenizer::load(checkpoint.dir()).unwrap();
    let bos = tokenizer.bos_token_id().unwrap();
    for text in ["Hello", "<|begin_of_text|>Hello"] {
        let tokens = tokenizer.encode_prompt(text).unwrap();
        assert_eq!(tokens.iter().filter(|token| **token == bos).count(), 1, "{text:?}");
        assert_eq!(tokens[0], bos);
    }
}

#[test]
fn a_text_beyond_the_limit_is_refused_before_it_is_tokenized() {
    let text = "a".repeat((16 << 20) + 1);
    let error = tokenizer("gpt2").encode(&text, false).unwrap_err();
    assert_eq!(error, TextError::TooLong { len_bytes: text.len(), limit_bytes: 16 << 20 });
}

#[test]
fn long_runs_of_one_character_are_tokenized_whole() {
    for family in FAMILIES.into_iter().chain(BYTE_PAIRS) {
        let tokenizer = tokenizer(family);
        for character in ["a", " ", "\n", "\t", "!", "7", "é", "😀", "\u{301}"] {
            let text = format!("x{}x", character.repeat(30_000));
            let tokens = tokenizer.encode(&text, false).unwrap();
            assert_eq!(tokenizer.decode(&tokens, false), text, "{family}: {character:?}");
        }
    }
}

#[test]
fn reserved_and_named_tokens_of_byte_pairs_keep_their_ids() {
    let kimi = tokenizer("kimi");
    assert_eq!((kimi.vocab_size(), kimi.bos_token_id()), (956, Some(700)));
    assert_eq!(kimi.eos_token_ids(), [701]);
    assert_eq!(kimi.token_id("<|reserved_token_955|>"), Some(955));
    let special = (0..956).filter(|id| kimi.is_special(*id));
    assert_eq!(special.count(), 256);
    for family in MISTRAL {
        let tokenizer = tokenizer(family);
        let expected = data_json(&format!("tokenizers/{family}/more.json"));
        assert_eq!(expected["vocab_size"], tokenizer.vocab_size(), "{family}");
        let special = (0..).take(tokenizer.vocab_size()).filter(|id| tokenizer.is_special(*id));
        let special: Vec<String> = special.map(|id| tokenizer.token_text(id)).collect();
        assert_eq!(expected["special"], serde_json::json!(special), "{family}");
        assert_eq!((tokenizer.bos_token_id(), tokenizer.eos_token_ids()), (Some(1), &[2][..]));
    }
}

/// The layout of messages of Mistral's own package, without tools.
const MISTRAL_TEMPLATE: &str = "{{ bos_token }}{% for message in messages %}\
    {% if message.role == 'system' %}[SYSTEM_PROMPT]{{ message.content }}[/SYSTEM_PROMPT]\
    {% elif message.role == 'user' %}[INST]{{ message.content }}[/INST]\
    {% else %}{{ message.content }}{{ eos_token }}{% endif %}{% endfor %}";

/// Without a `tokenizer_config.json`, and with control tokens in messages.
#[test]
fn conversations_have_the_tokens_of_mistrals_own_package() {
    for family in MISTRAL {
        let vocabulary = data(&format!("tokenizers/{family}/tekken.json"));
        let checkpoint = Checkpoint::empty()
            .with("tekken.json", &std::fs::read_to_string(vocabulary).unwrap())
            .with("chat_template.jinja", MISTRAL_TEMPLATE);
        let tokenizer = Tokenizer::load(checkpoint.dir()).unwrap();
        let template = checkpoint.template();
        let more = data_json(&format!("tokenizers/{family}/more.json"));
        let conversations = more["conversations"].as_array().unwrap();
        assert!(1 < conversations.len());
        for conversation in conversations {
            let prompt = ChatPrompt {
                messages: conversation["messages"].as_array().unwrap(),
                tools: None,
                kwargs: &serde_json::Map::new(),
                add_generation_prompt: true,
            };
            let tokens = tokenizer.encode_rendered(&template.render(&prompt).unwrap()).unwrap();
            assert_eq!(tokens, ids(&conversation["ids"]), "{family}: {conversation}");
        }
    }
}

#[test]
fn each_token_knows_its_bytes() {
    let qwen = tokenizer("qwen");
    let tokens = qwen.encode("naïve ☃<|im_end|>", false).unwrap();
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| qwen.token_bytes(*token)).collect();
    assert_eq!(bytes, "naïve ☃<|im_end|>".as_bytes());
    assert_eq!(qwen.token_text(*tokens.last().unwrap()), "<|im_end|>");
    assert!(qwen.is_special(*tokens.last().unwrap()));

    let llama = tokenizer("llama2");
    let byte = llama.token_id("<0xE4>").unwrap();
    assert_eq!(llama.token_bytes(byte), [0xe4]);
    assert_eq!(llama.token_text(byte), "\u{fffd}");
    let past_the_end = TokenId::try_from(llama.vocab_size()).unwrap();
    assert!(llama.token_bytes(past_the_end).is_empty());
    assert!(!llama.is_special(past_the_end));
}

#[test]
fn thinking_is_told_by_the_vocabulary() {
    assert!(tokenizer("qwen").has_thinking());
    assert!(!tokenizer("llama3").has_thinking());
}

proptest! {
    /// Texts with few tokens for their length: composed Hangul, blanks next to special tokens, and
    /// runs of one character.
    #[test]
    fn no_text_comes_to_fewer_tokens_than_its_bound(
        parts in prop::collection::vec(
            prop_oneof![
                "[a-zA-Z ]{0,40}",
                "[ \\n\\t]{0,80}",
                "\\PC{0,20}",
                Just("\u{1112}\u{1161}\u{11ab}".repeat(9)),
                Just("A\u{30a}".repeat(9)),
                Just("<s>   <|endoftext|>   <|im_end|>  </s>".to_owned()),
                Just("=".repeat(64)),
            ],
            0..8,
        )
    ) {
        static TOKENIZERS: OnceLock<Vec<Tokenizer>> = OnceLock::new();
        let text = parts.concat();
        let tokenizers = TOKENIZERS.get_or_init(|| FAMILIES.map(tokenizer).into());
        for (family, tokenizer) in FAMILIES.iter().zip(tokenizers) {
            let num_tokens = tokenizer.encode(&text, false).unwrap().len();
            prop_assert!(tokenizer.fewest_tokens(&text) <= num_tokens, "{family}: {text:?}");
        }
    }
}

#[test]
fn a_long_text_is_known_to_be_long() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/jackalope-mini");
    let tokenizer = Tokenizer::load(&dir).unwrap();
    assert!(10_000 < tokenizer.fewest_tokens(&"Hello world. ".repeat(100_000)));
}
