//! The text side of a checkpoint.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use crate::error::{TextError, TextLoadError};
use crate::generation::GenerationDefaults;
use crate::grammar::{GrammarCompiler, GrammarError};
use crate::template::{ChatPrompt, ChatTemplate};
use crate::tokenizer::{Detokenizer, Tokenizer};
use crate::{AnswerFormat, TokenId};

/// The tokenizer and the chat template of one checkpoint.
#[derive(Debug)]
pub struct ModelText {
    /// Converts text to tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Chat template, which turns a conversation into a prompt; `None` for base models. An error if
    /// the checkpoint's template has a fault, which ends conversations but no other requests.
    pub template: Option<Result<ChatTemplate, TextError>>,
    /// Recommended sampling parameters.
    pub generation: GenerationDefaults,
    /// Format of reasoning and tool calls in the model's answers.
    pub answer: AnswerFormat,
    grammars: OnceLock<Result<GrammarCompiler, GrammarError>>,
}

impl ModelText {
    /// Reads the text files of the checkpoint in `dir`.
    ///
    /// # Errors
    /// Fails if a file is missing, unreadable, too large or malformed; a template that cannot be
    /// used is an error of [`ModelText::template`] instead.
    pub fn load(dir: &Path) -> Result<ModelText, TextLoadError> {
        let tokenizer = Tokenizer::load(dir)?;
        let template = match ChatTemplate::load(dir, &tokenizer) {
            Err(TextLoadError::Template { path, reason }) => {
                let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                Some(Err(TextError::BrokenTemplate { file, reason }))
            }
            read => read?.map(Ok),
        };
        let generation = GenerationDefaults::load(dir)?;
        let usable = template.as_ref().and_then(|it| it.as_ref().ok());
        let answer = AnswerFormat::detect(&tokenizer, usable);
        let grammars = OnceLock::new();
        Ok(ModelText { tokenizer: Arc::new(tokenizer), template, generation, answer, grammars })
    }

    /// Returns the chat template.
    ///
    /// # Errors
    /// Fails if there is none, or it has a fault.
    pub fn chat_template(&self) -> Result<&ChatTemplate, TextError> {
        let template = self.template.as_ref().ok_or(TextError::NoTemplate)?;
        template.as_ref().map_err(Clone::clone)
    }

    /// Returns the tokens of a conversation. The template writes the special tokens itself, so none
    /// are added.
    ///
    /// # Errors
    /// Fails if there is no template, it has a fault, or it refuses the conversation.
    pub fn encode_chat(&self, prompt: &ChatPrompt<'_>) -> Result<Vec<TokenId>, TextError> {
        self.tokenizer.encode_rendered(&self.chat_template()?.render(prompt)?)
    }

    /// Creates a detokeniser for one answer.
    pub fn detokenizer(&self) -> Detokenizer {
        Detokenizer::new(Arc::clone(&self.tokenizer))
    }

    /// Returns the compiler of constraints. The first call creates it, which takes some tenths of a
    /// second for a large vocabulary.
    ///
    /// # Errors
    /// Fails if the vocabulary is malformed.
    pub fn grammar_compiler(&self) -> Result<&GrammarCompiler, GrammarError> {
        let compiler = self.grammars.get_or_init(|| GrammarCompiler::new(&self.tokenizer));
        compiler.as_ref().map_err(Clone::clone)
    }

    /// Like [`ModelText::detokenizer`], for an answer that is parsed into segments: keeps the
    /// special tokens that `format` reads.
    pub fn answer_detokenizer(&self, format: &AnswerFormat) -> Detokenizer {
        Detokenizer::keeping(Arc::clone(&self.tokenizer), format.kept_tokens())
    }
}
