//! Installs these programs on another machine over a shell alone. The machine needs POSIX `sh`, a
//! tool that computes hashes, and free disk space.
//!
//! ```text
//!   survey ─▶ send what is missing ─▶ verify every file ─▶ rename ─▶ do they start? ─▶ activate
//!     ▲            │ cut off                  │ damaged                    │ no
//!     └────────────┘ (resumes)                └────────────┬───────────────┘
//!                                                 an error; `current` is unchanged
//! ```
//!
//! Below the other machine's `~/.jackalope`: `versions/ID` for each version, `versions/.ID.part`
//! while one is being sent, and the links `current` and `previous`. The installed program switches
//! `current` itself ([`versions`]). It reads the cluster's secret and our key from its standard
//! input and returns the machine's key.

mod bundle;
mod error;
mod remote;
mod remove;
pub mod versions;

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use jackalope_protocol::PublicKey;
use serde::Deserialize;
use tracing::debug;

pub use bundle::{Bundle, BundleError, BundleFile};
pub use error::InstallError;
pub use remove::{Removed, uninstall};

use jackalope_protocol::ContentHash;

use crate::shell::{Output, Shell};
use crate::trust::Credentials;
use remote::{HashTool, Survey};

/// Number of bytes that one run of the shell sends. Each run has [`PIECE_TIMEOUT`].
const PIECE_BYTES: usize = 8 << 20;
const PIECE_TIMEOUT: Duration = Duration::from_secs(120);

/// Time for listing or verifying the installed files, which is limited by the disk.
const SURVEY_TIMEOUT: Duration = Duration::from_secs(120);

/// Time for switching to another version, which includes stopping one agent and starting the next.
const ACTIVATE_TIMEOUT: Duration = Duration::from_secs(40);

/// Maximum number of consecutive attempts that send no byte.
const FUTILE_MAX: u32 = 3;

/// Disk space that must be free beyond the files themselves.
const ROOM_BYTES: u64 = 64 << 20;

/// The files to install, and the shell to install them with.
#[derive(Clone, Copy)]
pub struct Install<'a> {
    /// The files to install.
    pub bundle: &'a Bundle,
    /// The cluster's secret, and the key of the coordinator that may command the machine from now
    /// on. If absent, the machine's secret and trust are left unchanged.
    pub ours: Option<&'a Credentials>,
    /// Shell that reaches the machine.
    pub shell: &'a dyn Shell,
    /// Receives progress, on the calling thread.
    pub progress: &'a (dyn Fn(InstallProgress) + Sync),
}

impl std::fmt::Debug for Install<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Install").field("bundle", &self.bundle.id()).finish_non_exhaustive()
    }
}

/// Progress of an installation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum InstallProgress {
    /// This number of bytes is missing on the machine.
    Missing(u64),
    /// This number of further bytes has arrived.
    Sent(u64),
    /// This number of bytes was lost and must be sent again.
    Lost(u64),
    /// All files have arrived; they are being verified and their programs tried.
    Verifying,
}

/// The result of an installation.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Installed {
    /// The installed version: see [`Bundle::id`].
    pub id: String,
    /// Number of bytes sent; 0 if the machine had all files.
    pub bytes_sent: u64,
    /// What switching to the version changed.
    pub activated: Activated,
}

/// The installed program's report on the switch to its version.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, serde::Serialize)]
pub struct Activated {
    /// The version in use now.
    pub current: String,
    /// The version that a rollback returns to.
    pub previous: Option<String>,
    /// Whether another version was in use before.
    pub switched: bool,
    /// Whether the machine had another secret before.
    pub secret_changed: bool,
    /// Whether an agent of another version, or with another secret, was replaced.
    pub agent_restarted: bool,
    /// The machine's key, if it was reported.
    #[serde(default)]
    pub key: Option<PublicKey>,
}

impl Installed {
    /// Returns true if nothing had to be done.
    pub fn was_there(&self) -> bool {
        let Activated { switched, secret_changed, agent_restarted, .. } = self.activated;
        self.bytes_sent == 0 && !switched && !secret_changed && !agent_restarted
    }
}

