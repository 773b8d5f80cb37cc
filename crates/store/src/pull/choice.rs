//! Selects the files of a repository that serving needs.

use jackalope_protocol::FilePath;

use super::error::{HubError, OtherWeights, PullError};
use super::hub::{Listing, Sibling};
use crate::{BlobId, RepoId};

/// Extensions of configurations, tokenizers and templates.
const TEXT_ENDS: [&str; 5] = [".json", ".jinja", ".txt", ".model", ".tiktoken"];

/// Directory in which tokenizers keep templates.
const TEMPLATES_DIR: &str = "additional_chat_templates/";

/// Extensions of weights that can run code when they are read.
const PICKLE_ENDS: [&str; 5] = [".bin", ".pt", ".pth", ".ckpt", ".pkl"];

/// A file to fetch.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct RemoteFile {
    pub(crate) path: FilePath,
    pub(crate) bytes: u64,
    pub(crate) blob: BlobId,
}

/// Returns the files that serving needs, large ones first.
///
/// # Errors
/// If there are no weights that can be served, or the hub does not report the hash or size of a
/// file.
pub(crate) fn choose(repo: &RepoId, listing: &Listing) -> Result<Vec<RemoteFile>, PullError> {
    let names: Vec<&str> = listing.siblings.iter().map(|it| it.name.as_str()).collect();
    check_weights(repo, &names)?;
    let wanted = listing.siblings.iter().filter(|it| is_wanted(&it.name));
    let mut files: Vec<RemoteFile> = wanted.map(remote_file).collect::<Result<_, HubError>>()?;
    files.sort_by(|one, other| other.bytes.cmp(&one.bytes).then(one.path.cmp(&other.path)));
    let is_twice = |pair: &[RemoteFile]| pair[0].path == pair[1].path;
    if files.windows(2).any(is_twice) {
        return Err(HubError::Twice { repo: repo.clone() }.into());
    }
    Ok(files)
}

/// Whether a file holds weights that ranks read.
pub(super) fn is_weights(name: &str) -> bool {
    name.starts_with("model") && name.ends_with(".safetensors") && !name.contains('/')
}

fn is_wanted(name: &str) -> bool {
    let is_inside = name.strip_prefix(TEMPLATES_DIR).unwrap_or(name);
    let is_text = TEXT_ENDS.iter().any(|end| name.ends_with(end));
    is_weights(name) || is_text && !is_inside.contains('/') && !name.starts_with('.')
}

fn check_weights(repo: &RepoId, names: &[&str]) -> Result<(), PullError> {
    if names.iter().any(|name| is_weights(name)) {
        return Ok(());
    }
    let ends = |name: &str, ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
    let found = if names.iter().any(|name| name.ends_with(".gguf")) {
        OtherWeights::Gguf
    } else if names.iter().any(|name| ends(name, &PICKLE_ENDS)) {
        OtherWeights::Pickles
    } else if names.iter().any(|name| name.ends_with(".safetensors")) {
        OtherWeights::Part
    } else {
        OtherWeights::Nothing
    };
    Err(PullError::NoWeights { repo: repo.clone(), found })
}

fn remote_file(sibling: &Sibling) -> Result<RemoteFile, HubError> {
    let name = sibling.name.clone();
    let path: FilePath = name.parse()?;
    let is_usual = !path.as_str().split('/').any(|part| part.starts_with('.'));
    if !is_usual {
        return Err(HubError::Hidden { name });
    }
    let Some((bytes, hash)) = sibling.bytes.zip(sibling.hash.as_deref()) else {
        return Err(HubError::Unverifiable { name });
    };
    let blob = hash.parse().map_err(|source| HubError::Hash { name, source })?;
    Ok(RemoteFile { path, bytes, blob })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(names: &[&str]) -> Result<Vec<String>, PullError> {
        let sibling = |name: &&str| Sibling {
            name: (*name).to_owned(),
            bytes: Some(1),
            hash: Some("0".repeat(40)),
        };
        let siblings = names.iter().map(sibling).collect();
        let listing = Listing { commit: "c".to_owned(), siblings };
        let files = choose(&"o/n".parse().unwrap(), &listing)?;
        Ok(files.into_iter().map(|file| file.path.into()).collect())
    }

    #[test]
    fn only_what_serving_needs_is_chosen() {
        let names = [
            "README.md",
            ".gitattributes",
            "config.json",
            "model-00001-of-00002.safetensors",
            "consolidated.safetensors",
            "original/params.json",
            "pytorch_model.bin",
            "merges.txt",
            "model.py",
            "chat_template.jinja",
            "additional_chat_templates/rag.jinja",
            "additional_chat_templates/a/b.jinja",
            "onnx/model.safetensors",
            "tokenizer.model",
            ".hidden.json",
        ];
        let wanted = [
            "additional_chat_templates/rag.jinja",
            "chat_template.jinja",
            "config.json",
            "merges.txt",
            "model-00001-of-00002.safetensors",
            "tokenizer.model",
        ];
        assert_eq!(chosen(&names).unwrap(), wanted);
    }

    #[test]
    fn weights_that_cannot_be_served_are_refused_by_their_kind() {
        for (name, cause) in [
            ("model-Q4_K_M.gguf", "GGUF"),
            ("pytorch_model.bin", "pickles"),
            ("adapters.safetensors", "adapter"),
            ("notes.txt", "no weights"),
        ] {
            let err = chosen(&["config.json", name]).unwrap_err().to_string();
            assert!(err.contains(cause) && err.contains("hint:"), "{err}");
        }
    }

    #[test]
    fn a_hub_cannot_name_files_elsewhere_or_without_a_hash() {
        let file = |name: &str, hash: &str| {
            let (name, hash) = (name.to_owned(), Some(hash.to_owned()));
            remote_file(&Sibling { name, bytes: Some(1), hash })
        };
        let hash = "0".repeat(64);
        assert!(file("a.json", &hash).is_ok());
        for name in ["../a.json", "/a.json", "a/.git/b.json", "a\\..\\b.json"] {
            assert!(file(name, &hash).is_err(), "{name}");
        }
        assert!(file("a.json", "../x").is_err());
        assert!(remote_file(&Sibling { name: "a".to_owned(), ..Sibling::default() }).is_err());
    }
}
