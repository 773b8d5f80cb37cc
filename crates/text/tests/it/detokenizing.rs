//! Compares streamed text with complete text, and complete text with the `tokenizers` library.

use std::sync::Arc;

use jackalope_text::{Detokenizer, TokenId, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::checkpoint::{Checkpoint, FAMILIES, MISTRAL, data, data_json, tokenizer};

/// Returns the pieces of text that the detokeniser emits for each token.
fn streamed(tokenizer: &Arc<Tokenizer>, tokens: &[TokenId], skip_special: bool) -> Vec<String> {
    let tokenizer = Arc::clone(tokenizer);
    let mut detokenizer = if skip_special {
        Detokenizer::new(tokenizer)
    } else {
        Detokenizer::with_special_tokens(tokenizer)
    };
    let mut pieces: Vec<String> = tokens.iter().map(|token| detokenizer.push(*token)).collect();
    pieces.push(detokenizer.finish());
    pieces
}

fn reference(family: &str) -> tokenizers::Tokenizer {
    let path = data("tokenizers").join(family).join("tokenizer.json");
    tokenizers::Tokenizer::from_file(path).unwrap()
}

/// Decodes byte tokens in the simplest way: joins the bytes, reads them as UTF-8, removes one space.
fn decoded_simply(tokens: &[String], strip: bool) -> String {
    let mut bytes = Vec::new();
    for token in tokens {
        match token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>')) {
            Some(hex) if hex.len() == 2 => bytes.push(u8::from_str_radix(hex, 16).unwrap()),
            _ => bytes.extend(token.replace('▁', " ").into_bytes()),
        }
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    if strip { text.strip_prefix(' ').map(str::to_owned).unwrap_or(text) } else { text }
}

/// Some special tokens and bytes, which are rare among all tokens, and numbers without a token.
fn any_token(vocab_size: usize) -> impl Strategy<Value = TokenId> {
    let vocab_size = TokenId::try_from(vocab_size).unwrap();
    prop_oneof![
        6 => 0..vocab_size,
        3 => 0..260_u32,
        1 => vocab_size.saturating_sub(8)..vocab_size + 3,
    ]
}

#[test]
fn streamed_text_is_the_whole_text_for_any_tokens() {
    for family in FAMILIES {
        let ours = Arc::new(tokenizer(family));
        let library = reference(family);
        let tokens = prop::collection::vec(any_token(ours.vocab_size()), 0..60);
        proptest!(ProptestConfig::with_cases(400), |(tokens in tokens, skip_special: bool)| {
            let whole = ours.decode(&tokens, skip_special);
            prop_assert_eq!(streamed(&ours, &tokens, skip_special).concat(), whole.as_str());
            if ["gpt2", "llama3", "qwen"].contains(&family) {
                prop_assert_eq!(library.decode(&tokens, skip_special).unwrap(), whole);
            } else {
                let written = |token: &TokenId| library.id_to_token(*token);
                let written: Vec<String> = tokens
                    .iter()
                    .filter(|token| !skip_special || !ours.is_special(**token))
                    .filter_map(written)
                    .collect();
                prop_assert_eq!(decoded_simply(&written, family == "llama2"), whole);
            }
        });
    }
}

/// Broken characters too: most tokens of the answers are single bytes.
#[test]
fn streamed_text_is_that_of_mistrals_own_package() {
    for family in MISTRAL {
        let ours = Arc::new(tokenizer(family));
        let more = data_json(&format!("tokenizers/{family}/more.json"));
        for answer in more["answers"].as_array().unwrap() {
            let tokens: Vec<TokenId> = serde_json::from_value(answer["ids"].clone()).unwrap();
            assert_eq!(ours.decode(&tokens, false), answer["decoded"], "{family}");
            assert_eq!(streamed(&ours, &tokens, false).concat(), answer["decoded"], "{family}");
        }
        for case in data_json(&format!("tokenizers/{family}/cases.json")).as_array().unwrap() {
            let tokens: Vec<TokenId> = serde_json::from_value(case["ids"].clone()).unwrap();
            assert_eq!(streamed(&ours, &tokens, false).concat(), case["decoded"], "{family}");
            let without = &case["decoded_without_specials"];
            assert_eq!(streamed(&ours, &tokens, true).concat(), *without, "{family}");
        }
    }
}

#[test]
fn a_text_comes_back_whole_and_no_character_comes_broken() {
    for family in FAMILIES {
        let ours = Arc::new(tokenizer(family));
        let library = reference(family);
        proptest!(ProptestConfig::with_cases(300), |(text in "(\\PC|[ \n😀é東한]){0,40}")| {
            let tokens = ours.encode(&text, false).unwrap();
            let whole = ours.decode(&tokens, false);
            prop_assert_eq!(library.decode(&tokens, false).unwrap(), whole.as_str());
            // Qwen's tokenizer composes accents.
            if family != "qwen" {
                prop_assert_eq!(&whole, &text);
            }
            let mut held_bytes = 0;
            for (token, piece) in tokens.iter().zip(streamed(&ours, &tokens, false)) {
                let whole_characters = !piece.contains('\u{fffd}') || text.contains('\u{fffd}');
                prop_assert!(whole_characters, "broken: {:?}", piece);
                held_bytes += ours.token_bytes(*token).len();
                held_bytes -= piece.len();
                // The beginning of a character, and the space that Llama 2 cuts off.
                prop_assert!(held_bytes <= 3 + usize::from(family == "llama2"));
            }
        });
    }
}

#[test]
fn a_space_at_the_beginning_is_kept_as_in_the_whole_text() {
    for family in FAMILIES {
        let ours = Arc::new(tokenizer(family));
        for text in ["  two", " one", " ", "  ", "\n x"] {
            let tokens = ours.encode(text, false).unwrap();
            assert_eq!(streamed(&ours, &tokens, true).concat(), text, "{family}");
            // The rest of a text is what comes after a prompt.
            let rest = &tokens[1..];
            assert_eq!(streamed(&ours, rest, true).concat(), ours.decode(rest, true), "{family}");
        }
    }
}

#[test]
fn an_answer_that_breaks_off_within_a_character_ends_with_one_replacement() {
    for family in FAMILIES {
        let ours = Arc::new(tokenizer(family));
        let tokens = ours.encode("ok 🧿", false).unwrap();
        let pieces = streamed(&ours, &tokens[..tokens.len() - 1], true);
        assert_eq!(pieces.last().unwrap(), "\u{fffd}", "{family}");
        assert_eq!(pieces.concat(), "ok \u{fffd}", "{family}");
    }
}

/// A tokenizer whose tokens are whole words, with a decoder.
fn words_with(decoder: &Value) -> String {
    let words = ["▁a", "b", "▁", "▁▁c", "##d", ".", " .", "it", " do not", "é", "<s>", "<0x41>"];
    let vocab: serde_json::Map<String, Value> =
        words.iter().enumerate().map(|(id, word)| ((*word).to_owned(), json!(id))).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": [{"id": 10, "content": "<s>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true}],
        "pre_tokenizer": null, "post_processor": null, "decoder": decoder,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "b"},
    })
    .to_string()
}

