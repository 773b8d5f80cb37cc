//! Tokens against those of the Python package (`tests/data/make_tokenizers.py`).

use jackalope_text::{TextError, TokenId};
use serde_json::Value;

use crate::checkpoint::{Checkpoint, FAMILIES, data_json, tokenizer};

fn ids(value: &Value) -> Vec<TokenId> {
    serde_json::from_value(value.clone()).unwrap()
}

#[test]
fn every_family_encodes_and_decodes_like_the_python_package() {
    for family in FAMILIES {
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

#[test]
fn a_raw_prompt_begins_with_the_first_token_once() {
    let config = r#"{"bos_token": {"content": "<|begin_of_text|>", "special": true}}"#;
    let checkpoint = Checkpoint::of("llama3").with("tokenizer_config.json", config);
    let tokenizer = jackalope_text::Tokenizer::load(checkpoint.dir()).unwrap();
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
    for family in FAMILIES {
        let tokenizer = tokenizer(family);
        for character in ["a", " ", "\n", "\t", "!", "7", "é", "😀", "\u{301}"] {
            let text = format!("x{}x", character.repeat(30_000));
            let tokens = tokenizer.encode(&text, false).unwrap();
            assert_eq!(tokenizer.decode(&tokens, false), text, "{family}: {character:?}");
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
