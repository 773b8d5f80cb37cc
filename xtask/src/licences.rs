//! Texts of licences in the folder of a package.

use std::fs;
use std::path::Path;

use anyhow::Context;

/// Beginnings of the names of files with licences.
const FILES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"];

/// Returns the texts of the licences directly in a folder, in the order of their content.
pub(crate) fn texts(dir: &Path) -> anyhow::Result<Vec<String>> {
    let mut texts = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("listing {}", dir.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        if path.is_file() && FILES.iter().any(|it| name.starts_with(it)) {
            let text = String::from_utf8_lossy(&fs::read(&path)?).replace("\r\n", "\n");
            texts.push(text.trim().to_owned());
        }
    }
    texts.sort();
    Ok(texts)
}
