//! Commands of a chat: lines that begin with a slash.

use std::path::PathBuf;

use anyhow::{bail, ensure};

/// Explains the commands and the input of several lines.
pub(super) const COMMANDS: &str = "\
/clear             start a new conversation
/system [TEXT]     show or set the system prompt; `none` removes it
/params [NAME VALUE]  show or set a parameter; `default` as value resets it
/retry             generate the last answer again
/save FILE         write the conversation: JSON if the name ends with .json, else Markdown
/exit              end
A line that ends with \\ continues on the next one; \"\"\" begins and ends a message of several lines.
Ctrl-C ends an answer, Ctrl-D the conversation.";

/// A command of the user.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Command {
    Clear,
    /// Shows the system prompt, or sets it.
    System(Option<String>),
    /// Shows the parameters, or sets one.
    Params(Option<String>),
    Save(PathBuf),
    Retry,
    Help,
    Exit,
}

impl Command {
    /// Parses a line. Returns `None` if it is a message.
    ///
    /// # Errors
    /// If the line looks like a command, but is none.
    pub(super) fn parse(input: &str) -> anyhow::Result<Option<Command>> {
        let line = input.trim();
        let Some(word) = command_word(line) else { return Ok(None) };
        let rest = line[word.len()..].trim();
        let argument = (!rest.is_empty()).then(|| rest.to_owned());
        let command = match (word, argument) {
            ("/system", argument) => Command::System(argument),
            ("/params" | "/set", argument) => Command::Params(argument),
            ("/save", Some(path)) => Command::Save(PathBuf::from(path)),
            ("/save", None) => bail!("`/save` needs the name of a file"),
            (word, argument) => {
                let command = match word {
                    "/clear" | "/new" => Command::Clear,
                    "/retry" => Command::Retry,
                    "/help" => Command::Help,
                    "/exit" | "/quit" | "/bye" => Command::Exit,
                    _ => bail!("there is no command {word}\nhint: /help lists the commands"),
                };
                ensure!(argument.is_none(), "`{word}` takes no argument");
                command
            }
        };
        Ok(Some(command))
    }
}

/// Returns the first word if it looks like a command: a slash and lower-case letters, which is not a
/// path.
fn command_word(line: &str) -> Option<&str> {
    let word = line.split_whitespace().next()?;
    let name = word.strip_prefix('/')?;
    (!name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase())).then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_command_is_no_message_and_a_path_is_one() {
        let refusal = Command::parse("/clera now").unwrap_err().to_string();
        assert!(refusal.starts_with("there is no command /clera\nhint: "), "{refusal}");
        for said in ["/etc/hosts: what is this?", "/", "a /b", "/ hello", "/Users", "// x"] {
            assert_eq!(Command::parse(said).unwrap(), None, "{said}");
        }
    }

    #[test]
    fn commands_take_the_rest_of_the_line() {
        let of = |text: &str| Command::parse(text).unwrap().unwrap();
        assert_eq!(of(" /system Be  brief. "), Command::System(Some("Be  brief.".to_owned())));
        assert_eq!(of("/params"), Command::Params(None));
        assert_eq!(of("/save my talk.md"), Command::Save(PathBuf::from("my talk.md")));
        assert!(Command::parse("/save").is_err() && Command::parse("/clear all").is_err());
    }
}
