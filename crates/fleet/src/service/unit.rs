//! Definitions for the system's service manager: a systemd unit, or a launchd property list.

use std::path::{Path, PathBuf};

/// Time in seconds between the request to stop a server and its kill. It is longer than a server
/// needs to end its streams and its ranks.
pub const STOP_SECONDS: u64 = 30;

/// Exit status for a command line that cannot be parsed: another start would fail in the same way.
const USAGE_STATUS: u8 = 2;

/// Program that can run as a service.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ServiceKind {
    /// The server: `jackalope serve`.
    Server,
    /// The agent of this machine: `jackalope agent`.
    Agent,
}

impl ServiceKind {
    /// All kinds.
    pub const ALL: [ServiceKind; 2] = [ServiceKind::Server, ServiceKind::Agent];

    /// Returns the name of the kind for messages.
    pub fn name(self) -> &'static str {
        match self {
            ServiceKind::Server => "server",
            ServiceKind::Agent => "agent",
        }
    }

    /// Returns the name of the service for its manager.
    pub fn label(self) -> String {
        format!("jackalope.{}", self.name())
    }

    /// Returns the subcommand of `jackalope` that runs this kind of service.
    pub fn subcommand(self) -> &'static str {
        match self {
            ServiceKind::Server => "serve",
            ServiceKind::Agent => "agent",
        }
    }

    fn log_name(self) -> &'static str {
        match self {
            ServiceKind::Server => "serve.log",
            ServiceKind::Agent => "agent.log",
        }
    }

    /// Returns the seconds between the end of the service and its next start. A server waits
    /// longer: if memory or a machine is lacking, an immediate start would fail again.
    fn restart_seconds(self) -> u64 {
        match self {
            ServiceKind::Server => 5,
            ServiceKind::Agent => 1,
        }
    }

    /// Whether the service is not started again after a clean exit. An agent also exits cleanly to
    /// be replaced by a new version.
    fn ends_for_good(self) -> bool {
        self == ServiceKind::Server
    }
}

/// Whose service manager runs a service: the user's or the system's.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Scope {
    /// The user's service manager.
    User,
    /// The system's service manager.
    System,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Scope; 2] = [Scope::User, Scope::System];

    /// Returns the name of the scope for messages.
    pub fn name(self) -> &'static str {
        match self {
            Scope::User => "user",
            Scope::System => "system",
        }
    }
}

/// The service manager of a platform.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Manager {
    /// systemd, on Linux.
    Systemd,
    /// launchd, on macOS.
    Launchd,
}

impl Manager {
    /// Returns the service manager of this machine.
    pub fn here() -> Manager {
        if cfg!(target_os = "macos") { Manager::Launchd } else { Manager::Systemd }
    }
}

/// A service of any manager and scope.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Service {
    /// The service manager that runs the service.
    pub manager: Manager,
    /// The program that the service runs.
    pub kind: ServiceKind,
    /// Whether it is a service of the user or of the system.
    pub scope: Scope,
    /// User id of the user who installs it.
    pub uid: u32,
}

/// Program that a service runs, with its arguments and environment.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ServiceJob {
    /// Path of the program.
    pub program: PathBuf,
    /// Arguments after the subcommand.
    pub args: Vec<String>,
    /// Value of `JACKALOPE_HOME`.
    pub home: PathBuf,
    /// Working directory; a server reads the `.env` there.
    pub dir: PathBuf,
    /// Account of a system service.
    pub account: Option<String>,
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

impl Service {
    /// Returns the path of the service's file, for a user with this home directory.
    pub fn path(self, user_home: &Path) -> PathBuf {
        let label = self.kind.label();
        match (self.manager, self.scope) {
            (Manager::Systemd, Scope::User) => {
                user_home.join(".config/systemd/user").join(format!("{label}.service"))
            }
            (Manager::Systemd, Scope::System) => {
                PathBuf::from(format!("/etc/systemd/system/{label}.service"))
            }
            (Manager::Launchd, Scope::User) => {
                user_home.join("Library/LaunchAgents").join(format!("{label}.plist"))
            }
            (Manager::Launchd, Scope::System) => {
                PathBuf::from(format!("/Library/LaunchDaemons/{label}.plist"))
            }
        }
    }

    /// Returns the content of the service's file.
    pub fn text(self, job: &ServiceJob) -> String {
        match self.manager {
            Manager::Systemd => self.systemd(job),
            Manager::Launchd => self.launchd(job),
        }
    }

