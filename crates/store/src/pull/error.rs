//! Why a model is not fetched.

use std::io;
use std::path::{Path, PathBuf};

use jackalope_protocol::{FilePath, FilePathError, HashTextError, counted};
use jackalope_spec::SpecError;
use thiserror::Error;
use ureq::http::StatusCode;

use crate::progress::human_bytes;
use crate::{BlobId, ManifestError, Problem, RepoId, Revision};

/// Why a model was not fetched, or cannot be served.
#[derive(Debug, Error)]
pub enum PullError {
    /// Requests are forbidden.
    #[error(
        "{variable} forbids requests to {endpoint}\nhint: unset it, or copy the model's directory here"
    )]
    Offline {
        /// The setting that forbids requests.
        variable: String,
        /// URL of the hub.
        endpoint: String,
    },
    /// The hub did not answer as expected.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// The repository has no weights that can be served.
    #[error("{repo} {found}\nhint: look for a conversion to MLX, for instance by mlx-community")]
    NoWeights {
        /// The repository.
        repo: RepoId,
        /// The weights that the repository has instead.
        found: OtherWeights,
    },
    /// This version cannot load a model with this configuration.
    #[error(
        "{repo}: {source}; no weights were fetched\nhint: choose another model, such as a \
         conversion of mlx-community, or pass `--unsupported` to fetch it for mlx_lm.convert or a \
         later version"
    )]
    Unsupported {
        /// The repository.
        repo: RepoId,
        /// The cause.
        source: SpecError,
    },
    /// The weights of the repository are not those of the model that its `config.json` describes.
    #[error(
        "{repo} cannot be loaded: {}; no weights were fetched\nhint: choose another model, such as a \
         conversion of mlx-community, or pass `--unsupported` to fetch it all the same",
        first(.problems)
    )]
    Unfit {
        /// The repository.
        repo: RepoId,
        /// What is wrong with its files.
        problems: Vec<Problem>,
    },
    /// All files were fetched, but they are not a model that can be served.
    #[error(
        "all files were downloaded, but this model cannot be served: {}\nhint: choose a repository \
         in MLX's format, for instance of mlx-community",
        .problems.join(", ")
    )]
    Unusable {
        /// What is wrong with the files.
        problems: Vec<String>,
    },
    /// The directory holds another model.
    #[error(
        "{} holds another model\nhint: give a directory of its own with `--to`, or remove that \
         model (`jackalope models rm`)",
        .dir.display()
    )]
    OtherModel {
        /// The directory.
        dir: PathBuf,
    },
    /// The disk is too full.
    #[error(
        "{} must be fetched, but {} are free at {}\nhint: free some (`jackalope models ls`), or put \
         it elsewhere with `--to DIR` or HF_HOME",
        human_bytes(*missing_bytes, 2), human_bytes(*free_bytes, 2), .at.display()
    )]
    NoRoom {
        /// Size of the files that must be fetched, in bytes.
        missing_bytes: u64,
        /// Free space in bytes.
        free_bytes: u64,
        /// A directory on the disk.
        at: PathBuf,
    },
    /// A file or directory cannot be used.
    #[error("{action} {}: {source}", .path.display())]
    File {
        /// What was being done, such as `writing`.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The fetched files have no manifest.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// Another program is fetching the same file.
    #[error(
        "another program is fetching the same file (it holds {})\nhint: wait for it to end",
        .lock.display()
    )]
    Locked {
        /// Lock file that the other program holds.
        lock: PathBuf,
    },
    /// The content of a file is not what the hub lists.
    #[error("{path} differs from the file on the hub: its hash is not {blob}\n{ANOTHER_HUB_HINT}")]
    Differs {
        /// The file.
        path: FilePath,
        /// Hash that the hub lists.
        blob: BlobId,
    },
    /// A file could not be fetched completely.
    #[error("{path} is incomplete; pull again to continue where it stopped: {source}")]
    Incomplete {
        /// The file.
        path: FilePath,
        /// The cause.
        source: Box<PullError>,
    },
    /// All attempts failed.
    #[error("gave up after {}: {source}", counted(*num_failed, "attempt"))]
    GaveUp {
        /// Number of attempts.
        num_failed: u32,
        /// Cause of the last failure.
        source: Box<PullError>,
    },
    /// The hub requests a longer pause than a pull waits.
    #[error("asked to come back in {}: {source}", counted(*pause_seconds, "second"))]
    LongPause {
        /// Length of the pause.
        pause_seconds: u64,
        /// The hub's answer.
        source: Box<PullError>,
    },
    /// The pull was given up, or another file failed, which ends the pull.
    #[error("the pull was stopped")]
    Stopped,
}

/// Maximum number of problems that an error names; the others are counted.
const PROBLEMS_SHOWN: usize = 4;

/// Formats the first problems.
fn first(problems: &[Problem]) -> String {
    let shown = problems.iter().take(PROBLEMS_SHOWN).map(ToString::to_string);
    let shown = shown.collect::<Vec<_>>().join(", ");
    match problems.len().saturating_sub(PROBLEMS_SHOWN) {
        0 => shown,
        more => format!("{shown}, and {}", counted(more, "more problem")),
    }
}

/// What a repository has instead of weights that can be served.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
pub enum OtherWeights {
    /// Weights of llama.cpp.
    #[error("holds its weights as GGUF, which is not served")]
    Gguf,
    /// Weights that can run code when they are read.
    #[error("holds its weights as pickles, which can run code and are not read")]
    Pickles,
    /// Weights of an adapter, or only some of a model's.
    #[error(
        "holds *.safetensors, but none is named model*.safetensors: this is an adapter or a part"
    )]
    Part,
    /// No weights at all.
    #[error("holds no weights")]
    Nothing,
}

