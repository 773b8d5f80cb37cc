//! Helpers that tests of several crates share. Only development builds contain this crate.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

pub mod pages;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder for one test; removed when dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates an empty folder.
    #[expect(clippy::new_without_default, reason = "creating it has an effect")]
    pub fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("jackalope-models-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        fs::create_dir_all(&dir).unwrap();
        Scratch(fs::canonicalize(dir).unwrap())
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file and the folders that it lies in; returns its path.
    pub fn write(&self, path: &str, content: &[u8]) -> PathBuf {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// Writes a model of an unknown architecture, with one tensor, to the folder `path` and returns
    /// that folder's path.
    pub fn model(&self, path: &str) -> PathBuf {
        self.write(&format!("{path}/config.json"), br#"{"model_type": "made_up"}"#);
        self.write(&format!("{path}/tokenizer.json"), b"{}");
        self.write(&format!("{path}/model.safetensors"), &weights("a", 8));
        self.0.join(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// Returns the content of a weight file with one tensor.
pub fn weights(tensor: &str, num_bytes: usize) -> Vec<u8> {
    let header = format!(
        r#"{{"{tensor}":{{"dtype":"U8","shape":[{num_bytes}],"data_offsets":[0,{num_bytes}]}}}}"#
    );
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    file.extend(vec![7; num_bytes]);
    file
}
