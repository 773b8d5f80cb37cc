//! The checkpoint's own chat template: a conversation in, the prompt's text out.
//!
//! The reference is `apply_chat_template` of transformers 5 as mlx-lm calls it; `tests/data`
//! holds what that rendered. A template is a program that somebody else wrote, so its source, its
//! steps and its output have limits (the memory of a string it builds by doubling has none).

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

use crate::error::{LoadError, TextError};
use crate::tokenizer::Tokenizer;
use control::ControlTokens;
use engine::Engine;
use messages::Forms;
pub use rendered::RenderedPrompt;

/// Variables that a request sets by other fields than `chat_template_kwargs`.
const RESERVED: [&str; 3] = ["messages", "tools", "add_generation_prompt"];

/// A conversation that is to become a prompt.
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
    /// Some checkpoints have one of its own for conversations with tools.
    tool_use: Option<Template>,
    /// Variables that every template gets: the named special tokens.
    special_tokens: Vec<(&'static str, String)>,
    /// Whether the model marks its reasoning: what `enable_thinking` is if nobody says otherwise.
    has_thinking: bool,
    /// What texts of a conversation may not write; none if they may.
    control: Option<ControlTokens>,
}

/// One Jinja template and what it was found to expect.
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
    /// A file is unreadable or corrupt, or the template is not Jinja.
    pub fn load(dir: &Path, tokenizer: &Tokenizer) -> Result<Option<ChatTemplate>, LoadError> {
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
        let control = ControlTokens::of(tokenizer, &sources)
            .map_err(|reason| LoadError::Tokenizer { path: dir.join("tokenizer.json"), reason })?;
        template.control = Some(control);
        Ok(Some(template))
    }

    /// `strftime_now` gives this moment, in UTC, instead of the current local time. The same
    /// conversation is then always the same prompt.
    pub fn at_fixed_time(mut self, unix_seconds: i64) -> ChatTemplate {
        self.default.engine.fix_time(unix_seconds);
        if let Some(tool_use) = &mut self.tool_use {
            tool_use.engine.fix_time(unix_seconds);
        }
        self
    }

    /// Lets texts of a conversation write control tokens, as most servers do.
    pub fn with_control_tokens_in_text(mut self) -> ChatTemplate {
        self.control = None;
        self
    }

    /// Renders a conversation.
    ///
    /// Messages are first brought into the form that templates expect: keys that are `null` are
    /// left out, missing content is empty, lists of text parts become text unless the template
    /// takes lists, the arguments of tool calls become objects unless it takes strings, results of
    /// tools bear the tool's name, and
    /// reasoning is found under each of its names. Control tokens that texts of the conversation
    /// write are kept apart from those that the template writes.
    ///
    /// # Errors
    /// A message has an impossible form, or the template refuses the conversation.
    pub fn render(&self, prompt: &ChatPrompt<'_>) -> Result<RenderedPrompt, TextError> {
        if prompt.messages.is_empty() {
            return Err(TextError::NoMessages);
        }
        if let Some(name) = RESERVED.iter().find(|name| prompt.kwargs.contains_key(**name)) {
            return Err(TextError::ReservedKwarg { name: (*name).to_owned() });
        }
        // An empty list of tools is no list, as in mlx-lm.
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

    /// The template itself, for what it says about the answers; the one for tools if there is one.
    pub(crate) fn source(&self) -> &str {
        &self.tool_use.as_ref().unwrap_or(&self.default).source
    }

    /// Renders messages as they are.
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
    fn compile(path: &Path, source: &str) -> Result<Template, LoadError> {
        let engine = Engine::compile(source)
            .map_err(|reason| LoadError::Template { path: path.to_owned(), reason })?;
        Ok(Template { engine, forms: Forms::of_source(source), source: source.to_owned() })
    }
}
