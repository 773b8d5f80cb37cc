//! Checks whether the model is on the machine, and whether it is the same as on the others.

use jackalope_protocol::counted;

use super::{Scene, gib};
use crate::doctor::{ExaminedNode, Finding, catalogue};
use crate::probe::ModelFile;

pub(super) fn check(scene: &Scene<'_>, node: &ExaminedNode, findings: &mut Vec<Finding>) {
    let (Some(folder), Some(files)) = (scene.model, &node.model) else { return };
    let blanks = [("model", folder)];
    let on = |entry, found: String| Finding::on(entry, &node.name, found, &blanks);
    let Some(files) = files else {
        findings.push(on(&catalogue::MODEL_MISSING, format!("there is no folder {folder}")));
        return;
    };
    if !files.iter().any(|file| file.name == "config.json") {
        findings.push(on(&catalogue::MODEL_MISSING, format!("{folder} has no config.json")));
        return;
    }
    let reference = scene.nodes.iter().find_map(|it| Some((it, it.model.as_ref()?.as_ref()?)));
    if let Some((other, reference)) = reference.filter(|(other, _)| other.name != node.name) {
        let differences = differences(reference, files);
        if !differences.is_empty() {
            let found = format!("unlike {}: {}", other.name, differences.join(", "));
            findings.push(on(&catalogue::MODEL_DIFFERS, found));
            return;
        }
    }
    let bytes = files.iter().map(|file| file.bytes).sum();
    let found = format!("{}, {}", jackalope_protocol::counted(files.len(), "file"), gib(bytes));
    findings.push(Finding::ok(&node.name, "model", found));
}

/// Returns the files that are missing, additional, or different in size or hash.
fn differences(reference: &[ModelFile], files: &[ModelFile]) -> Vec<String> {
    let find = |all: &'_ [ModelFile], name: &str| all.iter().find(|it| it.name == name).cloned();
    let mut all = Vec::new();
    for wanted in reference {
        match find(files, &wanted.name) {
            None => all.push(format!("{} is missing", wanted.name)),
            Some(file) if file.bytes != wanted.bytes => {
                all.push(format!(
                    "{} has {} instead of {}",
                    file.name,
                    counted(file.bytes, "byte"),
                    wanted.bytes
                ));
            }
            Some(file) if file.sha256 != wanted.sha256 => {
                all.push(format!("{} has other bytes", file.name));
            }
            Some(_) => {}
        }
    }
    // Only weights and settings matter; an additional README does not make another model.
    let matters =
        |it: &&ModelFile| [".json", ".safetensors"].iter().any(|end| it.name.ends_with(end));
    let more = files.iter().filter(matters).filter(|it| find(reference, &it.name).is_none());
    all.extend(more.map(|it| format!("{} is not there", it.name)));
    all
}
