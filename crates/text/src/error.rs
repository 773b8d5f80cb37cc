//! Errors, split by who has to fix them: the checkpoint's owner ([`TextLoadError`], before the
//! server listens) or the sender of the request ([`TextError`], a 400 with this message).

use std::path::PathBuf;

/// Error of a checkpoint's text files.
#[derive(Debug, thiserror::Error)]
pub enum TextLoadError {
    /// A required file does not exist.
    #[error("{} does not exist\nhint: {hint}", path.display())]
    Missing {
        /// Path of the file.
        path: PathBuf,
        /// How to fix the error.
        hint: &'static str,
    },
    /// The operating system refused to read the file.
    #[error("reading {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The file is larger than any real file of its kind.
    #[error("{} has {size_bytes} bytes, more than the {limit_bytes} that are read\nhint: this is not a file of its kind; download the checkpoint again", path.display())]
    TooLarge {
        /// Path of the file.
        path: PathBuf,
        /// Size of the file.
        size_bytes: u64,
        /// Maximum size of a file of this kind.
        limit_bytes: u64,
    },
    /// The file is not UTF-8 text.
    #[error("{} is not UTF-8 text: {source}\nhint: the file is corrupt; download it again", path.display())]
    NotText {
        /// Path of the file.
        path: PathBuf,
        /// Position of the invalid text.
        source: std::string::FromUtf8Error,
    },
    /// The file is not JSON, or a field of it has an unexpected type.
    #[error("{}: {source}\nhint: the file is corrupt or cut off; download it again", path.display())]
    Json {
        /// Path of the file.
        path: PathBuf,
        /// The error and its position.
        source: serde_json::Error,
    },
    /// A recommended sampling parameter is outside the range that requests may use.
    #[error("{}: {name} is {found}, which is not from {low} to {high}\nhint: correct or remove it", path.display())]
    OutOfRange {
        /// Path of the file.
        path: PathBuf,
        /// Name of the field.
        name: &'static str,
        /// Value of the field.
        found: f32,
        /// Minimum value allowed.
        low: f32,
        /// Maximum value allowed.
        high: f32,
    },
    /// `tokenizer.json` is valid JSON, but not a tokenizer.
    #[error("{}: {reason}\nhint: the file is corrupt, or written by a newer `tokenizers` than this program knows", path.display())]
    Tokenizer {
        /// Path of the file.
        path: PathBuf,
        /// Message of the tokenizer library.
        reason: String,
    },
    /// `tokenizer.json` turns tokens into text in a way that cannot be streamed.
    #[error("{}: unsupported decoder {decoder}\nhint: supported are ByteLevel, Metaspace, WordPiece and sequences of Replace, ByteFallback, Fuse and Strip", path.display())]
    UnsupportedDecoder {
        /// Path of the file.
        path: PathBuf,
        /// Type of the decoder, as written in the file.
        decoder: String,
    },
    /// The chat template cannot be used.
    #[error("chat template of {}: {reason}", path.display())]
    Template {
        /// The file that holds the template.
        path: PathBuf,
        /// A syntax error with its line, or why there is no text that could have one.
        reason: String,
    },
}

/// A request's text cannot be turned into a prompt. The caller can fix every variant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The text could not be split into tokens.
    #[error("the text could not be tokenized: {reason}")]
    Encode {
        /// Message of the tokenizer library.
        reason: String,
    },
    /// The text is longer than any context window.
    #[error("the text has {len_bytes} bytes, more than the {limit_bytes} that are tokenized")]
    TooLong {
        /// Length of the text in bytes.
        len_bytes: usize,
        /// Maximum length of a text in bytes.
        limit_bytes: usize,
    },
    /// The model has no chat template.
    #[error(
        "this model has no chat template\nhint: send the whole prompt to /v1/completions instead"
    )]
    NoTemplate,
    /// The model's chat template cannot be used.
    #[error(
        "the chat template of this model, in {file}, cannot be used: {reason}\n\
         hint: correct it and restart the server, or send the whole prompt to /v1/completions instead"
    )]
    BrokenTemplate {
        /// Name of the file that holds the template.
        file: String,
        /// A syntax error with its line, or why there is no text that could have one.
        reason: String,
    },
    /// The conversation has no message.
    #[error("messages must not be empty")]
    NoMessages,
    /// A message is not a JSON object.
    #[error("messages[{message_idx}] must be an object")]
    NotAnObject {
        /// Position of the message.
        message_idx: usize,
    },
    /// A message's content is neither a string nor a list of parts.
    #[error("messages[{message_idx}].content must be a string or a list of parts")]
    Content {
        /// Position of the message.
        message_idx: usize,
    },
    /// A part of a message's content is not text.
    #[error(
        "messages[{message_idx}].content[{part_idx}] has type {found}, but this model takes only text"
    )]
    UnsupportedPart {
        /// Position of the message.
        message_idx: usize,
        /// Position of the part in its content.
        part_idx: usize,
        /// Type of the part.
        found: String,
    },
    /// `chat_template_kwargs` names a variable that the request sets by another field.
    #[error("chat_template_kwargs must not set {name}")]
    ReservedKwarg {
        /// Name of the variable.
        name: String,
    },
    /// The template refused the conversation by calling `raise_exception`.
    #[error("the model's chat template refuses this conversation: {message}")]
    Refused {
        /// Message that the template passed to `raise_exception`.
        message: String,
    },
    /// The template failed on this conversation.
    #[error("the model's chat template cannot render this conversation: {reason}")]
    Render {
        /// The error, with its line in the template.
        reason: String,
    },
    /// The template ran for more steps than any real template does.
    #[error("the model's chat template did not end within {limit_steps} steps")]
    TooManySteps {
        /// Maximum number of steps of a template.
        limit_steps: u64,
    },
    /// The prompt became larger than any context window.
    #[error("the rendered prompt has more than {limit_bytes} bytes")]
    PromptTooLarge {
        /// Maximum size of a prompt in bytes.
        limit_bytes: usize,
    },
}
