//! Which file of a checkpoint determines which setting, and the errors for bad files.

use jackalope_text::{
    ChatPrompt, ChatTemplate, GenerationDefaults, ModelText, TextError, TextLoadError, Tokenizer,
};
use serde_json::{Map, Value, json};

use crate::checkpoint::{Checkpoint, data};

fn eos(checkpoint: &Checkpoint) -> Vec<u32> {
    Tokenizer::load(checkpoint.dir()).unwrap().eos_token_ids().to_vec()
}

/// Renders one message with the template of a checkpoint.
fn rendered(checkpoint: &Checkpoint, tools: Option<&[Value]>) -> Option<String> {
    let text = ModelText::load(checkpoint.dir()).unwrap();
    let messages = [json!({"role": "user", "content": "Hi"})];
    let prompt =
        ChatPrompt { messages: &messages, tools, kwargs: &Map::new(), add_generation_prompt: true };
    text.template.map(|template| template.unwrap().render(&prompt).unwrap().text().to_owned())
}

#[test]
fn an_answer_ends_at_the_tokens_of_the_model_and_of_the_tokenizer() {
    let qwen = || Checkpoint::of("qwen");
    assert!(eos(&qwen()).is_empty());
    let config = r#"{"eos_token_id": 5, "text_config": {"eos_token_id": 6}}"#;
    assert_eq!(eos(&qwen().with("config.json", config)), [5]);
    let inner = r#"{"eos_token_id": null, "text_config": {"eos_token_id": [6, 7]}}"#;
    assert_eq!(eos(&qwen().with("config.json", inner)), [6, 7]);
    // Python writes numbers that JSON does not have, as in the configurations of Mamba-2 hybrids.
    let of_python = r#"{"time_step_limit": [0.0, Infinity], "eos_token_id": [7, 9]}"#;
    assert_eq!(eos(&qwen().with("config.json", of_python)), [7, 9]);
    let torn = qwen().with("config.json", r#"{"time_step_limit": [0.0, Infinity"#);
    let torn = Tokenizer::load(torn.dir()).unwrap_err().to_string();
    assert!(torn.contains("config.json"), "{torn}");
    // The generation configuration takes precedence, if it names any.
    let both = qwen().with("config.json", config);
    assert_eq!(eos(&both.with("generation_config.json", r#"{"eos_token_id": [9, 8, 9]}"#)), [8, 9]);
    let both = qwen().with("config.json", config);
    assert_eq!(eos(&both.with("generation_config.json", r#"{"temperature": 0.6}"#)), [5]);
    // The tokenizer's own token is one of them.
    let own = r#"{"eos_token": "<|im_end|>"}"#;
    let end = Tokenizer::load(qwen().dir()).unwrap().token_id("<|im_end|>").unwrap();
    let all = qwen().with("config.json", config).with("tokenizer_config.json", own);
    assert_eq!(eos(&all), [5, end]);
    let older = r#"{"eos_token": {"content": "<|im_end|>", "lstrip": false}}"#;
    assert_eq!(eos(&qwen().with("special_tokens_map.json", older)), [end]);
}

#[test]
fn tokens_that_only_the_configuration_knows_are_added() {
    let config = json!({"added_tokens_decoder": {
        "708": {"content": "<|new|>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true},
        "707": {"content": "<new>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": false},
    }});
    let checkpoint = Checkpoint::of("qwen").with("tokenizer_config.json", &config.to_string());
    let tokenizer = Tokenizer::load(checkpoint.dir()).unwrap();
    assert_eq!(tokenizer.encode("<new><|new|>", false).unwrap(), [707, 708]);
    assert_eq!(tokenizer.decode(&[707, 708], true), "<new>");
}

#[test]
fn the_configuration_says_whether_a_text_begins_with_a_special_token() {
    let begins = |family: &str, config: &str| {
        let checkpoint = Checkpoint::of(family).with("tokenizer_config.json", config);
        let tokenizer = Tokenizer::load(checkpoint.dir()).unwrap();
        let tokens = tokenizer.encode("a", true).unwrap();
        (tokens.len() == 2).then(|| tokenizer.token_text(tokens[0]))
    };
    let bos = Some("<|begin_of_text|>".to_owned());
    let end = Some("<|endoftext|>".to_owned());
    assert_eq!(begins("llama3", "{}"), bos);
    assert_eq!(begins("llama3", r#"{"add_bos_token": false}"#), None);
    assert_eq!(begins("llama3", r#"{"add_bos_token": true}"#), None);
    assert_eq!(begins("qwen", r#"{"bos_token": "<|endoftext|>"}"#), None);
    assert_eq!(begins("qwen", r#"{"bos_token": "<|endoftext|>", "add_bos_token": true}"#), end);
    let ends = r#"{"eos_token": "<|endoftext|>", "add_eos_token": true}"#;
    assert_eq!(begins("llama3", ends), None);
}

#[test]
fn a_named_token_is_special_if_the_model_has_it() {
    let config = r#"{"unk_token": "<think>", "pad_token": "[PAD]"}"#;
    let checkpoint = Checkpoint::of("qwen").with("tokenizer_config.json", config);
    let tokenizer = Tokenizer::load(checkpoint.dir()).unwrap();
    let think = tokenizer.token_id("<think>").unwrap();
    assert!(tokenizer.is_special(think));
    assert_eq!(tokenizer.token_id("[PAD]"), None);
    assert_eq!(tokenizer.vocab_size(), 707);
}

#[test]
fn settings_for_training_batches_are_ignored() {
    let path = data("tokenizers/gpt2/tokenizer.json");
    let mut file: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    file["truncation"] = json!({"direction": "Right", "max_length": 3,
        "strategy": "LongestFirst", "stride": 0});
    file["padding"] = json!({"strategy": {"Fixed": 64}, "direction": "Right",
        "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "!"});
    let checkpoint = Checkpoint::empty().with("tokenizer.json", &file.to_string());
    let tokenizer = Tokenizer::load(checkpoint.dir()).unwrap();
    let text = "more than three tokens, fewer than 64";
    assert_eq!(tokenizer.decode(&tokenizer.encode(text, true).unwrap(), false), text);
}

#[test]
fn the_template_comes_from_the_first_file_that_has_one() {
    let tools = [json!({"type": "function", "function": {"name": "f"}})];
    let checkpoint = Checkpoint::of("qwen");
    assert_eq!(rendered(&checkpoint, None), None);
    let checkpoint = checkpoint.with("chat_template.json", r#"{"chat_template": "json"}"#);
    assert_eq!(rendered(&checkpoint, None).unwrap(), "json");
    let checkpoint = checkpoint.with("tokenizer_config.json", r#"{"chat_template": null}"#);
    assert_eq!(rendered(&checkpoint, None).unwrap(), "json");
    let listed = json!({"chat_template": [
        {"name": "rag", "template": "rag"},
        {"name": "tool_use", "template": "listed with tools"},
        {"name": "default", "template": "listed"},
    ]});
    let checkpoint = checkpoint.with("tokenizer_config.json", &listed.to_string());
    assert_eq!(rendered(&checkpoint, None).unwrap(), "listed");
    assert_eq!(rendered(&checkpoint, Some(&[])).unwrap(), "listed");
    assert_eq!(rendered(&checkpoint, Some(&tools)).unwrap(), "listed with tools");
    let checkpoint = checkpoint.with("chat_template.jinja", "file");
    assert_eq!(rendered(&checkpoint, Some(&tools)).unwrap(), "file");
    let checkpoint = checkpoint.with("additional_chat_templates/tool_use.jinja", "file, tools");
    assert_eq!(rendered(&checkpoint, None).unwrap(), "file");
    assert_eq!(rendered(&checkpoint, Some(&tools)).unwrap(), "file, tools");
}

#[test]
fn a_bad_checkpoint_is_refused_by_the_name_of_the_file() {
    let qwen = || Checkpoint::of("qwen");
    let kimi = |model: &str| {
        let config = r#"{"tokenizer_class": "TikTokenTokenizer"}"#;
        Checkpoint::empty().with("tokenizer_config.json", config).with("tiktoken.model", model)
    };
    let regex = r#"{"version": "1.0", "added_tokens": [], "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "truncation": null, "padding": null,
        "decoder": {"type": "CTC", "pad_token": "x", "word_delimiter_token": "|", "cleanup": true},
        "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}"#;
    let far = regex.replace("\"a\": 0", "\"a\": 4294967295").replace("CTC", "WordPiece");
    let far = far.replace("\"pad_token\": \"x\"", "\"prefix\": \"x\"");
    let cases = [
        (Checkpoint::empty(), "tokenizer.json does not exist", "hint: this folder is no complete"),
        (
            Checkpoint::empty().with("tokenizer.model", ""),
            "tokenizer.model: 0 pieces, expected 1 to",
            "hint:",
        ),
        (
            Checkpoint::empty().with("tiktoken.model", "YQ== 0\n"),
            "tiktoken.model: tokenizer_class is not stated",
            "hint:",
        ),
        (kimi("YQ== 0\nYg== 2\n"), "line 2 has rank \"2\", expected 1", "hint:"),
        (kimi("YQ== 0\n? 1\n"), "token 1 is \"?\", expected base64", "hint:"),
        (Checkpoint::empty().with("tekken.json", "{}"), "tekken.json: missing field", "hint:"),
        (Checkpoint::empty().with("tokenizer.json", "{\"version\": "), "tokenizer.json", "hint:"),
        (Checkpoint::empty().with("tokenizer.json", "{}"), "tokenizer.json", "hint:"),
        (Checkpoint::empty().with("tokenizer.json", regex), "unsupported decoder CTC", "hint:"),
        (Checkpoint::empty().with("tokenizer.json", &far), "token number 4294967295", "hint:"),
        (qwen().with("config.json", "nonsense"), "config.json: expected", "hint:"),
        (qwen().with("tokenizer_config.json", "[]"), "tokenizer_config.json", "hint:"),
        (qwen().with("generation_config.json", "{\"eos_token_id\": \"x\"}"), "generation", "hint:"),
    ];
    for (checkpoint, what, remedy) in cases {
        let error = ModelText::load(checkpoint.dir()).unwrap_err().to_string();
        assert!(error.contains(what) && error.contains(remedy), "{error}");
    }
    let error = ModelText::load("/nowhere/at/all".as_ref()).unwrap_err();
    assert!(
        matches!(error, TextLoadError::Missing { .. })
            && error.to_string().contains("no such folder")
    );
}

#[test]
fn a_template_that_cannot_be_used_is_an_error_of_chats_only() {
    let long = "x".repeat((1 << 20) + 1);
    let of_config = |template: Value| json!({"chat_template": template}).to_string();
    let (file, config) = ("chat_template.jinja", "tokenizer_config.json");
    let tools = "additional_chat_templates/tool_use.jinja";
    for (files, at_fault, reason) in [
        (vec![(file, "a\n{% if %}".to_owned())], file, "(in chat template:2)"),
        (vec![(file, long.clone())], file, "it has 1048577 bytes"),
        (vec![(file, "a".to_owned()), (tools, long.clone())], "tool_use.jinja", "1048577 bytes"),
        (vec![(config, of_config(json!(long)))], config, "it has 1048577 bytes"),
        (vec![(config, of_config(json!([])))], config, "none is named default"),
        (
            vec![(config, of_config(json!([{"name": "rag", "template": ""}])))],
            config,
            "it lists [\"rag\"], but none is named default or tool_use",
        ),
        (vec![(config, of_config(json!(7)))], config, "neither a text nor a list"),
    ] {
        let checkpoint = files
            .iter()
            .fold(Checkpoint::of("qwen"), |checkpoint, (name, text)| checkpoint.with(name, text));
        let error = ChatTemplate::check(checkpoint.dir()).unwrap_err().to_string();
        assert!(error.contains(at_fault) && error.contains(reason), "{error}");
        let text = ModelText::load(checkpoint.dir()).unwrap();
        let error = text.chat_template().unwrap_err();
        let is_named = matches!(&error, TextError::BrokenTemplate { file, .. } if file == at_fault);
        assert!(is_named, "{error}");
        let error = error.to_string();
        assert!(error.contains(reason) && error.contains("hint: "), "{error}");
    }
    assert!(ChatTemplate::check(Checkpoint::of("qwen").dir()).is_ok());
}

#[test]
fn sampling_defaults_come_from_generation_config() {
    let found = |config: Option<&str>| {
        let qwen = Checkpoint::of("qwen");
        let qwen = match config {
            Some(config) => qwen.with("generation_config.json", config),
            None => qwen,
        };
        ModelText::load(qwen.dir()).map(|text| text.generation)
    };
    assert_eq!(found(None).unwrap(), GenerationDefaults::default());
    let qwen3 = r#"{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "x": 1}"#;
    let recommended = found(Some(qwen3)).unwrap();
    assert_eq!(recommended.temperature(), Some(0.6));
    assert_eq!((recommended.top_k, recommended.top_p), (Some(20), Some(0.95)));
    assert_eq!((recommended.min_p, recommended.repetition_penalty), (None, None));
    let greedy = found(Some(r#"{"do_sample": false, "temperature": 0.6}"#)).unwrap();
    assert_eq!(greedy.temperature(), Some(0.0));
    for bad in [r#"{"temperature": -1}"#, r#"{"top_p": 1.5}"#, r#"{"repetition_penalty": 0}"#] {
        let error = found(Some(bad)).unwrap_err();
        assert!(matches!(error, TextLoadError::OutOfRange { .. }), "{error}");
    }
    assert!(matches!(found(Some(r#"{"top_k": "many"}"#)), Err(TextLoadError::Json { .. })));
}
