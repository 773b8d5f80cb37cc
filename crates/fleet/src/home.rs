//! Jackalope's own folder on a machine: `~/.jackalope`.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use jackalope_protocol::{Identity, Secret};
use sha2::{Digest, Sha256};
use thiserror::Error;

/// Jackalope's folder on a machine, for scripts: the one that the machine's user has set, or the
/// default.
pub const HOME_IN_SCRIPTS: &str = "\"${JACKALOPE_HOME:-$HOME/.jackalope}\"";

/// Only the user may read the folder and its files.
const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// Interval of trying to lock a file that another process has locked.
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// Minimum free space in bytes, for records and the beginning of a log.
const SPACE_BYTES_MIN: usize = 256 << 10;
/// Files of 64 hexadecimal digits: the secret that all machines of a cluster share, and this
/// machine's private key.
const SECRET: &str = "secret";
const IDENTITY: &str = "identity";

/// The token created on this machine, in the same format.
const TOKEN: &str = "token";

/// Jackalope's folder on this machine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Home(PathBuf);

/// Minimum length of a token; shorter ones can be guessed.
const TOKEN_CHARS_MIN: usize = 16;

/// Derives the cluster's secret from a token, for machines that were given a token instead of a
/// secret.
///
/// # Errors
/// [`HomeError::WeakToken`].
pub fn secret_of_token(token: &str) -> Result<Secret, HomeError> {
    let token = token.trim();
    if token.chars().count() < TOKEN_CHARS_MIN {
        return Err(HomeError::WeakToken);
    }
    let hash = Sha256::new().chain_update(b"jackalope cluster token\0").chain_update(token);
    Ok(Secret(hash.finalize().into()))
}

/// Reason why the folder or a file in it cannot be used.
#[derive(Debug, Error)]
pub enum HomeError {
    /// A file or folder cannot be used.
    #[error("{}: {source}{}", .path.display(), space_hint(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Another process has locked a file for too long.
    #[error("{} is still locked by another command\nhint: wait until that has ended", .path.display())]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// The secret's file has another content.
    #[error(
        "{} holds no secret: 64 hexadecimal digits are expected\n\
         hint: remove it, and a new one is made; then run `jackalope sync --hosts FILE`",
        .path.display()
    )]
    Malformed {
        /// The file.
        path: PathBuf,
    },
    /// A token is too short.
    #[error("the token has fewer than {TOKEN_CHARS_MIN} characters\nhint: openssl rand -hex 32")]
    WeakToken,
    /// Other users can read the secret.
    #[error("{} can be read by others\nhint: chmod 600 {}", .path.display(), .path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
    },
}

/// Returns the hint for a full disk or quota; empty for other errors.
fn space_hint(err: &io::Error) -> &'static str {
    match err.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "\nhint: free some space there, or set JACKALOPE_HOME to a folder on another disk"
        }
        _ => "",
    }
}

