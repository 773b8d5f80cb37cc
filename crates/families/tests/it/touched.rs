//! A family is a line of the table, one file, a recipe of tiny checkpoints, and what the reference computes
//! for them. No other source that computes, plans or serves a model knows its name.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use jackalope_families::computed_types;
use serde_json::Value;

/// Sources that name families, and the reason.
const NAMING: [(&str, &str); 4] = [
    ("families/src/lib.rs", "the table"),
    ("families/src/mistral3.rs", "its text part is one of several families"),
    ("store/src/synth.rs", "synthetic checkpoints have the configuration of a published model"),
    ("text/src", "the form of tool calls and reasoning belongs to a chat template"),
];

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the `model_type` of each line of the table, and the module that reads it.
fn table() -> Vec<(&'static str, &'static str)> {
    let lines = include_str!("../../src/lib.rs").lines();
    let entries = lines.filter_map(|line| line.trim().strip_prefix("family(\""));
    let parts = entries.map(|entry| {
        let (name, reader) = entry.split_once("\", ").expect("a name and its reader");
        (name, reader.split_once("::").expect("a module").0)
    });
    parts.collect()
}

/// Returns the files of golden values that have each `model_type`, without their ending.
fn golden_files() -> BTreeMap<String, BTreeSet<String>> {
    let mut files: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for entry in std::fs::read_dir(crates().join("models/tests/data/golden")).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap();
        let file: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        for case in file["cases"].as_array().unwrap() {
            let model_type = case["config"]["model_type"].as_str().unwrap().to_owned();
            files.entry(model_type).or_default().insert(stem.to_owned());
        }
    }
    files
}

#[test]
fn each_family_is_a_line_of_the_table_a_file_a_recipe_and_golden_values() {
    let golden = golden_files();
    let table = table();
    let names: Vec<&str> = table.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, computed_types());
    for (name, module) in table {
        let file = crates().join(format!("families/src/{module}.rs"));
        assert!(file.exists(), "{name}: no {}", file.display());
        let files = golden.get(name).unwrap_or_else(|| panic!("{name} has no golden values"));
        let names_it = |stem: &&String| {
            let recipe = crates().join(format!("models/tests/golden/families/{stem}.py"));
            std::fs::read_to_string(recipe).unwrap().contains(&format!("\"{name}\""))
        };
        let recipes: Vec<&String> = files.iter().filter(names_it).collect();
        assert!(!recipes.is_empty(), "{name}: no recipe of {files:?} names it");
        eprintln!("{name}: {module}.rs, recipes {recipes:?}, golden values {files:?}");
    }
}

/// Returns the Rust sources under a folder.
pub(crate) fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
    found
}

/// Returns the part of a source above its tests.
fn product_part(text: &str) -> &str {
    text.split_once("#[cfg(test)]\nmod tests {").map_or(text, |(product, _)| product)
}

#[test]
fn no_other_source_knows_a_family_by_its_name() {
    let modules: BTreeMap<&str, &str> = table().into_iter().collect();
    let folders = std::fs::read_dir(crates()).unwrap().map(|it| it.unwrap().path().join("src"));
    let mut found = Vec::new();
    for path in folders.filter(|folder| folder.exists()).flat_map(|folder| sources(&folder)) {
        let file = path.strip_prefix(crates()).unwrap().to_str().unwrap();
        let may_name = NAMING.iter().any(|(naming, _)| file.starts_with(naming));
        if may_name || file.ends_with("tests.rs") {
            continue;
        }
        let own = file.strip_prefix("families/src/").and_then(|rest| rest.split(['.', '/']).next());
        let text = std::fs::read_to_string(&path).unwrap();
        for literal in product_part(&text).split('"') {
            if modules.get(literal).is_some_and(|module| Some(*module) != own) {
                found.push(format!("`{literal}` in crates/{file}"));
            }
        }
    }
    assert!(found.is_empty(), "families named outside their files: {found:?}");
}
