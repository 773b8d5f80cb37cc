//! The checkpoint's own chat template, which turns a conversation into the text of a prompt.
//!
//! The reference is `apply_chat_template` of transformers 5 as mlx-lm calls it; `tests/data` holds
//! its output. A template is untrusted code, so its source, its steps and its output have limits
//! (but not the memory of a string that it builds by doubling).

mod control;
mod engine;
mod generation;
mod json;
mod messages;
mod methods;
mod python;
mod rendered;
mod source;

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{TextError, TextLoadError};
use crate::tokenizer::Tokenizer;
use control::ControlTokens;
use engine::Engine;
use messages::Forms;
pub use rendered::RenderedPrompt;

/// Template variables that a request must set by other fields than `chat_template_kwargs`.
const RESERVED: [&str; 3] = ["messages", "tools", "add_generation_prompt"];

/// The input of a chat template.
#[derive(Debug, Clone, Copy)]
pub struct ChatPrompt<'a> {
    /// The messages in the form of the OpenAI API.
    pub messages: &'a [Value],
    /// The tools in the form of the OpenAI API.
    pub tools: Option<&'a [Value]>,
    /// Further variables for the template, such as `enable_thinking`.
    pub kwargs: &'a Map<String, Value>,
    /// Whether the prompt ends with the beginning of the assistant's answer.
    pub add_generation_prompt: bool,
}

/// The chat template of one checkpoint.
#[derive(Debug)]
pub struct ChatTemplate {
    default: Template,
    /// Separate template for conversations with tools, if the checkpoint has one.
    tool_use: Option<Template>,
    /// Variables passed to every template: the named special tokens.
    special_tokens: Vec<(&'static str, String)>,
    /// Whether the model marks its reasoning; the default of `enable_thinking`.
    has_thinking: bool,
    /// Control tokens that texts of a conversation must not write; `None` allows all.
    control: Option<ControlTokens>,
}

/// One Jinja template and the forms of messages that it accepts.
#[derive(Debug)]
struct Template {
    engine: Engine,
    forms: Forms,
    source: String,
}

impl ChatTemplate {
    /// Reads the chat template of the checkpoint in `dir`: `chat_template.jinja`, else the one in
    /// `tokenizer_config.json`, else the one in `chat_template.json`. `None` if it has none.
    ///
    /// # Errors
    /// Fails if a file is unreadable or corrupt, or the template cannot be used.
    pub fn load(dir: &Path, tokenizer: &Tokenizer) -> Result<Option<ChatTemplate>, TextLoadError> {
        let Some(found) = source::find(dir)? else { return Ok(None) };
        let special_tokens = tokenizer.special_tokens().iter();
        let mut template = ChatTemplate {
            default: Template::compile(&found.path, &found.default)?,
            tool_use: None,
            special_tokens: special_tokens.map(|(name, text)| (name, text.to_owned())).collect(),
            has_thinking: tokenizer.has_thinking(),
            control: None,
        };
        if let Some(source) = &found.tool_use {
            template.tool_use = Some(Template::compile(&found.path, source)?);
        }
        let probed = |one: &Template| one.forms.probed(|prompt| template.run(one, prompt));
        let forms = (probed(&template.default), template.tool_use.as_ref().map(probed));
        template.default.forms = forms.0;
        if let (Some(tool_use), Some(forms)) = (&mut template.tool_use, forms.1) {
            tool_use.forms = forms;
        }
        let sources = [Some(&found.default), found.tool_use.as_ref()];
        let sources: Vec<&str> = sources.into_iter().flatten().map(String::as_str).collect();
        let control = ControlTokens::of(tokenizer, &sources).map_err(|reason| {
            TextLoadError::Tokenizer { path: dir.join("tokenizer.json"), reason }
        })?;
        template.control = Some(control);
        Ok(Some(template))
    }

    /// Checks that the chat template of the checkpoint in `dir`, if it has one, can be used.
    ///
    /// # Errors
    /// Fails if a file is unreadable or corrupt, or the template cannot be used.
    pub fn check(dir: &Path) -> Result<(), TextLoadError> {
        let Some(found) = source::find(dir)? else { return Ok(()) };
        let sources = [Some(&found.default), found.tool_use.as_ref()];
        sources.into_iter().flatten().try_for_each(|source| {
            Template::compile(&found.path, source)?;
            Ok(())
        })
    }