impl Home {
    /// Returns the folder at `path`. It is created when something is written.
    pub fn new(path: impl Into<PathBuf>) -> Home {
        Home(path.into())
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the path of the file or folder `name` in jackalope's folder.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Creates the folder `name` in jackalope's folder, if it does not exist yet, and returns its
    /// path. An empty name means jackalope's folder.
    ///
    /// # Errors
    /// [`HomeError::Io`].
    pub fn dir(&self, name: &str) -> Result<PathBuf, HomeError> {
        let path = if name.is_empty() { self.0.clone() } else { self.0.join(name) };
        let made = fs::DirBuilder::new().recursive(true).mode(DIR_MODE).create(&path);
        made.map_err(|source| HomeError::Io { path: path.clone(), source })?;
        Ok(path)
    }

    /// Locks the file `name` in jackalope's folder, which is created if it does not exist. The lock is
    /// held until the returned file is closed or the process ends. If another process holds it, calls
    /// `on_wait` once and waits until the deadline.
    ///
    /// # Errors
    /// [`HomeError::Locked`] at the deadline, [`HomeError::Io`] if the file cannot be locked.
    pub fn lock(
        &self,
        name: &str,
        deadline: Instant,
        on_wait: impl FnOnce(),
    ) -> Result<File, HomeError> {
        self.dir("")?;
        let path = self.join(name);
        let failed = |source| HomeError::Io { path: path.clone(), source };
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).mode(FILE_MODE).open(&path);
        let file = file.map_err(failed)?;
        let mut on_wait = Some(on_wait);
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::Error(err)) => return Err(failed(err)),
                Err(TryLockError::WouldBlock) if deadline <= Instant::now() => {
                    return Err(HomeError::Locked { path });
                }
                Err(TryLockError::WouldBlock) => {}
            }
            if let Some(on_wait) = on_wait.take() {
                on_wait();
            }
            thread::sleep(LOCK_PAUSE);
        }
    }

    /// Returns the cluster's secret; generated at first use.
    ///
    /// # Errors
    /// [`HomeError`] if the secret cannot be read or created, or other users can read it.
    pub fn secret(&self) -> Result<Secret, HomeError> {
        self.secret_in(SECRET)
    }

    /// Returns this machine's own identity, created at first use and named after the machine.
    ///
    /// # Errors
    /// [`HomeError`] if the private key cannot be read or created, or other users can read it.
    pub fn identity(&self) -> Result<Identity, HomeError> {
        let private = self.secret_in(IDENTITY)?;
        let system = rustix::system::uname();
        Ok(Identity::from_private(private, &system.nodename().to_string_lossy()))
    }

    /// Returns the token that was made on this machine, if there is one.
    ///
    /// # Errors
    /// [`HomeError`] if the token cannot be read, or other users can read it.
    pub fn known_token(&self) -> Result<Option<String>, HomeError> {
        Ok(self.known_secret_in(TOKEN)?.map(|token| token.to_hex()))
    }

    /// Generates a token, which replaces the previous one of this machine.
    ///
    /// # Errors
    /// [`HomeError::Io`].
    pub fn new_token(&self) -> Result<String, HomeError> {
        let failed = |source| HomeError::Io { path: self.join(TOKEN), source };
        let token = Secret::random().map_err(failed)?.to_hex();
        self.write(TOKEN, format!("{token}\n").as_bytes())?;
        Ok(token)
    }

    fn secret_in(&self, name: &str) -> Result<Secret, HomeError> {
        if let Some(secret) = self.known_secret_in(name)? {
            return Ok(secret);
        }
        let path = self.join(name);
        let failed = |source| HomeError::Io { path: path.clone(), source };
        let secret = Secret::random().map_err(failed)?;
        self.dir("")?;
        // If two processes create it at the same time, the second one uses the secret of the first.
        let draft = self.draft(name);
        write_private(&draft, format!("{}\n", secret.to_hex()).as_bytes()).map_err(failed)?;
        let linked = fs::hard_link(&draft, &path);
        fs::remove_file(&draft).map_err(failed)?;
        match linked {
            Ok(()) => Ok(secret),
            Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {
                self.known_secret_in(name)?.ok_or(HomeError::Malformed { path })
            }
            Err(err) => Err(failed(err)),
        }
    }

    /// Returns the cluster's secret, if there is one.
    ///
    /// # Errors
    /// [`HomeError`] if the secret cannot be read, or other users can read it.
    pub fn known_secret(&self) -> Result<Option<Secret>, HomeError> {
        self.known_secret_in(SECRET)
    }

    fn known_secret_in(&self, name: &str) -> Result<Option<Secret>, HomeError> {
        let path = self.join(name);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(HomeError::Io { path, source }),
        };
        let mode = fs::metadata(&path).map(|it| it.permissions().mode());
        if mode.is_ok_and(|mode| mode & 0o077 != 0) {
            return Err(HomeError::Exposed { path });
        }
        Secret::from_hex(&text).map(Some).ok_or(HomeError::Malformed { path })
    }

    /// Replaces the cluster's secret.
    ///
    /// # Errors
    /// [`HomeError::Io`].
    pub fn set_secret(&self, secret: &Secret) -> Result<(), HomeError> {
        self.write(SECRET, format!("{}\n", secret.to_hex()).as_bytes())
    }

    /// Checks that there is space for the files that a start writes here.
    ///
    /// # Errors
    /// [`HomeError::Io`], of the kind `StorageFull` or `QuotaExceeded` if space is lacking.
    pub fn check_space(&self) -> Result<(), HomeError> {
        let dir = self.dir("")?;
        let draft = self.draft("space");
        let written = write_private(&draft, &[0; SPACE_BYTES_MIN]);
        // Fails if nothing was written; then there is nothing to remove.
        fs::remove_file(&draft).ok();
        written.map_err(|source| HomeError::Io { path: dir, source })
    }

    /// Writes a file as a whole: readers see the old one or the new one.
    ///
    /// # Errors
    /// [`HomeError::Io`].
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), HomeError> {
        self.dir("")?;
        let path = self.join(name);
        let draft = self.draft(name);
        let written = write_private(&draft, bytes).and_then(|()| fs::rename(&draft, &path));
        if written.is_err() {
            // A partial draft would only take space.
            fs::remove_file(&draft).ok();
        }
        written.map_err(|source| HomeError::Io { path, source })
    }
}

