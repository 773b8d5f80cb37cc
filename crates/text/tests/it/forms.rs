//! The forms of tool calls and reasoning that are found by the templates and vocabularies of
//! published checkpoints, and the table of docs/models.md that lists them.
//! `JACKALOPE_WRITE_PAGES=1 cargo test -p jackalope-text page` writes the table anew.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use jackalope_testing::pages;
use jackalope_text::{AnswerFormat, ChatTemplate, ReasoningFormat, Tokenizer, ToolFormat};
use serde_json::{Value, json};

use crate::checkpoint::{Checkpoint, data_json};

/// Published checkpoints, with what their templates and vocabularies show of the forms.
struct Published {
    model_types: Vec<String>,
    models: String,
    /// Parts of the template; `None` if no template is known.
    template: Option<String>,
    vocabulary: Vec<String>,
}

fn published() -> Vec<Published> {
    let strings = |list: &Value| -> Vec<String> {
        list.as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned()).collect()
    };
    let read = |row: &Value| Published {
        model_types: strings(&row["model_types"]),
        models: row["models"].as_str().unwrap().to_owned(),
        template: row["template"].as_str().map(str::to_owned),
        vocabulary: strings(&row["vocabulary"]),
    };
    data_json("forms.json").as_array().unwrap().iter().map(read).collect()
}

/// Returns the format of a checkpoint with this template and these special tokens.
fn detected(template: &str, vocabulary: &[String]) -> AnswerFormat {
    let token = |(idx, text): (usize, &String)| {
        let token = json!({
            "content": text, "special": true, "lstrip": false, "rstrip": false,
            "normalized": false, "single_word": false,
        });
        ((100_000 + idx).to_string(), token)
    };
    let added: serde_json::Map<String, Value> = vocabulary.iter().enumerate().map(token).collect();
    let config = json!({ "added_tokens_decoder": added }).to_string();
    // Parts of templates need not be Jinja.
    let source = format!("{{% raw %}}{template}{{% endraw %}}");
    let checkpoint = Checkpoint::of("gpt2")
        .with("tokenizer_config.json", &config)
        .with("chat_template.jinja", &source);
    let tokenizer = Tokenizer::load(checkpoint.dir()).unwrap();
    let template = ChatTemplate::load(checkpoint.dir(), &tokenizer).unwrap();
    AnswerFormat::detect(&tokenizer, template.as_ref())
}

fn table(rows: &[Published]) -> String {
    let mut lines = BTreeSet::new();
    for row in rows {
        let forms = match &row.template {
            Some(template) => {
                let format = detected(template, &row.vocabulary);
                let tools = format.tools.map(|it| format!("`{}`", it.name()));
                let reasoning = format.reasoning.map(|it| format!("`{}`", it.name()));
                let tools = tools.unwrap_or("none: calls stay text".to_owned());
                format!("{tools} | {}", reasoning.unwrap_or("none".to_owned()))
            }
            None => "not recorded | not recorded".to_owned(),
        };
        for model_type in &row.model_types {
            lines.insert((model_type, &row.models, forms.clone()));
        }
    }
    let mut table =
        "| `model_type` | Checkpoints | Tool calls | Reasoning |\n|---|---|---|---|\n".to_owned();
    for (model_type, models, forms) in lines {
        writeln!(table, "| `{model_type}` | {models} | {forms} |").unwrap();
    }
    table
}

#[test]
fn the_page_lists_the_forms_that_checkpoints_are_found_to_have() {
    let page = std::fs::read_to_string(pages::path("models.md")).unwrap();
    let rows = published();
    let listed: BTreeSet<&str> =
        rows.iter().flat_map(|row| &row.model_types).map(String::as_str).collect();
    let families = pages::section(&page, "families").lines().skip(1);
    let computed: BTreeSet<&str> =
        families.filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    assert_eq!(listed, computed, "tests/data/forms.json and the families of docs/models.md");

    pages::check("models.md", &[("forms", table(&rows))], env!("CARGO_PKG_NAME"));
}

/// Signs of two families, as a template has them that shows several forms.
#[test]
fn the_sign_of_its_own_form_selects_a_family() {
    let tools = |template: &str| detected(template, &[]).tools.map(|it| it.name());
    // DeepSeek's templates name the special token once, in a variable.
    let dsml = "{%- set dsml_token = \"｜DSML｜\" -%}<{{ dsml_token }}function_calls>";
    assert_eq!(tools(dsml), Some("deepseek_v32"));
    assert_eq!(tools("<longcat_tool_call><longcat_arg_key>"), Some("longcat"));
    assert_eq!(tools("<tool_call>{{ tools }}<tool_calls>"), Some("hermes"));
    assert_eq!(tools("tools <|tool_call:start|>"), Some("solar_open2"));
    let reasoning =
        |template: &str| detected(template, &[]).reasoning.map(|reasoning| reasoning.name());
    assert_eq!(reasoning("<think></think><response></response>"), Some("ernie45"));
    assert_eq!(reasoning("<think></think>"), Some("think"));
    assert_eq!(reasoning("<｜hy_Assistant｜><think></think>"), Some("hunyuan_a13b"));
    assert_eq!(reasoning("<|think:start|><|think:end|>"), Some("think_marks"));
}

/// A vocabulary shows a form only if the template shows none.
#[test]
fn a_template_goes_before_the_vocabulary() {
    let tokens = ["<|action_start|>", "<|plugin|>", "<|action_end|>"].map(str::to_owned);
    let tools = |template: &str| detected(template, &tokens).tools.map(|it| it.name());
    assert_eq!(tools("tools <tool_call>"), Some("hermes"));
    assert_eq!(tools("tools"), Some("internlm"));
    assert_eq!(tools(""), Some("internlm"));
}

#[test]
fn every_name_of_the_page_selects_its_form() {
    for row in published() {
        let Some(template) = &row.template else { continue };
        let format = detected(template, &row.vocabulary);
        let tools = format.tools.map(|it| it.name());
        assert_eq!(tools.and_then(ToolFormat::named), format.tools, "{}", row.models);
        let reasoning = format.reasoning.map(|it| it.name());
        assert_eq!(reasoning.and_then(ReasoningFormat::named), format.reasoning);
    }
}
