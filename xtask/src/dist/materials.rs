//! What an archive consists of: the crates in both programs, the packages in the web page, libmlx and
//! its libraries. Their licences as text, and all of them as a CycloneDX bill of materials.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::archive;
use crate::licences;
use crate::process::{target_dir, workspace_dir};
use crate::web::packages::{self, PagePackage};

/// The packages of the two programs.
const PROGRAMS: [&str; 2] = ["jackalope-cli", "jackalope-runner"];

/// Licences of the libraries that MLX's wheels for Linux bring along, by the beginning of the file's
/// name: SPDX expression and source.
const WHEEL_LIBRARIES: [(&str, &str, &str); 5] = [
    ("libblas", "BSD-3-Clause", "https://netlib.org/lapack/"),
    ("liblapack", "BSD-3-Clause", "https://netlib.org/lapack/"),
    ("libopenblas", "BSD-3-Clause", "https://github.com/OpenMathLib/OpenBLAS"),
    ("libgfortran", "GPL-3.0-or-later WITH GCC-exception-3.1", "https://gcc.gnu.org/"),
    ("libquadmath", "LGPL-2.1-or-later", "https://gcc.gnu.org/"),
];

/// A crate that is part of a program.
struct Crate {
    name: String,
    version: String,
    /// Licence, as an SPDX expression.
    licence: Option<String>,
    repository: Option<String>,
    dir: PathBuf,
    /// Hash of the published package; none for crates of this workspace.
    checksum: Option<String>,
    /// Ids of the crates that this crate uses.
    uses: Vec<String>,
}

/// A library beside the programs.
struct SharedLibrary {
    place: String,
    sha256: String,
    licence: &'static str,
    source: &'static str,
}

/// Everything that an archive consists of.
pub(super) struct Materials {
    /// The crates, by package id.
    crates: BTreeMap<String, Crate>,
    page: Vec<PagePackage>,
    libraries: Vec<SharedLibrary>,
    mlx_version: String,
    /// Texts of MLX's licences.
    mlx_licences: Vec<String>,
}

/// Reads the materials of the programs, and of the libraries in `tree`.
pub(super) fn read(tree: &Path) -> anyhow::Result<Materials> {
    let mlx = mlx_licences()?;
    ensure!(!mlx.is_empty(), "libmlx comes without a licence\nhint: unset MLX_PREFIX");
    Ok(Materials {
        crates: crates(&super::metadata()?)?,
        page: packages::committed()?,
        libraries: libraries(tree)?,
        mlx_version: crate::mlx::wheels::MLX_VERSION.to_owned(),
        mlx_licences: mlx,
    })
}

/// Returns the crates that the programs use, by package id; without those that only builds and tests
/// use.
fn crates(metadata: &Value) -> anyhow::Result<BTreeMap<String, Crate>> {
    let of = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let checksums = checksums()?;
    let packages: BTreeMap<String, Value> =
        list(&metadata["packages"]).into_iter().map(|it| (of(&it, "id"), it)).collect();
    let nodes: BTreeMap<String, Vec<String>> = list(&metadata["resolve"]["nodes"])
        .iter()
        .map(|node| {
            let is_normal =
                |it: &&Value| list(&it["dep_kinds"]).iter().any(|it| it["kind"].is_null());
            let uses =
                list(&node["deps"]).iter().filter(is_normal).map(|it| of(it, "pkg")).collect();
            (of(node, "id"), uses)
        })
        .collect();
    let mut open: Vec<String> = packages
        .iter()
        .filter(|(_, it)| PROGRAMS.contains(&of(it, "name").as_str()))
        .map(|(id, _)| id.clone())
        .collect();
    ensure!(open.len() == PROGRAMS.len(), "cargo does not know both programs");
    let mut found = BTreeMap::new();
    while let Some(id) = open.pop() {
        let package = packages.get(&id).with_context(|| format!("cargo does not describe {id}"))?;
        let uses = nodes.get(&id).cloned().unwrap_or_default();
        let text = |key: &str| package[key].as_str().map(str::to_owned);
        let manifest = PathBuf::from(of(package, "manifest_path"));
        let (name, version) = (of(package, "name"), of(package, "version"));
        let checksum = checksums.get(&format!("{name} {version}")).cloned();
        open.extend(uses.iter().filter(|it| !found.contains_key(*it)).cloned());
        let dir = manifest.parent().context("a manifest lies in a folder")?.to_owned();
        let (licence, repository) = (text("license"), text("repository"));
        found.insert(id, Crate { name, version, licence, repository, dir, checksum, uses });
    }
    Ok(found)
}

