//! Archives whose bytes depend on nothing but the files' names, contents and permissions.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use flate2::{Compression, GzBuilder};
use tar::{Builder, EntryType, Header};

/// Date of all files in an archive: 2001-09-09, which every program can show.
const DATE: u64 = 1_000_000_000;

/// Maximum depth of folders.
const DEPTH_MAX: usize = 16;

/// Returns the paths of all files below a folder, relative to it and sorted.
pub(super) fn files(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![(dir.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        ensure!(depth < DEPTH_MAX, "{} is too deep", folder.display());
        let entries = fs::read_dir(&folder);
        for entry in entries.with_context(|| format!("reading {}", folder.display()))? {
            let entry = entry?;
            let kind = entry.file_type()?;
            ensure!(!kind.is_symlink(), "{} is a link", entry.path().display());
            if kind.is_dir() {
                folders.push((entry.path(), depth + 1));
            } else {
                found.push(entry.path().strip_prefix(dir)?.to_owned());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Writes `NAME.tar.gz` to `out`, with all files of `tree` below the folder `NAME`.
pub(super) fn write(tree: &Path, name: &str, out: &Path) -> anyhow::Result<()> {
    let path = out.join(format!("{name}.tar.gz"));
    let file = BufWriter::new(File::create(&path)?);
    let mut builder = Builder::new(GzBuilder::new().write(file, Compression::new(6)));
    for place in files(tree)? {
        let bytes = fs::read(tree.join(&place))?;
        let mode = fs::metadata(tree.join(&place))?.permissions().mode();
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(if mode & 0o111 == 0 { 0o644 } else { 0o755 });
        header.set_mtime(DATE);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(bytes.len() as u64);
        builder.append_data(&mut header, Path::new(name).join(&place), &bytes[..])?;
    }
    builder.into_inner()?.finish()?.flush().with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_do_not_depend_on_dates_or_on_the_order_of_writing() {
        let dir = std::env::temp_dir().join(format!("jackalope-archive-{}", std::process::id()));
        let make = |name: &str, order: [&str; 2]| {
            let tree = dir.join(name);
            for file in order {
                fs::create_dir_all(tree.join("d")).unwrap();
                fs::write(tree.join(file), file).unwrap();
            }
            write(&tree, "it", &dir).unwrap();
            fs::read(dir.join("it.tar.gz")).unwrap()
        };
        let first = make("one", ["a", "d/b"]);
        assert_eq!(first, make("two", ["d/b", "a"]));
        fs::remove_dir_all(&dir).unwrap();
    }
}