    /// Makes `strftime_now` return this time, in UTC, instead of the current local time, so that a
    /// conversation always gives the same prompt.
    pub fn at_fixed_time(mut self, unix_seconds: i64) -> ChatTemplate {
        self.default.engine.fix_time(unix_seconds);
        if let Some(tool_use) = &mut self.tool_use {
            tool_use.engine.fix_time(unix_seconds);
        }
        self
    }

    /// Lets control tokens that are written in the text of messages count as control tokens, as
    /// most servers do.
    pub fn with_control_tokens_in_text(mut self) -> ChatTemplate {
        self.control = None;
        self
    }

    /// Renders a conversation.
    ///
    /// Converts the messages to the form that templates expect first: keys that are `null` are
    /// removed, missing content becomes empty, lists of text parts become text unless the template
    /// accepts lists, arguments of tool calls become objects unless it expects strings, results of
    /// tools get the tool's name, and reasoning is passed as `reasoning_content` and `thinking`.
    /// Control tokens in texts of the conversation are kept apart from those that the template
    /// writes.
    ///
    /// # Errors
    /// Fails if a message has an invalid form, or the template refuses the conversation.
    pub fn render(&self, prompt: &ChatPrompt<'_>) -> Result<RenderedPrompt, TextError> {
        if prompt.messages.is_empty() {
            return Err(TextError::NoMessages);
        }
        if let Some(name) = RESERVED.iter().find(|name| prompt.kwargs.contains_key(**name)) {
            return Err(TextError::ReservedKwarg { name: (*name).to_owned() });
        }
        // An empty list of tools counts as none, as in mlx-lm.
        let tools = prompt.tools.filter(|tools| !tools.is_empty());
        let template = match (&self.tool_use, tools) {
            (Some(tool_use), Some(_)) => tool_use,
            _ => &self.default,
        };
        let messages = template.forms.prepare(prompt.messages)?;
        let Some(control) = &self.control else {
            let output = self.run(template, &ChatPrompt { messages: &messages, tools, ..*prompt });
            return output.map(RenderedPrompt::of_text);
        };
        let messages = control.mark_messages(&messages);
        let tools = tools.map(|tools| control.mark_values(tools));
        let (tools, kwargs) = (tools.as_deref(), &control.mark_map(prompt.kwargs));
        let prompt = ChatPrompt { messages: &messages, tools, kwargs, ..*prompt };
        self.run(template, &prompt).map(RenderedPrompt::of_output)
    }

    /// Returns the source of the template, from which the answer format is detected; the one for
    /// tools if there is one.
    pub(crate) fn source(&self) -> &str {
        &self.tool_use.as_ref().unwrap_or(&self.default).source
    }

    /// Renders messages without converting them.
    fn run(&self, template: &Template, prompt: &ChatPrompt<'_>) -> Result<String, TextError> {
        let mut variables: Vec<(&str, minijinja::Value)> = Vec::new();
        for (name, text) in &self.special_tokens {
            variables.push((name, text.into()));
        }
        variables.push(("enable_thinking", self.has_thinking.into()));
        variables.push(("documents", ().into()));
        for (name, value) in prompt.kwargs {
            variables.push((name, engine::value_of(value)));
        }
        variables.push(("messages", engine::value_of_list(prompt.messages)));
        variables.push(("tools", prompt.tools.map(engine::value_of_list).into()));
        variables.push(("add_generation_prompt", prompt.add_generation_prompt.into()));
        template.engine.render(minijinja::Value::from_pairs(variables))
    }
}

impl Template {
    fn compile(path: &Path, source: &str) -> Result<Template, TextLoadError> {
        let engine = Engine::compile(source)
            .map_err(|reason| TextLoadError::Template { path: path.to_owned(), reason })?;
        Ok(Template { engine, forms: Forms::of_source(source), source: source.to_owned() })
    }
}