/// Returns the hashes of `Cargo.lock`, by `NAME VERSION`.
fn checksums() -> anyhow::Result<BTreeMap<String, String>> {
    let text = fs::read_to_string(workspace_dir().join("Cargo.lock"))?;
    let mut found = BTreeMap::new();
    for package in text.split("[[package]]").skip(1) {
        let field = |key: &str| {
            let line = package.lines().find_map(|it| it.strip_prefix(key)?.strip_prefix(" = \""));
            line.and_then(|it| it.strip_suffix('"'))
        };
        if let (Some(name), Some(version), Some(sum)) =
            (field("name"), field("version"), field("checksum"))
        {
            found.insert(format!("{name} {version}"), sum.to_owned());
        }
    }
    Ok(found)
}

/// Returns the texts in the wheels' folders of licences.
fn mlx_licences() -> anyhow::Result<Vec<String>> {
    let selected = fs::read_to_string(target_dir().join("mlx/selected")).context("no libmlx")?;
    let mut texts = Vec::new();
    for entry in fs::read_dir(target_dir().join("mlx").join(selected.trim()))? {
        let folder = entry?.path().join("licenses");
        if folder.is_dir() {
            for file in archive::files(&folder)? {
                texts.push(fs::read_to_string(folder.join(file))?);
            }
        }
    }
    texts.sort();
    texts.dedup();
    Ok(texts)
}

fn libraries(tree: &Path) -> anyhow::Result<Vec<SharedLibrary>> {
    let lib = tree.join("lib");
    let mut found = Vec::new();
    for place in archive::files(&lib)? {
        let name = place.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.ends_with(".h") {
            continue;
        }
        let known = WHEEL_LIBRARIES.iter().find(|(start, ..)| name.starts_with(start));
        let (licence, source) = match known {
            Some((_, licence, source)) => (*licence, *source),
            // Everything else in the wheels is MLX itself: libmlx, libjaccl and the Metal library.
            None if ["libmlx", "libjaccl", "mlx."].iter().any(|it| name.starts_with(it)) => {
                ("MIT", "https://github.com/ml-explore/mlx")
            }
            None => anyhow::bail!(
                "the licence of {name} is not known\nhint: add it to WHEEL_LIBRARIES in \
                 xtask/src/dist/materials.rs"
            ),
        };
        let bytes = fs::read(lib.join(&place))?;
        let sha256 = Sha256::digest(&bytes).iter().map(|it| format!("{it:02x}")).collect();
        let place = format!("lib/{}", place.display());
        found.push(SharedLibrary { place, sha256, licence, source });
    }
    Ok(found)
}

impl Materials {
    /// Returns the licences of everything as one text. Equal texts appear once.
    pub(super) fn licences(&self) -> anyhow::Result<String> {
        let mut text = String::from(
            "Jackalope contains the following software of others. Licences whose texts are equal appear\n\
             once, at the end, with the names of all that they apply to.\n\n",
        );
        // Each text, with the names and versions of the packages that it applies to.
        let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let of_others = || self.crates.values().filter(|it| it.checksum.is_some());
        for it in of_others() {
            let named = format!("{} {}", it.name, it.version);
            let licence = it.licence.as_deref().unwrap_or("see its licence below");
            let from = it.repository.as_deref().unwrap_or("https://crates.io");
            text.push_str(&format!("{named}: {licence} ({from})\n"));
            for licence in licences::texts(&it.dir)? {
                texts.entry(licence).or_default().insert(named.clone());
            }
        }
        for it in &self.page {
            let (named, licence) = (format!("{} {}", it.name, it.version), &it.licence);
            text.push_str(&format!(
                "{named}: {licence} (https://www.npmjs.com/package/{})\n",
                it.name
            ));
            for licence in &it.texts {
                texts.entry(licence.clone()).or_default().insert(named.clone());
            }
        }
        for library in &self.libraries {
            let SharedLibrary { place, licence, source, .. } = library;
            text.push_str(&format!("{place}: {licence} ({source})\n"));
        }
        for licence in &self.mlx_licences {
            let named = format!("MLX {}", self.mlx_version);
            texts.entry(licence.trim().to_owned()).or_default().insert(named);
        }
        let line = "-".repeat(80);
        for (licence, whose) in texts {
            let whose: Vec<String> = whose.into_iter().collect();
            text.push_str(&format!("\n{line}\n{}\n{line}\n\n{licence}\n", whose.join(", ")));
        }
        Ok(text)
    }

