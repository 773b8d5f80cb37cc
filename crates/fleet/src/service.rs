//! Runs the server or the agent as a service that starts with the machine or at login and restarts
//! when it fails: a systemd unit on Linux, a launchd property list on macOS.

mod unit;

use std::io;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

use crate::home::{Home, HomeError};
use crate::process::output_of;

pub use unit::{Manager, STOP_SECONDS, Scope, Service, ServiceJob, ServiceKind};

/// Timeout for commands of the service manager, which waits for a program that ends.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(STOP_SECONDS + 15);

/// Timeout for the service manager's report on a service.
const SHOW_TIMEOUT: Duration = Duration::from_secs(5);

/// Reason why a service cannot be installed, removed or found.
#[derive(Debug, Error)]
pub enum ServiceError {
    /// The user has no home folder.
    #[error("this user has no home folder\nhint: set HOME")]
    NoHome,
    /// No account can have this name.
    #[error("{account:?} is no name of an account\nhint: `--user` takes the name of an account")]
    AccountName {
        /// The name.
        account: String,
    },
    /// There is no such account.
    #[error("there is no account {account}\nhint: `--user` names one that exists")]
    NoAccount {
        /// Name of the account.
        account: String,
    },
    /// A file or folder cannot be read or changed.
    #[error("{doing} {}", .path.display())]
    Io {
        /// What was tried: `writing`, `making`, …
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A command of the service manager failed.
    #[error("running `{command}`")]
    Command {
        /// The command.
        command: String,
        /// Why the command failed.
        source: io::Error,
    },
    /// The service manager did not start the service; its file was removed again.
    #[error("the service was not installed")]
    NotInstalled {
        /// Why the service was not started.
        source: Box<ServiceError>,
    },
    /// Jackalope's directory cannot be used.
    #[error(transparent)]
    Home(#[from] HomeError),
}

impl ServiceError {
    fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ServiceError {
        move |source| ServiceError::Io { doing, path: path.to_owned(), source }
    }

    fn command(command: &str) -> impl FnOnce(io::Error) -> ServiceError {
        move |source| ServiceError::Command { command: command.to_owned(), source }
    }
}

/// Returns this user's home directory.
///
/// # Errors
/// If the directory is unknown.
pub fn own_home() -> Result<PathBuf, ServiceError> {
    std::env::home_dir().ok_or(ServiceError::NoHome)
}

/// Returns the home directory of an account, as the shell knows it.
///
/// # Errors
/// If there is no such account.
pub fn home_of(account: &str) -> Result<PathBuf, ServiceError> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if account.is_empty() || !account.chars().all(is_name) || account.starts_with('-') {
        return Err(ServiceError::AccountName { account: account.to_owned() });
    }
    let script = format!("echo ~{account}");
    let args = ["-c", &script];
    let home = output_of("sh", &args, SHOW_TIMEOUT).map_err(ServiceError::command("sh"))?;
    let home = PathBuf::from(home.trim());
    if home.is_absolute() {
        Ok(home)
    } else {
        Err(ServiceError::NoAccount { account: account.to_owned() })
    }
}

impl Service {
    /// Returns this machine's service of a kind and scope, installed or not.
    pub fn here(kind: ServiceKind, scope: Scope) -> Service {
        let uid = rustix::process::getuid().as_raw();
        Service { manager: Manager::here(), kind, scope, uid }
    }

    /// Writes the service's file to `path` and starts the service; one that is installed already is
    /// replaced.
    ///
    /// # Errors
    /// If the file cannot be written, or the service manager does not start the service.
    pub fn install(self, path: &Path, job: &ServiceJob) -> Result<(), ServiceError> {
        prepare(job)?;
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(ServiceError::io("making", folder))?;
        }
        let is_again = path.is_file();
        std::fs::write(path, self.text(job)).map_err(ServiceError::io("writing", path))?;
        if is_again {
            // The service may run with other arguments; if it cannot be ended, the next step fails.
            run_all(&self.disable()).ok();
        }
        run_all(&self.enable(path)).map_err(|err| {
            std::fs::remove_file(path).ok();
            ServiceError::NotInstalled { source: Box::new(err) }
        })
    }

    /// Ensures that the service starts with the machine. Without lingering, systemd starts a user's
    /// services when the user logs in. Returns false if lingering could not be enabled.
    pub fn starts_at_boot(self) -> bool {
        self.manager != Manager::Systemd
            || self.scope != Scope::User
            || output_of("loginctl", &["enable-linger"], SHOW_TIMEOUT).is_ok()
    }

    /// Returns whether the service is installed.
    fn is_installed(self) -> Result<bool, ServiceError> {
        Ok(self.path(&own_home()?).is_file())
    }

