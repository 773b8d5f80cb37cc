//! Writes a conversation to a file.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::Context;
use serde_json::{Value, json};

/// Writes the messages: JSON, as a request has them, if the name ends with `.json`, else Markdown.
///
/// # Errors
/// If the file cannot be written.
pub(super) fn save(path: &Path, messages: &[Value]) -> anyhow::Result<()> {
    let is_json = path.extension().is_some_and(|it| it.eq_ignore_ascii_case("json"));
    let text = if is_json {
        format!("{:#}\n", json!({ "messages": messages }))
    } else {
        markdown(messages)
    };
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

fn markdown(messages: &[Value]) -> String {
    let mut text = String::new();
    for message in messages {
        let of = |key: &str| message[key].as_str().unwrap_or_default();
        write!(text, "**{}**\n\n{}\n\n", of("role"), of("content").trim()).expect("text takes all");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_is_written_for_people_and_for_programs() {
        let messages = [
            json!({"role": "user", "content": "Hello"}),
            json!({"role": "assistant", "content": "Hi.\n"}),
        ];
        assert_eq!(markdown(&messages), "**user**\n\nHello\n\n**assistant**\n\nHi.\n\n");
        let dir = std::env::temp_dir().join(format!("jackalope-transcript-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        save(&dir.join("talk.json"), &messages).unwrap();
        let kept: Value =
            serde_json::from_str(&fs::read_to_string(dir.join("talk.json")).unwrap()).unwrap();
        assert_eq!(kept["messages"][1]["content"], "Hi.\n");
        fs::remove_dir_all(&dir).unwrap();
    }
}
