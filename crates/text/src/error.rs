//! What can go wrong, split by whose fault it is: the checkpoint's ([`LoadError`], before the
//! server listens) or the request's ([`TextError`], a 400 with the message as its text).

use std::path::PathBuf;

/// A checkpoint's text files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file that the model cannot do without is not there.
    #[error("{} does not exist\nhint: {hint}", path.display())]
    Missing {
        /// The file that was looked for.
        path: PathBuf,
        /// What to do about it.
        hint: &'static str,
    },
    /// The operating system refused to read the file.
    #[error("reading {}: {source}", path.display())]
    Read {
        /// The file that was being read.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The file is larger than any real one of its kind.
    #[error("{} has {size_bytes} bytes, more than the {limit_bytes} that are read\nhint: this is not a file of its kind; download the checkpoint again", path.display())]
    TooLarge {
        /// The file that was being read.
        path: PathBuf,
        /// Its size.
        size_bytes: u64,
        /// The largest size that is read.
        limit_bytes: u64,
    },
    /// The file is not UTF-8 text.
    #[error("{} is not UTF-8 text: {source}\nhint: the file is corrupt; download it again", path.display())]
    NotText {
        /// The file that was being read.
        path: PathBuf,
        /// Where the text breaks.
        source: std::string::FromUtf8Error,
    },
    /// The file is not JSON, or a field of it has an unexpected type.
    #[error("{}: {source}\nhint: the file is corrupt or cut off; download it again", path.display())]
    Json {
        /// The file that was being read.
        path: PathBuf,
        /// Where and what.
        source: serde_json::Error,
    },
    /// A recommendation for drawing tokens that no request could ask for.
    #[error("{}: {name} is {found}, which is not from {low} to {high}\nhint: correct or remove it", path.display())]
    OutOfRange {
        /// The file.
        path: PathBuf,
        /// The field.
        name: &'static str,
        /// Its value.
        found: f32,
        /// The least value allowed.
        low: f32,
        /// The greatest value allowed.
        high: f32,
    },
    /// `tokenizer.json` is JSON, but not a tokenizer.
    #[error("{}: {reason}\nhint: the file is corrupt, or written by a newer `tokenizers` than this program knows", path.display())]
    Tokenizer {
        /// The file that was being read.
        path: PathBuf,
        /// What the tokenizer library said.
        reason: String,
    },
    /// `tokenizer.json` turns tokens into text in a way that cannot be streamed.
    #[error("{}: unsupported decoder {decoder}\nhint: supported are ByteLevel, Metaspace, WordPiece and sequences of Replace, ByteFallback, Fuse and Strip", path.display())]
    UnsupportedDecoder {
        /// The file that was being read.
        path: PathBuf,
        /// The type of the decoder, as written in the file.
        decoder: String,
    },
    /// The chat template is not Jinja that can be understood.
    #[error("chat template of {}: {reason}", path.display())]
    Template {
        /// The file that holds the template.
        path: PathBuf,
        /// The syntax error, with its line.
        reason: String,
    },
    /// The list of templates has neither a `default` nor a `tool_use` template.
    #[error("{}: chat_template lists {found:?}, but none is named default or tool_use", path.display())]
    NoDefaultTemplate {
        /// The file that holds the list.
        path: PathBuf,
        /// The names that the list has.
        found: Vec<String>,
    },
}

/// A request's text cannot be turned into a prompt. Every variant is the caller's to mend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The text could not be split into tokens.
    #[error("the text could not be tokenized: {reason}")]
    Encode {
        /// What the tokenizer said.
        reason: String,
    },
    /// The text is longer than any context could hold.
    #[error("the text has {len_bytes} bytes, more than the {limit_bytes} that are tokenized")]
    TooLong {
        /// Length of the text.
        len_bytes: usize,
        /// The longest text that is tokenized.
        limit_bytes: usize,
    },
    /// The model has no chat template.
    #[error(
        "this model has no chat template\nhint: send the whole prompt to /v1/completions instead"
    )]
    NoTemplate,
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
        /// The type the part has.
        found: String,
    },
    /// `chat_template_kwargs` names a variable that the request sets by another field.
    #[error("chat_template_kwargs must not set {name}")]
    ReservedKwarg {
        /// The variable.
        name: String,
    },
    /// The template refused the conversation by calling `raise_exception`.
    #[error("the model's chat template refuses this conversation: {message}")]
    Refused {
        /// The template's own words.
        message: String,
    },
    /// The template failed on this conversation.
    #[error("the model's chat template cannot render this conversation: {reason}")]
    Render {
        /// The error, with its line in the template.
        reason: String,
    },
    /// The template ran for longer than any real one does.
    #[error("the model's chat template did not end within {limit_steps} steps")]
    TooManySteps {
        /// The number of steps a template may take.
        limit_steps: u64,
    },
    /// The prompt became larger than any context could hold.
    #[error("the rendered prompt has more than {limit_bytes} bytes")]
    PromptTooLarge {
        /// The largest prompt that is rendered.
        limit_bytes: usize,
    },
}
