//! The packages of npm that the built page contains, with their licences: `web/packages.json`, which is
//! written with the page, so that an archive is packed without Node.js.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::licences;
use crate::process::workspace_dir;

/// The committed list.
const LIST: &str = "web/packages.json";

/// A package that is part of the page.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct PagePackage {
    pub(crate) name: String,
    pub(crate) version: String,
    /// SPDX expression.
    pub(crate) licence: String,
    /// Texts of its licences.
    pub(crate) texts: Vec<String>,
}

impl PagePackage {
    /// Returns its package URL (purl).
    pub(crate) fn purl(&self) -> String {
        format!("pkg:npm/{}@{}", self.name.replace('@', "%40"), self.version)
    }
}

/// Returns the packages in the committed list.
pub(crate) fn committed() -> anyhow::Result<Vec<PagePackage>> {
    let text = fs::read_to_string(path()).with_context(|| format!("reading {LIST}"))?;
    let list: Value = serde_json::from_str(&text).with_context(|| format!("reading {LIST}"))?;
    let text = |value: &Value, key: &str| -> anyhow::Result<String> {
        let text = value[key].as_str().with_context(|| format!("a package without {key}"))?;
        Ok(text.to_owned())
    };
    let packages = list.as_array().context("no list")?.iter().map(|it| {
        let texts = it["texts"].as_array().context("a package without texts")?;
        let texts = texts.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        let (name, version) = (text(it, "name")?, text(it, "version")?);
        Ok(PagePackage { name, version, licence: text(it, "licence")?, texts })
    });
    packages.collect::<anyhow::Result<_>>().with_context(|| format!("reading {LIST}"))
}

/// Returns the packages that npm has installed for the page, without those that only build it.
pub(super) fn installed() -> anyhow::Result<Vec<PagePackage>> {
    let folder = workspace_dir().join("web");
    let lock = fs::read_to_string(folder.join("package-lock.json"))?;
    let lock: Value = serde_json::from_str(&lock).context("reading package-lock.json")?;
    let entries = lock["packages"].as_object().context("package-lock.json has no packages")?;
    let mut packages = Vec::new();
    for (place, entry) in entries {
        let is_built_with = ["dev", "devOptional"].iter().any(|it| entry[*it] == true);
        let Some((_, name)) = place.rsplit_once("node_modules/").filter(|_| !is_built_with) else {
            continue;
        };
        let text = |key: &str| entry[key].as_str().map(str::to_owned);
        let licence = text("license").with_context(|| format!("{name} names no licence"))?;
        let version = text("version").with_context(|| format!("{name} has no version"))?;
        let texts = licences::texts(&folder.join(place))?;
        ensure!(!texts.is_empty(), "{name} comes without the text of its licence");
        packages.push(PagePackage { name: name.to_owned(), version, licence, texts });
    }
    Ok(packages)
}

/// Writes the list.
pub(super) fn write(packages: &[PagePackage]) -> anyhow::Result<()> {
    let entry = |it: &PagePackage| json!({"name": it.name, "version": it.version, "licence": it.licence, "texts": it.texts});
    let list: Vec<Value> = packages.iter().map(entry).collect();
    fs::write(path(), format!("{:#}\n", Value::from(list)))
        .with_context(|| format!("writing {LIST}"))
}

fn path() -> PathBuf {
    workspace_dir().join(LIST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_the_packages_of_the_page_in_the_versions_of_the_lock() {
        let lock = fs::read_to_string(workspace_dir().join("web/package-lock.json")).unwrap();
        let lock: Value = serde_json::from_str(&lock).unwrap();
        let wanted = lock["packages"][""]["dependencies"].as_object().unwrap();
        let listed = committed().unwrap();
        for (name, version) in wanted {
            let found = listed.iter().find(|it| it.name == *name).unwrap();
            assert_eq!(Some(found.version.as_str()), version.as_str(), "{name}");
            assert!(found.texts.iter().all(|it| 200 < it.len()), "{name}");
        }
        let scoped = listed.iter().find(|it| it.name == "@preact/signals").unwrap();
        assert!(scoped.purl().starts_with("pkg:npm/%40preact/signals@"));
    }
}
