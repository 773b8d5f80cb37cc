//! A checkpoint's text files, small enough to be written by each test that wants them: a byte-level
//! vocabulary with a few whole words, and a ChatML template.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use jackalope_text::ModelText;
use serde_json::{Map, Value, json};

/// Words that are single tokens; everything else is written byte by byte.
const WORDS: [&str; 10] =
    ["Hello", " world", " The", " end", "ĠSTOP", "user", "assistant", "system", "tool", " again"];

/// Ends an answer.
pub(crate) const END: &str = "<|im_end|>";

/// Stand around what is to be filled in.
const INFILL: [&str; 3] = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"];

const TEMPLATE: &str = "\
{%- if tools %}<|im_start|>system\n{{ tools | tojson }}
Answer with <tool_call>{\"name\": …}</tool_call>.<|im_end|>\n{% endif %}
{%- for message in messages %}
{%- if message.content == 'forbidden' %}{{ raise_exception('not that word') }}{% endif -%}
<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}
{%- if mood %}({{ mood }}){% endif %}
{%- if enable_thinking %}(thinking){% endif %}";

/// The text side of the checkpoint that most tests use.
pub(crate) fn text() -> std::sync::Arc<ModelText> {
    static TEXT: OnceLock<std::sync::Arc<ModelText>> = OnceLock::new();
    TEXT.get_or_init(|| load(&[])).clone()
}

/// One whose tokenizer begins every text with a token of its own.
pub(crate) fn text_with_bos() -> std::sync::Arc<ModelText> {
    load(&[("bos_token", "<|bos|>")])
}

/// One that was trained to fill in the middle.
pub(crate) fn text_with_infill() -> std::sync::Arc<ModelText> {
    load(&[("infill", "")])
}

/// One without a chat template.
pub(crate) fn text_without_template() -> std::sync::Arc<ModelText> {
    load(&[("chat_template", "")])
}

/// One whose chat template has a fault in its second line.
pub(crate) fn text_with_broken_template() -> std::sync::Arc<ModelText> {
    load(&[("chat_template", "{{ messages }}\n{% for message in %}")])
}

fn load(changes: &[(&str, &str)]) -> std::sync::Arc<ModelText> {
    let change = |key| changes.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
    let dir = directory();
    let bos = change("bos_token");
    let mut config = json!({"eos_token": END});
    if let Some(bos) = bos {
        config["bos_token"] = bos.into();
    }
    let write = |name: &str, text: &str| std::fs::write(dir.join(name), text).unwrap();
    let infill = change("infill").map_or(&[][..], |_| &INFILL);
    write("tokenizer.json", &tokenizer(bos, infill).to_string());
    write("tokenizer_config.json", &config.to_string());
    let template = change("chat_template").unwrap_or(TEMPLATE);
    if !template.is_empty() {
        write("chat_template.jinja", template);
    }
    let text = ModelText::load(&dir).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    std::sync::Arc::new(text)
}

fn directory() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("jackalope-server-test-{}-{number}", std::process::id());
    let dir = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// How byte-level vocabularies write a byte (GPT-2, `encoder.py`, `bytes_to_unicode`).
fn byte_char(byte: u8) -> char {
    let is_plain = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if is_plain(byte) {
        return char::from(byte);
    }
    let num_before = (0..byte).filter(|byte| !is_plain(*byte)).count();
    char::from_u32(256 + num_before as u32).unwrap()
}

fn tokenizer(bos: Option<&str>, more: &[&str]) -> Value {
    let mut vocab = Map::new();
    let mut merges = Vec::new();
    for byte in 0..=255 {
        let idx = vocab.len();
        vocab.insert(byte_char(byte).to_string(), idx.into());
    }
    for word in WORDS {
        let written: Vec<char> = word.replace(' ', "Ġ").chars().collect();
        for len in 2..=written.len() {
            let whole: String = written[..len].iter().collect();
            if vocab.contains_key(&whole) {
                continue;
            }
            let (left, right) = (&written[..len - 1], written[len - 1]);
            merges.push(json!([left.iter().collect::<String>(), right.to_string()]));
            let idx = vocab.len();
            vocab.insert(whole, idx.into());
        }
    }
    let mut added = Vec::new();
    let more = more.iter().copied();
    for special in ["<|im_start|>", END].into_iter().chain(more).chain(bos) {
        added.push(json!({
            "id": vocab.len() + added.len(), "content": special, "special": true,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        }));
    }
    let post_processor = bos.map(|bos| {
        let id = added.last().unwrap()["id"].clone();
        let (of_bos, of_text) =
            (json!({"id": bos, "type_id": 0}), json!({"id": "A", "type_id": 0}));
        json!({
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": of_bos}, {"Sequence": of_text}],
            "pair": [{"Sequence": of_text}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {bos: {"id": bos, "ids": [id], "tokens": [bos]}},
        })
    });
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": post_processor,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "vocab": vocab, "merges": merges,
        },
    })
}