    /// Returns the bill of materials. It has no date and no serial number, so that the same sources give
    /// the same bytes.
    pub(super) fn cyclone_dx(&self, version: &str) -> Value {
        let component = |it: &Crate| {
            let purl = purl(it);
            let mut value = json!({
                "type": "library", "bom-ref": purl, "name": it.name, "version": it.version,
                "purl": purl,
            });
            if let Some(licence) = &it.licence {
                // Older crates separate alternatives by a slash, which is not SPDX.
                value["licenses"] = json!([{ "expression": licence.replace('/', " OR ") }]);
            }
            if let Some(sum) = &it.checksum {
                value["hashes"] = json!([{"alg": "SHA-256", "content": sum}]);
            }
            value
        };
        let library = |it: &SharedLibrary| {
            let name = it.place.rsplit('/').next().unwrap_or(&it.place);
            json!({
                "type": "library", "bom-ref": it.place, "name": name,
                "licenses": [{ "expression": it.licence }],
                "hashes": [{"alg": "SHA-256", "content": it.sha256}],
                "externalReferences": [{"type": "website", "url": it.source}],
            })
        };
        let mlx = format!("pkg:github/ml-explore/mlx@v{}", self.mlx_version);
        let mut components: Vec<Value> = self.crates.values().map(component).collect();
        components.push(json!({
            "type": "library", "bom-ref": mlx, "name": "mlx", "version": self.mlx_version,
            "purl": mlx, "licenses": [{ "expression": "MIT" }],
        }));
        components.extend(self.libraries.iter().map(library));
        components.extend(self.page.iter().map(page_component));
        let uses = |it: &Crate| {
            let used: Vec<String> =
                it.uses.iter().filter_map(|id| self.crates.get(id)).map(purl).collect();
            json!({"ref": purl(it), "dependsOn": used})
        };
        let mut dependencies: Vec<Value> = self.crates.values().map(uses).collect();
        let places: Vec<&str> = self.libraries.iter().map(|it| it.place.as_str()).collect();
        dependencies.push(json!({"ref": mlx, "dependsOn": places}));
        let root = format!("pkg:generic/jackalope@{version}");
        let programs = self.crates.values().filter(|it| PROGRAMS.contains(&it.name.as_str()));
        let mut parts: Vec<String> = programs.map(purl).collect();
        parts.push(mlx);
        parts.extend(self.page.iter().map(PagePackage::purl));
        dependencies.push(json!({"ref": root, "dependsOn": parts}));
        json!({
            "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
            "metadata": {"component": {
                "type": "application", "bom-ref": root, "name": "jackalope", "version": version,
            }},
            "components": components,
            "dependencies": dependencies,
        })
    }
}

fn page_component(it: &PagePackage) -> Value {
    json!({
        "type": "library", "bom-ref": it.purl(), "name": it.name, "version": it.version,
        "purl": it.purl(), "licenses": [{ "expression": it.licence }],
    })
}

/// Returns the package URL (purl) of a crate.
fn purl(it: &Crate) -> String {
    format!("pkg:cargo/{}@{}", it.name, it.version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crates_of_both_programs_are_named_with_hash_and_licence() {
        let crates = crates(&crate::dist::metadata().unwrap()).unwrap();
        let of = |name: &str| crates.values().find(|it| it.name == name);
        let serde = of("serde").unwrap();
        assert!(serde.checksum.is_some() && serde.licence.is_some());
        assert!(!licences::texts(&serde.dir).unwrap().is_empty());
        assert!(of("jackalope-mlx").is_some_and(|it| it.checksum.is_none()));
        // Tests and builds alone use these.
        assert!(of("proptest").is_none() && of("cxx-build").is_none());
        let others = crates.values().filter(|it| it.checksum.is_some());
        let without: Vec<&str> =
            others.filter(|it| it.licence.is_none()).map(|it| it.name.as_str()).collect();
        assert!(without.is_empty(), "without a licence: {without:?}");
    }
}
