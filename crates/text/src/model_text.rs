//! Everything textual about a checkpoint in one place.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use crate::detokenize::Detokenizer;
use crate::error::{LoadError, TextError};
use crate::generation::GenerationDefaults;
use crate::grammar::{GrammarCompiler, GrammarError};
use crate::template::{ChatPrompt, ChatTemplate};
use crate::tokenizer::Tokenizer;
use crate::{AnswerFormat, TokenId};

/// The tokenizer and the chat template of one checkpoint.
#[derive(Debug)]
pub struct ModelText {
    /// Text to tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// How a conversation becomes a prompt; base models have none.
    pub template: Option<ChatTemplate>,
    /// How the makers recommend to draw tokens.
    pub generation: GenerationDefaults,
    /// How the model writes reasoning and tool calls.
    pub answer: AnswerFormat,
    grammars: OnceLock<Result<GrammarCompiler, GrammarError>>,
}

impl ModelText {
    /// Reads the text files of the checkpoint in `dir`.
    ///
    /// # Errors
    /// A file is missing, unreadable, too large or not what it should be.
    pub fn load(dir: &Path) -> Result<ModelText, LoadError> {
        let tokenizer = Tokenizer::load(dir)?;
        let template = ChatTemplate::load(dir, &tokenizer)?;
        let generation = GenerationDefaults::load(dir)?;
        let answer = AnswerFormat::detect(&tokenizer, template.as_ref());
        let grammars = OnceLock::new();
        Ok(ModelText { tokenizer: Arc::new(tokenizer), template, generation, answer, grammars })
    }

    /// The tokens of a conversation. The template writes the special tokens itself, so none are
    /// added.
    ///
    /// # Errors
    /// There is no template, or it refuses the conversation.
    pub fn encode_chat(&self, prompt: &ChatPrompt<'_>) -> Result<Vec<TokenId>, TextError> {
        let template = self.template.as_ref().ok_or(TextError::NoTemplate)?;
        self.tokenizer.encode_rendered(&template.render(prompt)?)
    }

    /// Turns the tokens of one answer into text.
    pub fn detokenizer(&self) -> Detokenizer {
        Detokenizer::new(Arc::clone(&self.tokenizer))
    }

    /// What compiles constraints on answers. Made at the first call, which takes some tenths of a
    /// second for a large vocabulary.
    ///
    /// # Errors
    /// The vocabulary cannot be a real one.
    pub fn grammar_compiler(&self) -> Result<&GrammarCompiler, GrammarError> {
        let compiler = self.grammars.get_or_init(|| GrammarCompiler::new(&self.tokenizer));
        compiler.as_ref().map_err(Clone::clone)
    }

    /// Like [`ModelText::detokenizer`], for an answer that is taken apart: with the special tokens
    /// that its format reads.
    pub fn answer_detokenizer(&self, format: &AnswerFormat) -> Detokenizer {
        Detokenizer::keeping(Arc::clone(&self.tokenizer), format.kept_tokens())
    }
}