/// Hint for a file that is wrong on the hub.
const ANOTHER_HUB_HINT: &str = "hint: try again later, or pull from another hub (HF_ENDPOINT)";

/// What is wrong with a hub's answer, or with the connection to the hub.
#[derive(Debug, Error)]
pub enum HubError {
    /// The hub cannot be reached.
    #[error(
        "asking {url}: {source}\nhint: is {endpoint} reachable from here? HF_ENDPOINT names another \
         hub, HTTPS_PROXY a proxy"
    )]
    Unreachable {
        /// The URL that was requested.
        url: String,
        /// URL of the hub.
        endpoint: String,
        /// The cause.
        source: ureq::Error,
    },
    /// The hub refuses access.
    #[error(
        "{endpoint} refuses access to {repo} ({status}): it is gated, private or misspelled, and {}\n\
         hint: accept its conditions at {endpoint}/{repo}, then set HF_TOKEN to a token from \
         {endpoint}/settings/tokens",
        if *.has_token { "the owner of this HF_TOKEN may not read it" } else { "no HF_TOKEN is set" }
    )]
    Denied {
        /// URL of the hub.
        endpoint: String,
        /// The repository.
        repo: RepoId,
        /// Status of the answer.
        status: StatusCode,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// The repository has no such revision.
    #[error(
        "{repo} has no revision {revision}\nhint: see {endpoint}/{repo}/tree/main for its branches and tags"
    )]
    NoRevision {
        /// URL of the hub.
        endpoint: String,
        /// The repository.
        repo: RepoId,
        /// The revision.
        revision: Revision,
    },
    /// There is no such repository.
    #[error(
        "there is no {repo} at {endpoint} (404 for {url})\nhint: look for its name at \
         {endpoint}/models?search={}",
        .repo.name()
    )]
    NoRepository {
        /// URL of the hub.
        endpoint: String,
        /// The repository.
        repo: RepoId,
        /// The URL that was requested.
        url: String,
    },
    /// The hub answers with another error.
    #[error("{url} answers {status}{}", answer(.text))]
    Status {
        /// The URL that was requested.
        url: String,
        /// Status of the answer.
        status: StatusCode,
        /// Beginning of the answer, if it was read.
        text: String,
    },
    /// An answer ends early, or the connection does.
    #[error("reading {url} at byte {at}: {source}")]
    Read {
        /// The URL that was requested.
        url: String,
        /// Number of bytes that had arrived.
        at: u64,
        /// The cause.
        source: io::Error,
    },
    /// A connection was closed before all bytes had arrived.
    #[error("the connection to {url} ended at byte {at}")]
    Ended {
        /// The URL that was requested.
        url: String,
        /// Number of bytes that had arrived.
        at: u64,
    },
    /// The list of files cannot be read.
    #[error("reading {url}: {source}")]
    ListingBody {
        /// The URL that was requested.
        url: String,
        /// The cause.
        source: ureq::Error,
    },
    /// The list of files makes no sense.
    #[error("what {url} answers {fault}")]
    Listing {
        /// The URL that was requested.
        url: String,
        /// What is wrong with the list.
        fault: ListingFault,
    },
    /// A file is listed twice.
    #[error("the hub names a file of {repo} twice")]
    Twice {
        /// The repository.
        repo: RepoId,
    },
    /// A file cannot have this name.
    #[error(transparent)]
    Path(#[from] FilePathError),
    /// A file is hidden.
    #[error("the hub names a hidden file: {name}")]
    Hidden {
        /// Name of the file.
        name: String,
    },
    /// A file cannot be verified.
    #[error(
        "the hub reports no size and hash of {name}, so it cannot be verified\n\
         hint: pull from another hub (HF_ENDPOINT)"
    )]
    Unverifiable {
        /// Name of the file.
        name: String,
    },
    /// A hash is malformed.
    #[error("the hub's hash of {name}: {source}")]
    Hash {
        /// Name of the file.
        name: String,
        /// The cause.
        source: HashTextError,
    },
    /// A partial answer does not begin at the requested byte.
    #[error("{url} does not continue where requested")]
    OtherRange {
        /// The URL that was requested.
        url: String,
    },
    /// A file has another length than listed.
    #[error("{url} has {}, but the hub lists {listed_bytes}\n{ANOTHER_HUB_HINT}", counted(*found_bytes, "byte"))]
    Length {
        /// The URL that was requested.
        url: String,
        /// Length in bytes that the answer states for the file.
        found_bytes: u64,
        /// Length in bytes that the list of files states.
        listed_bytes: u64,
    },
    /// More bytes arrive than listed.
    #[error("{path} has more bytes than the {listed_bytes} that the hub lists")]
    TooLong {
        /// The file.
        path: FilePath,
        /// Length in bytes that the list of files states.
        listed_bytes: u64,
    },
}

/// What is wrong with a list of files.
#[derive(Debug, Error)]
pub enum ListingFault {
    /// The list is not JSON.
    #[error("is not valid JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// The list has no commit.
    #[error("names no commit")]
    NoCommit,
    /// The value in place of the commit cannot be the name of one.
    #[error("names {found:?} as a commit")]
    Commit {
        /// The value.
        found: String,
    },
    /// The list has no files.
    #[error("names no files")]
    NoFiles,
    /// A file in the list has no name.
    #[error("names a file without a name")]
    NoName,
}

fn answer(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(": {}", text.escape_debug()) }
}

/// Returns a function that adds the action and the file to an error of the system.
pub(super) fn failed(action: &'static str, path: &Path) -> impl Fn(io::Error) -> PullError {
    move |source| PullError::File { action, path: path.to_owned(), source }
}