    /// Ends the service and removes its file, whose path is returned; `None` if the service was not
    /// installed.
    ///
    /// # Errors
    /// If the file cannot be removed, or the service manager does not end the service.
    pub fn remove(self) -> Result<Option<PathBuf>, ServiceError> {
        let path = self.path(&own_home()?);
        if !path.is_file() {
            return Ok(None);
        }
        let ended = run_all(&self.disable());
        std::fs::remove_file(&path).map_err(ServiceError::io("removing", &path))?;
        ended?;
        Ok(Some(path))
    }

    /// Returns the service's state, as the service manager reports it.
    pub fn state(self) -> State {
        let command = self.show();
        let args: Vec<&str> = command[1..].iter().map(String::as_str).collect();
        match output_of(&command[0], &args, SHOW_TIMEOUT) {
            Ok(text) => parse_state(self.manager, &text),
            Err(_) => State { is_active: false, word: "not loaded".to_owned(), pid: None },
        }
    }
}

/// Creates the directories and the secret that the service needs before it starts.
fn prepare(job: &ServiceJob) -> Result<(), ServiceError> {
    let home = Home::new(&job.home);
    let Some(account) = &job.account else {
        // The agent would not know a secret that a server creates later.
        home.secret()?;
        home.dir("logs")?;
        return Ok(());
    };
    let account_home = home_of(account)?;
    let owner = std::fs::metadata(&account_home);
    let owner = owner.map_err(ServiceError::io("reading", &account_home))?;
    for path in [home.dir("")?, home.dir("logs")?] {
        chown(&path, Some(owner.uid()), Some(owner.gid()))
            .map_err(ServiceError::io("chown", &path))?;
    }
    Ok(())
}

fn run_all(commands: &[Vec<String>]) -> Result<(), ServiceError> {
    for command in commands {
        let args: Vec<&str> = command[1..].iter().map(String::as_str).collect();
        output_of(&command[0], &args, COMMAND_TIMEOUT)
            .map_err(ServiceError::command(&command.join(" ")))?;
    }
    Ok(())
}

/// Returns whether a program of this kind is installed as a service on this machine, of the user or
/// of the system.
///
/// # Errors
/// If the user has no home folder.
pub fn is_installed(kind: ServiceKind) -> Result<bool, ServiceError> {
    Ok(Service::here(kind, Scope::User).is_installed()?
        || Service::here(kind, Scope::System).is_installed()?)
}

/// Returns the command that restarts the service whose process has this `pid`; `None` if it is not
/// the process of a service.
pub fn restart_command(kind: ServiceKind, pid: u32) -> Option<String> {
    let services = Scope::ALL.into_iter().map(|scope| Service::here(kind, scope));
    let mut installed = services.filter(|it| it.is_installed().unwrap_or(false));
    installed.find(|it| it.state().pid == Some(pid)).map(Service::restart)
}

/// State of a service.
#[derive(Debug)]
pub struct State {
    /// Whether the service runs.
    pub is_active: bool,
    /// State of the service, as its manager names it.
    pub word: String,
    /// Process id of the service, if it runs.
    pub pid: Option<u32>,
}

/// Parses the output of systemd or launchd.
fn parse_state(manager: Manager, text: &str) -> State {
    let value = |name: &str, between: &str| {
        let lines = text.lines().map(str::trim);
        lines.filter_map(|it| it.strip_prefix(name)?.strip_prefix(between)).next()
    };
    let (word, pid) = match manager {
        Manager::Systemd => (value("ActiveState", "="), value("MainPID", "=")),
        Manager::Launchd => (value("state", " = "), value("pid", " = ")),
    };
    let word = word.unwrap_or("unknown").to_owned();
    let pid = pid.and_then(|it| it.parse().ok()).filter(|pid| *pid != 0);
    State { is_active: ["active", "running"].contains(&&*word), word, pid }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_read_as_each_manager_prints_it() {
        let systemd = parse_state(Manager::Systemd, "ActiveState=active\nMainPID=42\n");
        assert!(systemd.is_active && systemd.pid == Some(42), "{systemd:?}");
        let ended = parse_state(Manager::Systemd, "MainPID=0\nActiveState=failed\n");
        assert!(!ended.is_active && ended.pid.is_none() && ended.word == "failed", "{ended:?}");
        let launchd = "gui/501/jackalope.server = {\n\tstate = running\n\n\tpid = 7\n}\n";
        let launchd = parse_state(Manager::Launchd, launchd);
        assert!(launchd.is_active && launchd.pid == Some(7), "{launchd:?}");
    }
}
