//! The model that comes with the repository.

use std::path::Path;

use jackalope_text::{AnswerParser, ChatPrompt, ModelText, Segment, ToolCall};
use serde_json::{Map, json};

use crate::tool_families::parse;

#[test]
fn the_shipped_model_takes_tools_and_writes_calls() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/jackalope-mini");
    let text = ModelText::load(&dir).unwrap();
    let tokenizer = &text.tokenizer;
    let end = tokenizer.token_id("<|im_end|>").unwrap();
    assert!(tokenizer.eos_token_ids().contains(&end));

    let tools = [json!({"type": "function", "function": {
        "name": "get_weather",
        "description": "Tells the weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    }})];
    let call = json!({"id": "call_1", "type": "function",
        "function": {"name": "get_weather", "arguments": "{\"city\": \"Oslo\"}"}});
    let messages = [
        json!({"role": "system", "content": "Your name is Ada."}),
        json!({"role": "user", "content": "What is the weather in Oslo?"}),
        json!({"role": "assistant", "content": null, "tool_calls": [call]}),
        json!({"role": "tool", "tool_call_id": "call_1", "content": "sunny, 21 °C"}),
        json!({"role": "user", "content": [{"type": "text", "text": "Thank you!"}]}),
    ];
    let prompt = ChatPrompt {
        messages: &messages,
        tools: Some(&tools),
        kwargs: &Map::new(),
        add_generation_prompt: true,
    };
    let rendered = text.chat_template().unwrap().render(&prompt).unwrap();
    let rendered = rendered.text();
    for part in [
        "Your name is Ada.",
        "{\"type\": \"function\", \"function\": {\"name\": \"get_weather\"",
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>",
        "sunny, 21 °C",
        "<|im_start|>user\nThank you!<|im_end|>\n",
    ] {
        assert!(rendered.contains(part), "{part:?} is missing in\n{rendered}");
    }
    assert!(rendered.ends_with("<|im_start|>assistant\n"));

    let tokens = text.encode_chat(&prompt).unwrap();
    assert_eq!(tokenizer.decode(&tokens, false), rendered);
    // Every marker is one token, so the model sees what it was trained with.
    let markers = tokens.iter().filter(|token| tokenizer.is_special(**token)).count();
    assert_eq!(markers, rendered.matches("<|im_").count());

    // Its answer comes back as a call.
    let answer = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call><|im_end|>";
    let mut detokenizer = text.answer_detokenizer(&text.answer);
    let tokens = tokenizer.encode(answer, false).unwrap();
    let mut pieces: Vec<String> = tokens.iter().map(|token| detokenizer.push(*token)).collect();
    pieces.push(detokenizer.finish());
    let segments = parse(AnswerParser::new(&text.answer, None, false), &pieces);
    let arguments = "{\"city\": \"Oslo\"}".to_owned();
    assert_eq!(
        segments,
        [Segment::Call(ToolCall { id: None, name: "get_weather".to_owned(), arguments })]
    );
}