impl Home {
    /// Returns a path that no other process or thread writes to.
    fn draft(&self, name: &str) -> PathBuf {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        self.join(&format!("{name}.{}-{number}", std::process::id()))
    }
}

/// Writes a file that only its user can read.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(FILE_MODE).open(path)?;
    file.set_permissions(fs::Permissions::from_mode(FILE_MODE))?;
    file.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home(name: &str) -> Home {
        let path = std::env::temp_dir().join(format!("jackalope-{name}-{}", std::process::id()));
        fs::remove_dir_all(&path).ok();
        Home::new(path)
    }

    #[test]
    fn a_token_stands_for_a_secret_unless_it_can_be_guessed() {
        let secret = |token| secret_of_token(token).unwrap();
        assert_eq!(secret("a token of some length"), secret(" a token of some length\n"));
        assert_ne!(secret("a token of some length"), secret("a token of some lengtH"));
        for token in ["", "short", "              x "] {
            assert!(matches!(secret_of_token(token), Err(HomeError::WeakToken)), "{token:?}");
        }
    }

    #[test]
    fn the_secret_is_generated_once_and_kept_from_others() {
        let home = home("secret");
        assert!(home.known_secret().unwrap().is_none());
        let secrets: Vec<Secret> = std::thread::scope(|scope| {
            let drawn: Vec<_> = (0..8).map(|_| scope.spawn(|| home.secret().unwrap())).collect();
            drawn.into_iter().map(|it| it.join().unwrap()).collect()
        });
        assert!(secrets.iter().all(|it| *it == secrets[0]));
        let path = home.join("secret");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let err = home.secret().unwrap_err().to_string();
        assert!(err.contains("can be read by others\nhint: chmod 600 "), "{err}");
        home.set_secret(&Secret([3; 32])).unwrap();
        assert_eq!(home.secret().unwrap(), Secret([3; 32]));
        write_private(&path, b"something else").unwrap();
        assert!(home.secret().unwrap_err().to_string().contains("64 hexadecimal digits"));
        fs::remove_dir_all(home.path()).unwrap();
    }

    #[test]
    fn a_machine_keeps_its_key_secret() {
        let home = home("identity");
        let keys = std::thread::scope(|scope| {
            let made: Vec<_> = (0..4).map(|_| scope.spawn(|| home.identity().unwrap())).collect();
            made.into_iter().map(|it| it.join().unwrap().public()).collect::<Vec<_>>()
        });
        assert!(keys.iter().all(|it| *it == keys[0]));
        let path = home.join("identity");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(home.identity(), Err(HomeError::Exposed { .. })));
        fs::remove_dir_all(home.path()).unwrap();
    }
}
