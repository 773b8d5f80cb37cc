//! `cargo xtask sample [--seed N]`: prints a random sample of the prose that users and engineers
//! read, for review: doc comments, option help, and rows of the API's tables.

use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::process::workspace_dir;

/// Number of doc comments of a sample.
const DOC_COMMENTS: usize = 100;

/// Number of options of a sample.
const OPTION_HELPS: usize = 40;

/// Number of rows of a sample.
const API_ROWS: usize = 40;

/// A text and its place.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Passage {
    place: String,
    text: String,
}

pub(crate) fn run(args: &[String]) -> anyhow::Result<()> {
    let seed = match args {
        [] => RandomState::new().build_hasher().finish(),
        [flag, seed] if flag == "--seed" => seed.parse().context("--seed takes a number")?,
        _ => bail!("usage: cargo xtask sample [--seed N]"),
    };
    let root = workspace_dir();
    println!("seed {seed}");
    let mut random = Random(seed);
    let mut comments = Vec::new();
    for file in sources(&root.join("crates"))? {
        let text = fs::read_to_string(&file)?;
        let name = file.strip_prefix(&root).unwrap_or(&file).display().to_string();
        comments.extend(doc_comments(&name, &text));
    }
    show("doc comments", random.choose(comments, DOC_COMMENTS));
    let rows = |page: &str| {
        let text = fs::read_to_string(root.join(page));
        text.map(|text| table_rows(page, &text)).with_context(|| format!("reading {page}"))
    };
    show("option helps", random.choose(rows("docs/commands.md")?, OPTION_HELPS));
    show("API table rows", random.choose(rows("docs/api.md")?, API_ROWS));
    Ok(())
}

fn show(title: &str, passages: Vec<Passage>) {
    println!("\n── {title}");
    for Passage { place, text } in passages {
        println!("{place}\n    {text}");
    }
}

/// Returns the Rust files of product code.
fn sources(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("listing {}", dir.display()))? {
        let path = entry?.path();
        let name = path.file_name().and_then(|it| it.to_str()).unwrap_or_default();
        if path.is_dir() && !["tests", "examples", "target"].contains(&name) {
            found.extend(sources(&path)?);
        } else if name.ends_with(".rs") && name != "tests.rs" {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Returns the doc comments of a file, each with the line that follows it.
fn doc_comments(name: &str, text: &str) -> Vec<Passage> {
    let mut found = Vec::new();
    let mut comment: Vec<&str> = Vec::new();
    for (idx, line) in text.lines().map(str::trim).enumerate() {
        if let Some(text) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) {
            comment.push(text.trim());
        } else if !comment.is_empty() {
            let text = format!("{}  ⟨{line}⟩", comment.join(" "));
            found.push(Passage { place: format!("{name}:{}", idx + 1 - comment.len()), text });
            comment.clear();
        }
    }
    found
}

/// Returns the rows of a page's tables, without their headings.
fn table_rows(page: &str, text: &str) -> Vec<Passage> {
    let lines: Vec<&str> = text.lines().collect();
    let is_row = |line: &str| line.starts_with('|');
    let is_rule = |line: &str| is_row(line) && line.chars().all(|it| "|-: ".contains(it));
    let rows = lines.iter().enumerate().filter(|(idx, line)| {
        let is_heading = lines.get(idx + 1).is_some_and(|next| is_rule(next));
        is_row(line) && !is_rule(line) && !is_heading
    });
    let passage = |(idx, line): (usize, &&str)| Passage {
        place: format!("{page}:{}", idx + 1),
        text: (*line).to_owned(),
    };
    rows.map(passage).collect()
}

/// Pseudo-random numbers (SplitMix64, Steele et al. 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }

    /// Selects some passages, each at most once.
    fn choose(&mut self, mut from: Vec<Passage>, count: usize) -> Vec<Passage> {
        let count = count.min(from.len());
        (0..count).map(|_| from.swap_remove(self.below(from.len()))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_rows_are_found() {
        let source = "//! A module.\n\nuse x;\n/// One\n/// two.\nfn f() {}\n// not this\n";
        let found = doc_comments("a.rs", source);
        let places: Vec<&str> = found.iter().map(|it| it.place.as_str()).collect();
        assert_eq!(places, ["a.rs:1", "a.rs:4"]);
        assert_eq!(found[1].text, "One two.  ⟨fn f() {}⟩");
        let rows = table_rows("p.md", "| a | b |\n|---|---|\n| c | d |\ntext\n");
        assert_eq!(rows, [Passage { place: "p.md:3".to_owned(), text: "| c | d |".to_owned() }]);
    }

    #[test]
    fn a_seed_gives_the_same_passages_each_once() {
        let all: Vec<Passage> =
            (0..9).map(|idx| Passage { place: String::new(), text: idx.to_string() }).collect();
        let first = Random(5).choose(all.clone(), 6);
        assert_eq!(first, Random(5).choose(all.clone(), 6));
        let mut texts: Vec<&str> = first.iter().map(|it| it.text.as_str()).collect();
        texts.sort_unstable();
        texts.dedup();
        assert_eq!(texts.len(), 6);
        assert_eq!(Random(7).choose(all, 20).len(), 9);
    }
}