    fn systemctl(self) -> &'static str {
        match self.scope {
            Scope::User => "systemctl --user",
            Scope::System => "systemctl",
        }
    }

    /// Returns the launchd domain.
    fn domain(self) -> String {
        match self.scope {
            Scope::User => format!("gui/{}", self.uid),
            Scope::System => "system".to_owned(),
        }
    }

    /// Returns the commands that start the service now and whenever the machine starts.
    pub fn enable(self, path: &Path) -> Vec<Vec<String>> {
        let (systemctl, label) = (self.systemctl(), self.kind.label());
        match self.manager {
            Manager::Systemd => vec![
                words(&format!("{systemctl} daemon-reload")),
                words(&format!("{systemctl} enable --now {label}.service")),
            ],
            Manager::Launchd => {
                let mut command = words(&format!("launchctl bootstrap {}", self.domain()));
                command.push(path.to_string_lossy().into_owned());
                vec![command]
            }
        }
    }

    /// Returns the commands that stop the service permanently.
    pub fn disable(self) -> Vec<Vec<String>> {
        let label = self.kind.label();
        vec![match self.manager {
            Manager::Systemd => {
                words(&format!("{} disable --now {label}.service", self.systemctl()))
            }
            Manager::Launchd => words(&format!("launchctl bootout {}/{label}", self.domain())),
        }]
    }

    /// Returns the command that prints the service's state and process.
    pub fn show(self) -> Vec<String> {
        let label = self.kind.label();
        words(&match self.manager {
            Manager::Systemd => {
                format!("{} show --property=ActiveState,MainPID {label}.service", self.systemctl())
            }
            Manager::Launchd => format!("launchctl print {}/{label}", self.domain()),
        })
    }

    /// Returns the command for people that restarts the service.
    pub fn restart(self) -> String {
        let label = self.kind.label();
        match self.manager {
            Manager::Systemd => format!("{} restart {label}.service", self.systemctl()),
            Manager::Launchd => format!("launchctl kickstart -k {}/{label}", self.domain()),
        }
    }

    /// Returns the command for people that shows the service's log, if that is not in a file.
    pub fn journal(self) -> Option<String> {
        let user = if self.scope == Scope::User { "--user " } else { "" };
        let is_systemd = self.manager == Manager::Systemd;
        is_systemd.then(|| format!("journalctl {user}--unit {}.service", self.kind.label()))
    }

    /// Returns the systemd unit. With `KillMode=mixed` only the server is asked to end; it ends its
    /// ranks after its streams.
    fn systemd(self, job: &ServiceJob) -> String {
        let command: Vec<String> = job.args.iter().map(|arg| quoted_argument(arg)).collect();
        let (after, wanted_by) = match self.scope {
            Scope::User => ("", "default.target"),
            Scope::System => {
                ("Wants=network-online.target\nAfter=network-online.target\n", "multi-user.target")
            }
        };
        let account = job.account.iter().map(|it| format!("User={it}\n")).collect::<String>();
        let restart = if self.kind.ends_for_good() { "on-failure" } else { "always" };
        format!(
            "[Unit]\nDescription=Jackalope {name}\n{after}StartLimitIntervalSec=0\n\n\
             [Service]\nType=exec\n{account}\
             ExecStart={program} {subcommand} --verbose {args}\n\
             Environment={home}\nWorkingDirectory={dir}\n\
             Restart={restart}\nRestartSec={pause}\n\
             RestartPreventExitStatus={USAGE_STATUS}\n\
             KillMode=mixed\nTimeoutStopSec={STOP_SECONDS}\n\n\
             [Install]\nWantedBy={wanted_by}\n",
            name = self.kind.name(),
            pause = self.kind.restart_seconds(),
            program = quoted(&job.program.to_string_lossy()),
            subcommand = self.kind.subcommand(),
            args = command.join(" "),
            home = quoted(&format!("JACKALOPE_HOME={}", job.home.display())),
            // A path without quotes, in which only `%` is special.
            dir = job.dir.to_string_lossy().replace('%', "%%"),
        )
        .replace(" \n", "\n")
    }

    /// Returns the launchd property list. `ProcessType` prevents throttling, and `--detached` keeps
    /// the log file short.
    fn launchd(self, job: &ServiceJob) -> String {
        let subcommand = self.kind.subcommand();
        let program = job.program.to_string_lossy();
        let fixed = [&*program, subcommand, "--verbose", "--detached"];
        let args = fixed.into_iter().chain(job.args.iter().map(String::as_str));
        let args: String =
            args.map(|it| format!("\t\t<string>{}</string>\n", escaped(it))).collect();
        let keep_alive = if self.kind.ends_for_good() {
            "<dict>\n\t\t<key>SuccessfulExit</key>\n\t\t<false/>\n\t</dict>"
        } else {
            "<true/>"
        };
        let text = |key: &str, value: &str| {
            format!("\t<key>{key}</key>\n\t<string>{}</string>\n", escaped(value))
        };
        let account = job.account.iter().map(|it| text("UserName", it)).collect::<String>();
        let log = job.home.join("logs").join(self.kind.log_name());
        let log = log.to_string_lossy();
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
             <!DOCTYPE plist PUBLIC \"-//Apple//DTD PLIST 1.0//EN\" \
             \"http://www.apple.com/DTDs/PropertyList-1.0.dtd\">\n\
             <plist version=\"1.0\">\n<dict>\n{label}{account}\
             \t<key>ProgramArguments</key>\n\t<array>\n{args}\t</array>\n\
             \t<key>EnvironmentVariables</key>\n\t<dict>\n\t\t<key>JACKALOPE_HOME</key>\n\
             \t\t<string>{home}</string>\n\t</dict>\n{dir}\
             \t<key>RunAtLoad</key>\n\t<true/>\n\
             \t<key>KeepAlive</key>\n\t{keep_alive}\n\
             \t<key>ThrottleInterval</key>\n\t<integer>{pause}</integer>\n\
             \t<key>ExitTimeOut</key>\n\t<integer>{STOP_SECONDS}</integer>\n\
             {process_type}{stderr}</dict>\n</plist>\n",
            label = text("Label", &self.kind.label()),
            pause = self.kind.restart_seconds(),
            home = escaped(&job.home.to_string_lossy()),
            dir = text("WorkingDirectory", &job.dir.to_string_lossy()),
            process_type = text("ProcessType", "Interactive"),
            stderr = text("StandardOutPath", &log) + &text("StandardErrorPath", &log),
        )
    }
}

/// Escapes the text of an XML element.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Quotes a word of a unit file.
fn quoted(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%");
    format!("\"{text}\"")
}

/// Quotes a word of `ExecStart=`, where `$` is special too; plain words stay unquoted.
fn quoted_argument(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=@+".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    quoted(text).replace('$', "$$")
}

#[cfg(test)]
mod tests;
