//! Small checkpoints on disk.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use jackalope_text::{ChatTemplate, Tokenizer};

/// The families of tokenizers in `tests/data/tokenizers`.
pub(crate) const FAMILIES: [&str; 5] = ["gpt2", "llama3", "qwen", "llama2", "gemma"];

/// The tokenizers there whose vocabularies are not stored as `tokenizer.json`.
pub(crate) const BYTE_PAIRS: [&str; 3] = ["kimi", "tekken", "tekken_v3"];

/// Of these, the ones that are compared with Mistral's own package.
pub(crate) const MISTRAL: [&str; 2] = ["tekken", "tekken_v3"];

/// The tokenizers there that are stored as `tokenizer.model`.
pub(crate) const SENTENCE_PIECES: [&str; 5] =
    ["sp_llama", "sp_gemma", "sp_internlm", "sp_unigram", "sp_unigram_bytes"];

/// A file of `tests/data`.
pub(crate) fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(path)
}

/// A JSON file of `tests/data`.
pub(crate) fn data_json(path: &str) -> serde_json::Value {
    let text = std::fs::read_to_string(data(path)).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The tokenizer of a family.
pub(crate) fn tokenizer(family: &str) -> Tokenizer {
    Tokenizer::load(&data("tokenizers").join(family)).unwrap()
}

/// A temporary folder, removed at the end of the test.
pub(crate) struct Checkpoint {
    dir: PathBuf,
}

impl Checkpoint {
    /// An empty folder.
    pub(crate) fn empty() -> Checkpoint {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("checkpoint-{}-{count}", std::process::id());
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&dir).unwrap();
        Checkpoint { dir }
    }

    /// A folder with the tokenizer of a family.
    pub(crate) fn of(family: &str) -> Checkpoint {
        let tokenizer = data("tokenizers").join(family).join("tokenizer.json");
        let text = std::fs::read_to_string(tokenizer).unwrap();
        Checkpoint::empty().with("tokenizer.json", &text)
    }

    /// A folder with a tokenizer and a chat template.
    pub(crate) fn with_template(source: &str) -> Checkpoint {
        Checkpoint::of("qwen").with("chat_template.jinja", source)
    }

    /// Adds a file.
    pub(crate) fn with(self, name: &str, text: &str) -> Checkpoint {
        let path = self.dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        self
    }

    /// Returns its path.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Loads its template, which must exist.
    pub(crate) fn template(&self) -> ChatTemplate {
        let tokenizer = Tokenizer::load(&self.dir).unwrap();
        ChatTemplate::load(&self.dir, &tokenizer).unwrap().unwrap()
    }
}

impl Drop for Checkpoint {
    fn drop(&mut self) {
        // Leftovers are below target/.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