#[test]
fn every_decoder_that_is_taken_does_what_the_library_does() {
    let replace = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
    let decoders = [
        json!(null),
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}),
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": true}),
        json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
        json!({"type": "WordPiece", "prefix": "##", "cleanup": false}),
        json!({"type": "Fuse"}),
        json!({"type": "Sequence", "decoders": [replace, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 2, "stop": 0}]}),
        json!({"type": "Sequence", "decoders": [replace,
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}),
        json!({"type": "Sequence", "decoders": [{"type": "ByteLevel", "add_prefix_space": false,
            "trim_offsets": true, "use_regex": true}]}),
    ];
    for decoder in decoders {
        let file = words_with(&decoder);
        let library: tokenizers::Tokenizer = file.parse().unwrap();
        let checkpoint = Checkpoint::empty().with("tokenizer.json", &file);
        let ours = Arc::new(Tokenizer::load(checkpoint.dir()).unwrap());
        let tokens = prop::collection::vec(0..14_u32, 0..8);
        proptest!(ProptestConfig::with_cases(300), |(tokens in tokens, skip_special: bool)| {
            let whole = ours.decode(&tokens, skip_special);
            prop_assert_eq!(streamed(&ours, &tokens, skip_special).concat(), whole.as_str());
            prop_assert_eq!(library.decode(&tokens, skip_special).unwrap(), whole, "{}", decoder);
        });
    }
}