/// Installs the bundle's version on a machine and switches to it. Repeating it does nothing; an
/// interrupted installation is resumed.
///
/// # Errors
/// [`InstallError`]; the previous version stays in use.
pub fn install(host: &str, what: Install<'_>) -> Result<Installed, InstallError> {
    let mut bytes_sent = 0;
    let mut futile = 0;
    let mut expected = None;
    loop {
        let survey = remote::survey(host, what)?;
        check_platform(host, what.bundle, &survey)?;
        if survey.has_version(what.bundle) {
            break;
        }
        let plan = plan(host, what.bundle, &survey)?;
        check_room(host, what.bundle, &survey, &plan)?;
        let missing: u64 = plan.iter().map(Work::num_bytes).sum();
        match expected {
            None => (what.progress)(InstallProgress::Missing(missing)),
            Some(expected) if expected < missing => {
                (what.progress)(InstallProgress::Lost(missing - expected))
            }
            Some(expected) => (what.progress)(InstallProgress::Sent(expected - missing)),
        }
        let (sent, result) = carry_out(host, what, &plan);
        bytes_sent += sent;
        expected = Some(missing.saturating_sub(sent));
        futile = if sent == 0 { futile + 1 } else { 0 };
        match result {
            Ok(()) => {
                (what.progress)(InstallProgress::Verifying);
                finish(host, what)?;
                break;
            }
            Err(err) if err.is_passing() && futile < FUTILE_MAX => {
                debug!(host, %err, "going on where it stands");
            }
            Err(err) => return Err(err),
        }
    }
    let activated = activate(host, what)?;
    Ok(Installed { id: what.bundle.id().to_owned(), bytes_sent, activated })
}

/// Switches a machine back to its previous version.
///
/// # Errors
/// [`InstallError`], also if there is no previous version.
pub fn roll_back(host: &str, shell: &dyn Shell) -> Result<Activated, InstallError> {
    let ran = remote::run(host, shell, &remote::roll_back_script(), b"", ACTIVATE_TIMEOUT)?;
    if ran.status == remote::NOTHING_THERE {
        return Err(InstallError::NoPrevious { host: host.to_owned() });
    }
    activated(host, &ran)
}

fn check_platform(host: &str, bundle: &Bundle, survey: &Survey) -> Result<(), InstallError> {
    let host = host.to_owned();
    if survey.system != bundle.system() {
        let (ours, theirs) = (bundle.system().to_owned(), survey.system.clone());
        return Err(InstallError::Platform { host, ours, theirs });
    }
    match survey.hash_tool {
        HashTool::Present => Ok(()),
        HashTool::Absent => Err(InstallError::NoHashTool { host }),
    }
}

/// How to bring one file to the machine.
#[derive(Debug)]
enum Work<'a> {
    /// Copy the file on the machine from the version in use, which has the same file.
    Copy(&'a BundleFile),
    /// Send the file from here, beginning at this byte.
    Send(&'a BundleFile, u64),
}

impl Work<'_> {
    fn num_bytes(&self) -> u64 {
        match self {
            Work::Copy(_) => 0,
            Work::Send(file, from) => file.bytes - from,
        }
    }
}

/// Returns the work for all missing files. A partial file that is not the beginning of the file
/// here is sent from the start.
fn plan<'a>(
    host: &str,
    bundle: &'a Bundle,
    survey: &Survey,
) -> Result<Vec<Work<'a>>, InstallError> {
    let mut plan = Vec::new();
    for file in bundle.files() {
        let begun = survey.part.get(&file.place);
        if begun.is_some_and(|it| it.bytes == file.bytes && it.sha256 == file.sha256) {
            continue;
        }
        let in_use = survey.current.get(&file.place);
        if in_use.is_some_and(|it| it.bytes == file.bytes && it.sha256 == file.sha256) {
            plan.push(Work::Copy(file));
            continue;
        }
        let from = match begun {
            Some(it) if it.bytes < file.bytes && begins_with(file, it.bytes, it.sha256)? => {
                it.bytes
            }
            _ => 0,
        };
        debug!(host, place = file.place.as_str(), from, "to be sent");
        plan.push(Work::Send(file, from));
    }
    Ok(plan)
}

/// Returns whether the first `bytes` of a file have this hash.
fn begins_with(file: &BundleFile, bytes: u64, hash: ContentHash) -> Result<bool, InstallError> {
    let failed = |source| InstallError::Read { path: file.path.clone(), source };
    let source = File::open(&file.path).map_err(failed)?.take(bytes);
    Ok(ContentHash::of_reader(source, &|_| ()).map_err(failed)? == hash)
}

