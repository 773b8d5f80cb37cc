//! Uninstalls jackalope from a machine.

use std::time::Duration;

use super::InstallError;
use super::remote::{self, NOT_OURS, NOTHING_THERE};
use crate::shell::Shell;

/// Time for stopping the agent and its programs, and for removing some gigabytes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The result of an uninstallation.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Removed {
    /// Jackalope was installed, and nothing of it is left.
    Gone {
        /// The folder that was removed.
        home: String,
    },
    /// Jackalope was not installed.
    WasAbsent,
}

/// Stops a machine's server and agent, and removes its services, jackalope's folder with the secret
/// and all versions, and the cache of hashes. Keeps models. Checks that nothing is left.
///
/// # Errors
/// [`InstallError`], also if anything is left.
pub fn uninstall(host: &str, shell: &dyn Shell) -> Result<Removed, InstallError> {
    let ran = remote::run(host, shell, &script(), b"", TIMEOUT)?;
    let home = ran.stdout.lines().last().unwrap_or_default().to_owned();
    match ran.status {
        0 => Ok(Removed::Gone { home }),
        NOTHING_THERE => Ok(Removed::WasAbsent),
        NOT_OURS => Err(InstallError::NotOurs { host: host.to_owned(), home }),
        _ => Err(InstallError::script(host.to_owned(), "removing jackalope", &ran)),
    }
}

/// Returns the script. The program itself removes its services, which would start it again, and stops
/// its server and its agent. If it cannot, the recorded process of the agent is ended if it still has
/// that name.
fn script() -> String {
    remote::preamble()
        + &format!(
            "c=\"${{XDG_CACHE_HOME:-$HOME/.cache}}/jackalope\"\n\
             if [ ! -e \"$h\" ] && [ ! -L \"$h\" ]; then rm -rf \"$c\"; exit {NOTHING_THERE}; fi\n\
             r=$(cd \"$h\" && pwd -P) || exit 1\n\
             case \"$r\" in /|\"$HOME\") echo \"$r\"; exit {NOT_OURS};; esac\n\
             [ -d \"$r/versions\" ] || [ -f \"$r/secret\" ] || [ -f \"$r/agent.json\" ] \
             || {{ echo \"$r\"; exit {NOT_OURS}; }}\n\
             p=\"$r/current/bin/jackalope\"\n\
             if [ -x \"$p\" ]; then\n\
             for s in server agent; do \"$p\" service remove $s </dev/null >&2; done\n\
             \"$p\" stop </dev/null >&2; \"$p\" agent stop </dev/null >&2\n\
             fi\n\
             pid=$(sed -n 's/.*\"pid\":\\([0-9][0-9]*\\).*/\\1/p' \"$r/agent.json\" 2>/dev/null)\n\
             ours() {{ [ -n \"$pid\" ] && ps -p \"$pid\" -o comm= 2>/dev/null | grep -q jackalope; }}\n\
             if ours; then kill \"$pid\"; i=0\n\
             while ours && [ $i -lt 30 ]; do sleep 0.1; i=$((i + 1)); done\n\
             if ours; then kill -9 \"$pid\"; fi\n\
             fi\n\
             rm -rf \"$r\" \"$h\" \"$c\"\n\
             for f in \"$r\" \"$h\" \"$c\"; do\n\
             if [ -e \"$f\" ] || [ -L \"$f\" ]; then echo \"$f is still there\" >&2; exit 1; fi\n\
             done\n\
             printf '%s\\n' \"$r\"\n"
        )
}
