//! The files to install on another machine: the two programs and the libraries that they load.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jackalope_protocol::{ContentHash, FilePath};
use serde::Deserialize;
use thiserror::Error;

use crate::process::output_of;

/// Time for a query to the rank program or the system.
const ASK_TIMEOUT: Duration = Duration::from_secs(20);

/// Number of hexadecimal digits of the manifest's hash in a bundle's id.
const ID_DIGITS: usize = 12;

/// The complete files of one version.
#[derive(Clone, Debug)]
pub struct Bundle {
    id: String,
    system: String,
    files: Vec<BundleFile>,
}

/// A file of a bundle.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BundleFile {
    /// Path on the target, below the version's folder.
    pub place: FilePath,
    /// Path on this machine.
    pub path: PathBuf,
    /// Size in bytes.
    pub bytes: u64,
    /// Permissions: 0755 if the file is executable here, else 0644.
    pub mode: u32,
    /// Hash of the file's content.
    pub sha256: ContentHash,
}

/// Reason why a bundle cannot be made.
#[derive(Debug, Error)]
pub enum BundleError {
    /// A file cannot be read.
    #[error("reading {}: {source}", .path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// `uname` or the rank program does not answer.
    #[error("asking `{program}`: {source}")]
    Ask {
        /// The program.
        program: String,
        /// The cause.
        source: io::Error,
    },
    /// The rank program's answer is malformed.
    #[error(
        "`{program} libraries` names no files: {reason}\n\
         hint: build it again; it must be of the same version as jackalope"
    )]
    Answer {
        /// The rank program.
        program: String,
        /// What is wrong with the answer.
        reason: String,
    },
}

#[derive(Deserialize)]
struct Library {
    path: PathBuf,
    place: FilePath,
}

impl Bundle {
    /// Creates the bundle of the programs at these paths and of the libraries that the rank program
    /// lists.
    ///
    /// # Errors
    /// [`BundleError`].
    pub fn of_programs(program: &Path, rank_program: &Path) -> Result<Bundle, BundleError> {
        let asked = rank_program.to_string_lossy().into_owned();
        let said = output_of(&asked, &["libraries"], ASK_TIMEOUT)
            .map_err(|source| BundleError::Ask { program: asked.clone(), source })?;
        let libraries: Vec<Library> = serde_json::from_str(said.trim())
            .map_err(|err| BundleError::Answer { program: asked, reason: err.to_string() })?;
        let place = |text: &str| text.parse().expect("it is a path below a folder");
        let programs = [
            (place("bin/jackalope"), program.to_owned()),
            (place("bin/jackalope-rank"), rank_program.to_owned()),
        ];
        let libraries = libraries.into_iter().map(|it| (it.place, it.path));
        let system = output_of("uname", &["-sm"], ASK_TIMEOUT)
            .map_err(|source| BundleError::Ask { program: "uname".to_owned(), source })?;
        Bundle::new(system.trim(), programs.into_iter().chain(libraries).collect())
    }

    /// Creates the bundle of these files, for machines on which `uname -sm` prints `system`.
    ///
    /// # Errors
    /// [`BundleError::Read`].
    pub fn new(system: &str, files: Vec<(FilePath, PathBuf)>) -> Result<Bundle, BundleError> {
        let mut found = Vec::with_capacity(files.len());
        for (place, path) in files {
            let failed = |source| BundleError::Read { path: path.clone(), source };
            let metadata = std::fs::metadata(&path).map_err(failed)?;
            let is_program = metadata.permissions().mode() & 0o111 != 0;
            let sha256 = ContentHash::of_file(&path, &|_| ()).map_err(failed)?;
            let mode = if is_program { 0o755 } else { 0o644 };
            found.push(BundleFile { place, path, bytes: metadata.len(), mode, sha256 });
        }
        found.sort_by(|one, other| one.place.cmp(&other.place));
        let line =
            |it: &BundleFile| format!("{} {:o} {} {}\n", it.sha256, it.mode, it.bytes, it.place);
        let manifest: String = found.iter().map(line).collect();
        let hash = ContentHash::of(manifest.as_bytes()).to_string();
        let id = format!("{}-{}", env!("CARGO_PKG_VERSION"), &hash[..ID_DIGITS]);
        Ok(Bundle { id, system: system.to_owned(), files: found })
    }

    /// Copies the files to their places below a folder, with their permissions.
    ///
    /// # Errors
    /// If a file or folder cannot be written.
    pub fn copy_to(&self, dir: &Path) -> io::Result<()> {
        for file in &self.files {
            let path = dir.join(file.place.as_str());
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent)?;
            }
            std::fs::copy(&file.path, &path)?;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(file.mode))?;
        }
        Ok(())
    }

    /// Returns the version and the beginning of the hash over all files: `0.1.0-3f2a9c01d4e5`.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the platform as `uname -sm` prints it: `Darwin arm64`.
    pub fn system(&self) -> &str {
        &self.system
    }

    /// Returns the files, sorted by place.
    pub fn files(&self) -> &[BundleFile] {
        &self.files
    }

    /// Returns the total size of the files in bytes.
    pub fn num_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}
