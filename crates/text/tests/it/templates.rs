//! Compares prompts with those that transformers renders (`tests/data/make_templates.py`).

use jackalope_text::{ChatPrompt, TextError};
use serde_json::{Map, Value};

use crate::checkpoint::{Checkpoint, data, data_json};

/// The moment at which the reference was rendered: 2026-03-07 14:05:09 UTC.
const NOW: i64 = 1_772_892_309;

#[test]
fn every_template_renders_what_transformers_renders() {
    let conversations = data_json("templates/conversations.json");
    let expected = data_json("templates/expected.json");
    let mut wrong = Vec::new();
    for (name, reference) in expected.as_object().unwrap() {
        let source = data("templates").join(format!("{name}.jinja"));
        let source = std::fs::read_to_string(source).unwrap();
        let template = checkpoint_of(&source, reference).template().at_fixed_time(NOW);
        for (case, want) in reference["prompts"].as_object().unwrap() {
            let got = render(&template, &conversations[case]);
            let same = match (&got, want) {
                (Ok(got), Value::String(want)) => got == want,
                (Err(TextError::Refused { message }), want) => want["refused"] == **message,
                (Err(_), want) => want["failed"].is_string(),
                (Ok(_), _) => false,
            };
            if !same {
                wrong.push(difference(&format!("{name}, {case}"), want, &got));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ\n{}", wrong.len(), wrong[..wrong.len().min(9)].join("\n"));
}

/// Describes the first difference between two prompts.
fn difference(name: &str, want: &Value, got: &Result<String, TextError>) -> String {
    let (Some(want), Ok(got)) = (want.as_str(), got) else {
        return format!("{name}\n  want {:.200}\n  got  {got:?}", want.to_string());
    };
    let same = want.chars().zip(got.chars()).take_while(|(a, b)| a == b).count();
    let around =
        |text: &str| -> String { text.chars().skip(same.saturating_sub(30)).take(100).collect() };
    format!("{name}\n  want {:?}\n  got  {:?}", around(want), around(got))
}

/// A checkpoint with the special tokens that the reference had.
fn checkpoint_of(source: &str, reference: &Value) -> Checkpoint {
    let family = if reference["thinking"] == true { "qwen" } else { "llama3" };
    let mut config = Map::new();
    for name in ["bos_token", "eos_token"] {
        config.insert(name.to_owned(), reference[name].clone());
    }
    Checkpoint::of(family)
        .with("chat_template.jinja", source)
        .with("tokenizer_config.json", &Value::Object(config).to_string())
}

fn render(
    template: &jackalope_text::ChatTemplate,
    conversation: &Value,
) -> Result<String, TextError> {
    let kwargs = conversation["kwargs"].as_object().cloned().unwrap_or_default();
    let prompt = ChatPrompt {
        messages: conversation["messages"].as_array().unwrap(),
        tools: conversation["tools"].as_array().map(Vec::as_slice),
        kwargs: &kwargs,
        add_generation_prompt: conversation["add_generation_prompt"].as_bool().unwrap_or(true),
    };
    template.render(&prompt).map(|rendered| rendered.text().to_owned())
}