fn check_room(
    host: &str,
    bundle: &Bundle,
    survey: &Survey,
    plan: &[Work<'_>],
) -> Result<(), InstallError> {
    let copied = plan.iter().map(|work| match work {
        Work::Copy(file) => file.bytes,
        Work::Send(..) => work.num_bytes(),
    });
    let needed_bytes = copied.sum::<u64>() + ROOM_BYTES;
    match survey.free_bytes {
        Some(free_bytes) if free_bytes < needed_bytes => Err(InstallError::NoRoom {
            host: host.to_owned(),
            home: survey.home.clone(),
            id: bundle.id().to_owned(),
            needed_bytes,
            free_bytes,
        }),
        _ => Ok(()),
    }
}

/// Carries out the plan. Returns the number of bytes sent, even if it fails midway.
fn carry_out(host: &str, what: Install<'_>, plan: &[Work<'_>]) -> (u64, Result<(), InstallError>) {
    let mut sent = 0;
    for work in plan {
        let result = match work {
            Work::Copy(file) => remote::copy(host, what, file),
            Work::Send(file, from) => send(host, what, file, *from, &mut sent),
        };
        if let Err(err) = result {
            return (sent, Err(err));
        }
    }
    (sent, Ok(()))
}

/// Sends a file from a byte position on, in pieces.
fn send(
    host: &str,
    what: Install<'_>,
    file: &BundleFile,
    from: u64,
    sent: &mut u64,
) -> Result<(), InstallError> {
    let failed = |source| InstallError::Read { path: file.path.clone(), source };
    let source = File::open(&file.path).map_err(failed)?;
    let mut offset = from;
    loop {
        let left = usize::try_from(file.bytes - offset).unwrap_or(usize::MAX);
        let mut piece = vec![0; left.min(PIECE_BYTES)];
        source.read_exact_at(&mut piece, offset).map_err(failed)?;
        remote::append(host, what, file, offset, &piece)?;
        offset += piece.len() as u64;
        *sent += piece.len() as u64;
        (what.progress)(InstallProgress::Sent(piece.len() as u64));
        if offset == file.bytes {
            return Ok(());
        }
    }
}

/// Verifies every file, renames the directory to its version, and checks that its programs start.
fn finish(host: &str, what: Install<'_>) -> Result<(), InstallError> {
    let (script, input) = remote::finish_script(what.bundle);
    let ran = remote::run(host, what.shell, &script, input.as_bytes(), SURVEY_TIMEOUT)?;
    let host = host.to_owned();
    let said = ran.stdout.trim().to_owned();
    match ran.status {
        0 => Ok(()),
        remote::DAMAGED => match changed_here(what.bundle, &said) {
            Some(path) => Err(InstallError::Changed { path }),
            None => Err(InstallError::Damaged { host, place: said }),
        },
        remote::NO_START => Err(InstallError::NoStart { host, reason: said }),
        _ => Err(InstallError::script(host, "verifying the files", &ran)),
    }
}

/// Returns the path of the local file at `place`, if it has changed since the bundle was made.
fn changed_here(bundle: &Bundle, place: &str) -> Option<PathBuf> {
    let file = bundle.files().iter().find(|file| file.place.as_str() == place)?;
    let now = ContentHash::of_file(&file.path, &|_| ()).ok();
    (now != Some(file.sha256)).then(|| file.path.clone())
}

fn activate(host: &str, what: Install<'_>) -> Result<Activated, InstallError> {
    let input = what.ours.map_or_else(|| "\n".to_owned(), Credentials::introduction);
    let script = remote::activate_script(what.bundle.id());
    let ran = remote::run(host, what.shell, &script, input.as_bytes(), ACTIVATE_TIMEOUT)?;
    activated(host, &ran)
}

fn activated(host: &str, ran: &Output) -> Result<Activated, InstallError> {
    let parsed = ran.stdout.lines().rev().find_map(|line| serde_json::from_str(line).ok());
    match (ran.status, parsed) {
        (0, Some(activated)) => Ok(activated),
        _ => Err(InstallError::script(host.to_owned(), "switching to the new version", ran)),
    }
}

#[cfg(test)]
mod tests;
