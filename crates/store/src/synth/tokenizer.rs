//! A tokenizer that works but is meaningless: every byte of a text is a token, and the rest of the
//! vocabulary consists of made-up words that only a model would generate.

use serde_json::{Map, Value, json};

/// Token that ends an answer; the first after the 256 bytes.
pub(super) const END: u32 = 256;
const END_TEXT: &str = "<|endoftext|>";

/// Returns `tokenizer.json` with `vocab_size` tokens.
pub(super) fn tokenizer(vocab_size: usize) -> Value {
    let bytes = byte_chars().into_iter().map(String::from);
    let words = (0..).map(|idx| format!("Ġw{idx}"));
    let texts = bytes.chain([END_TEXT.to_owned()]).chain(words);
    let vocab: Map<String, Value> =
        texts.take(vocab_size).enumerate().map(|(id, text)| (text, json!(id))).collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    json!({
        "version": "1.0",
        "added_tokens": [{
            "id": END, "content": END_TEXT, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true
        }],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    })
}

/// Returns `tokenizer_config.json` with a template that accepts any conversation.
pub(super) fn config() -> Value {
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_TEXT,
        "chat_template": "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:",
    })
}

/// Returns the characters that represent the bytes 0 to 255, as in GPT-2's `bytes_to_unicode`.
fn byte_chars() -> Vec<char> {
    let mut next_unprintable = 256;
    (0..=255_u32)
        .map(|byte| {
            let is_printable = matches!(byte, 33..=126 | 161..=172 | 174..=255);
            let code = if is_printable {
                byte
            } else {
                next_unprintable += 1;
                next_unprintable - 1
            };
            char::from_u32(code).expect("these are letters")
        })
        .collect()
}
