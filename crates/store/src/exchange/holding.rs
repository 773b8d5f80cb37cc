//! How much of a model a machine holds: complete files, and what has arrived of unfinished ones.

use std::fs;
use std::path::Path;

use jackalope_protocol::{ContentHash, FilePath};

use super::fetch::{PARTS, same};
use super::library::Library;
use super::messages::Holding;
use super::ranges::arrived_bytes;
use crate::{Difference, FileEntry, Manifest, ModelRef, Record, RepoId};

/// Returns how much this machine holds of the model `name` with these files. Where a copy would go
/// and what it would refuse are the same as in `fetch`, but only names and sizes are compared.
pub(super) fn holding(
    library: &Library,
    name: &str,
    files: &[(FilePath, u64)],
) -> Result<Holding, String> {
    let repo: RepoId =
        name.parse().map_err(|_| format!("{name} cannot be the name of a folder"))?;
    let target = library.copies_dir.as_ref().map(|it| it.join(repo.as_str()));
    let found = library.stores.resolve(&ModelRef { repo, revision: None }).ok().map(|it| it.dir);
    let Some(dir) = found.or_else(|| target.clone()) else { return Ok(Holding::default()) };
    if fs::read_dir(&dir).map_or(true, |mut it| it.next().is_none()) {
        return Ok(Holding::default());
    }
    let lacking = lacking(&dir, files)?;
    let held = |(path, bytes): &(FilePath, u64)| {
        if lacking.iter().any(|it| it.path() == path) {
            arrived_bytes(&dir.join(PARTS), path, *bytes)
        } else {
            *bytes
        }
    };
    let is_filled_here = target.is_some_and(|it| same(&it, &dir)) && Record::read(&dir).is_some();
    let obstacle = lacking.first().filter(|_| !is_filled_here).map(|first| {
        format!(
            "{} holds another {name}: {first}\nhint: remove it there with `jackalope models rm {name}`",
            dir.display()
        )
    });
    Ok(Holding {
        dir: Some(dir.to_string_lossy().into_owned()),
        num_bytes: files.iter().map(held).sum(),
        is_complete: lacking.is_empty(),
        obstacle,
    })
}

/// Returns how the sizes of the files in `dir` differ from these. Additional files are ignored.
fn lacking(dir: &Path, files: &[(FilePath, u64)]) -> Result<Vec<Difference>, String> {
    let sha256 = ContentHash([0; 32]);
    let entry =
        |(path, bytes): &(FilePath, u64)| FileEntry { path: path.clone(), bytes: *bytes, sha256 };
    let wanted = Manifest::new(files.iter().map(entry).collect()).map_err(|err| err.to_string())?;
    let differences = wanted.differences_of_sizes(dir).map_err(|err| err.to_string())?;
    Ok(differences.into_iter().filter(|it| !matches!(it, Difference::Extra { .. })).collect())
}
