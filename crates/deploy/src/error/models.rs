//! What is wrong with the models that a server is to offer.

use std::io;
use std::path::PathBuf;

use jackalope_store::{Problem, ResolveError, SpecError};
use jackalope_text::UnknownFormat;
use thiserror::Error;

/// Maximum number of models of one server.
pub const MODELS_MAX: usize = 1024;

/// Why there is no model that can be served.
#[derive(Debug, Error)]
pub enum LocateError {
    /// There is no such directory, and the text is not the name of a model.
    #[error(
        "no checkpoint at {}\nhint: give a directory, or ORG/NAME of a model on this machine \
         (`jackalope models ls`)",
        .path.display()
    )]
    NoCheckpoint {
        /// The path.
        path: PathBuf,
    },
    /// There is no such directory, and no model of this name.
    #[error(transparent)]
    Unknown(#[from] ResolveError),
    /// A directory cannot be read.
    #[error("reading {}: {source}", .path.display())]
    Read {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The model's directory is the root.
    #[error("the model's directory has no name")]
    NoName,
    /// The model is incomplete.
    #[error("{name} is incomplete: {first}{}\nhint: jackalope pull {}", and_more(*num_more), .path.display())]
    Incomplete {
        /// Name of the model.
        name: String,
        /// The first problem.
        first: Box<Problem>,
        /// Number of further problems.
        num_more: usize,
        /// The path or name that the user gave.
        path: PathBuf,
    },
    /// This version cannot load the model, or its `config.json` is not valid.
    #[error("{name}: {source}\nhint: {}", .source.hint())]
    Unsupported {
        /// Name of the model.
        name: String,
        /// The cause.
        source: Box<SpecError>,
    },
}

/// Why ranks have no model to read.
#[derive(Debug, Error)]
pub enum SourceError {
    /// Machines do not have the model.
    #[error(
        "{}\nhint: `jackalope models sync {model} --hosts …` copies it; with `--models-from HOST` \
         ranks read their part of it from there",
        .problems.join("\n")
    )]
    Absent {
        /// Each machine without the model, with what it has instead.
        problems: Vec<String>,
        /// Name of the model.
        model: String,
    },
    /// The machine that others should read from does not have the model.
    #[error("`--models-from {from}`: {reason}\nhint: name a machine that has it")]
    Lacks {
        /// The machine.
        from: String,
        /// What the machine has instead.
        reason: String,
    },
    /// The machine that others should read from does not take part.
    #[error(
        "`--models-from {from}` is no machine of the hostfile\n\
         hint: name one of them, or `localhost` for this one"
    )]
    Unknown {
        /// The machine.
        from: String,
    },
}

/// Why a model is not copied to other machines.
#[derive(Debug, Error)]
pub enum CopyError {
    /// There is nobody to copy to.
    #[error("`{hosts}` names no other machine than this one")]
    NoOther {
        /// The hostfile, or the names.
        hosts: String,
    },
    /// The machine to copy from does not take part.
    #[error("`--from {from}` is none of the machines of `--hosts {hosts}`")]
    UnknownSource {
        /// The machine.
        from: String,
        /// The hostfile, or the names.
        hosts: String,
    },
}

/// What is wrong with the models that a server is to offer.
#[derive(Debug, Error)]
pub enum ServedModelsError {
    /// A model cannot be located.
    #[error(transparent)]
    Locate(#[from] LocateError),
    /// A directory of models cannot be listed.
    #[error(transparent)]
    List(#[from] ResolveError),
    /// There is no such parser of reasoning or tool calls.
    #[error(transparent)]
    Format(#[from] UnknownFormat),
    /// There are no models.
    #[error("there is no model to serve\nhint: fetch one with `jackalope pull`")]
    None,
    /// There are too many models.
    #[error("{num_models} models are more than a server takes, {MODELS_MAX}\nhint: name fewer")]
    TooMany {
        /// Number of models.
        num_models: usize,
    },
    /// Two models have the same name.
    #[error(
        "two models are called {name}\nhint: rename one with `--model-id`, or `id` in a file of \
         `--models-config`"
    )]
    SameName {
        /// The name.
        name: String,
    },
    /// An option names a model that the server does not offer.
    #[error("`{flag}` names {name}, which is no model of this server\nhint: there are {}", .known.join(", "))]
    Unknown {
        /// The option.
        flag: &'static str,
        /// The name.
        name: String,
        /// Ids of the models.
        known: Vec<String>,
    },
    /// A file or directory cannot be read.
    #[error("reading {}: {source}", .path.display())]
    Read {
        /// Path of the file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file of models is malformed.
    #[error("reading {}: {source}\nhint: docs/api.md shows a file of models", .path.display())]
    Malformed {
        /// Path of the file.
        path: PathBuf,
        /// The cause.
        source: serde_json::Error,
    },
    /// The file of models is too long.
    #[error("{} has {num_bytes} bytes, which is too long for a file of models\nhint: name fewer models", .path.display())]
    TooLong {
        /// Path of the file.
        path: PathBuf,
        /// Length of the file in bytes.
        num_bytes: u64,
    },
    /// A model of the file has no directory or name.
    #[error("{}: models[{idx}] has no `path`\nhint: name its directory, or ORG/NAME", .path.display())]
    NoPath {
        /// Path of the file.
        path: PathBuf,
        /// Position of the model.
        idx: usize,
    },
    /// A time is malformed.
    #[error("`idle_unload` is `{text}`: {reason}")]
    Time {
        /// The time.
        text: String,
        /// What is expected.
        reason: String,
    },
}

/// Returns `, and N more` for `num_more` further items of a list; empty if there are none.
pub fn and_more(num_more: usize) -> String {
    if num_more == 0 { String::new() } else { format!(", and {num_more} more") }
}
