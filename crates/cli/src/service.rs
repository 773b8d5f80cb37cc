//! The agent as a service of its user: started at login, started again when it ends. A launchd agent
//! on macOS, a systemd user unit on Linux.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use jackalope_cluster::home::Home;
use jackalope_cluster::nodes::own_program;
use jackalope_cluster::process::output_of;

use crate::output;

/// Settings of the agent service.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct AgentService {
    pub(crate) port: u16,
    pub(crate) announce: bool,
    /// The private addresses of this machine if empty.
    pub(crate) listen: Vec<IpAddr>,
}

const LABEL: &str = "jackalope.agent";
const COMMAND_TIMEOUT: Duration = Duration::from_secs(20);

/// A file, and the commands that make it work and undo it.
#[derive(Debug, Eq, PartialEq)]
struct Service {
    path: PathBuf,
    text: String,
    enable: Vec<Vec<String>>,
    disable: Vec<Vec<String>>,
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// macOS: launchd. `KeepAlive` starts it again, `ProcessType` keeps it from being throttled.
fn launchd(
    user_home: &Path,
    uid: u32,
    program: &Path,
    (home, args): (&Path, &[String]),
) -> Service {
    let path = user_home.join("Library/LaunchAgents").join(format!("{LABEL}.plist"));
    let escape = |path: &Path| {
        let text = path.to_string_lossy();
        text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
    };
    let (program, folder) = (escape(program), escape(home));
    let args: String = args.iter().map(|it| format!("\t\t<string>{it}</string>\n")).collect();
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <!DOCTYPE plist PUBLIC \"-//Apple//DTD PLIST 1.0//EN\" \
         \"http://www.apple.com/DTDs/PropertyList-1.0.dtd\">\n\
         <plist version=\"1.0\">\n<dict>\n\
         \t<key>Label</key>\n\t<string>{LABEL}</string>\n\
         \t<key>ProgramArguments</key>\n\t<array>\n\t\t<string>{program}</string>\n\
         {args}\t</array>\n\
         \t<key>EnvironmentVariables</key>\n\t<dict>\n\t\t<key>JACKALOPE_HOME</key>\n\
         \t\t<string>{folder}</string>\n\t</dict>\n\
         \t<key>RunAtLoad</key>\n\t<true/>\n\
         \t<key>KeepAlive</key>\n\t<true/>\n\
         \t<key>ProcessType</key>\n\t<string>Interactive</string>\n\
         \t<key>StandardErrorPath</key>\n\t<string>{folder}/logs/agent.log</string>\n\
         </dict>\n</plist>\n"
    );
    let file = path.to_string_lossy().into_owned();
    Service {
        enable: vec![vec![
            "launchctl".to_owned(),
            "bootstrap".to_owned(),
            format!("gui/{uid}"),
            file,
        ]],
        disable: vec![words(&format!("launchctl bootout gui/{uid}/{LABEL}"))],
        path,
        text,
    }
}

/// Linux: a user unit.
fn systemd(user_home: &Path, program: &Path, (home, args): (&Path, &[String])) -> Service {
    let quoted = |path: &Path| {
        let text = path.to_string_lossy();
        format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%"))
    };
    let (program, folder) =
        (quoted(program), quoted(&PathBuf::from(format!("JACKALOPE_HOME={}", home.display()))));
    let args = args.join(" ");
    let text = format!(
        "[Unit]\nDescription=Jackalope's agent\nAfter=network-online.target\n\n\
         [Service]\nExecStart={program} {args}\nEnvironment={folder}\n\
         Restart=always\nRestartSec=1\n\n\
         [Install]\nWantedBy=default.target\n"
    );
    let unit = format!("{LABEL}.service");
    Service {
        path: user_home.join(".config/systemd/user").join(&unit),
        text,
        enable: vec![
            words("systemctl --user daemon-reload"),
            words(&format!("systemctl --user enable --now {unit}")),
        ],
        disable: vec![words(&format!("systemctl --user disable --now {unit}"))],
    }
}

/// What the program is told.
fn agent_args(how: &AgentService) -> Vec<String> {
    let announce = if how.announce { " --announce" } else { "" };
    let mut args = words(&format!("agent --port {}{announce} --verbose", how.port));
    args.extend(how.listen.iter().flat_map(|ip| ["--listen".to_owned(), ip.to_string()]));
    args
}

fn here(how: &AgentService, home: &Home) -> anyhow::Result<Service> {
    let installed = home.join("current/bin/jackalope");
    let program = if installed.is_file() { installed } else { own_program()? };
    let user_home = std::env::home_dir().context("this user has no home folder")?;
    let uid = rustix::process::getuid().as_raw();
    let args = agent_args(how);
    Ok(match cfg!(target_os = "macos") {
        true => launchd(&user_home, uid, &program, (home.path(), &args)),
        false => systemd(&user_home, &program, (home.path(), &args)),
    })
}

/// On this port, and answering those who look for machines or not.
pub(crate) fn install(how: &AgentService, dry_run: bool, home: &Home) -> anyhow::Result<()> {
    let service = here(how, home)?;
    if dry_run {
        let commands: Vec<String> = service.enable.iter().map(|it| it.join(" ")).collect();
        let path = service.path.display();
        return Ok(output::line(format_args!(
            "{path}:\n{}\n{}",
            service.text,
            commands.join("\n")
        ))?);
    }
    // One of our own making would hold the port.
    home.secret()?;
    home.dir("logs")?;
    let folder = service.path.parent().context("a service's file lies in a folder")?;
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let is_again = service.path.is_file();
    std::fs::write(&service.path, &service.text)
        .with_context(|| format!("writing {}", service.path.display()))?;
    if is_again {
        // It may run with other arguments; one that cannot be ended fails below.
        run_all(&service.disable).ok();
    }
    if let Err(err) = run_all(&service.enable) {
        std::fs::remove_file(&service.path).ok();
        return Err(err.context("the service was not installed"));
    }
    Ok(output::line(format_args!("installed: {}", service.path.display()))?)
}

/// Whether the agent is a service here.
pub(crate) fn is_installed(home: &Home) -> anyhow::Result<bool> {
    Ok(here(&AgentService::default(), home)?.path.is_file())
}

pub(crate) fn uninstall(home: &Home) -> anyhow::Result<()> {
    let service = here(&AgentService::default(), home)?;
    if !service.path.is_file() {
        return Ok(output::line("no service is installed")?);
    }
    let ended = run_all(&service.disable);
    std::fs::remove_file(&service.path)
        .with_context(|| format!("removing {}", service.path.display()))?;
    ended?;
    Ok(output::line(format_args!("removed: {}", service.path.display()))?)
}

fn run_all(commands: &[Vec<String>]) -> anyhow::Result<()> {
    for command in commands {
        let Some((program, args)) = command.split_first() else { bail!("an empty command") };
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        output_of(program, &args, COMMAND_TIMEOUT)
            .with_context(|| format!("running `{}`", command.join(" ")))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launchd_agent_is_well_formed_whatever_its_paths_hold() {
        let args = agent_args(&AgentService {
            port: 18081,
            announce: true,
            listen: vec!["10.0.0.1".parse().unwrap()],
        });
        let places = (Path::new("/Users/a & b/.jackalope"), &args[..]);
        let service =
            launchd(Path::new("/Users/a & b"), 501, Path::new("/x/<y>/jackalope"), places);
        assert!(service.path.ends_with("Library/LaunchAgents/jackalope.agent.plist"));
        assert!(service.text.contains("<string>/x/&lt;y&gt;/jackalope</string>"));
        assert!(service.text.contains("<string>--announce</string>"));
        assert!(
            service.text.contains("<string>/Users/a &amp; b/.jackalope/logs/agent.log</string>")
        );
        assert_eq!(service.enable[0][..3], ["launchctl", "bootstrap", "gui/501"]);
        assert_eq!(service.disable[0].join(" "), "launchctl bootout gui/501/jackalope.agent");
        // Every element that opens closes.
        for tag in ["dict", "array", "plist", "key", "string"] {
            let count = |it: &str| service.text.matches(it).count();
            let opened = count(&format!("<{tag}>")) + count(&format!("<{tag} "));
            assert_eq!(opened, count(&format!("</{tag}>")), "{tag}");
        }
    }

    #[test]
    fn a_systemd_unit_quotes_its_paths() {
        let args = agent_args(&AgentService { port: 9, ..AgentService::default() });
        let places = (Path::new("/home/a b/.jackalope"), &args[..]);
        let service = systemd(Path::new("/home/a b"), Path::new("/opt/100%/jackalope"), places);
        assert!(
            service.text.contains("ExecStart=\"/opt/100%%/jackalope\" agent --port 9 --verbose")
        );
        assert!(service.text.contains("Environment=\"JACKALOPE_HOME=/home/a b/.jackalope\""));
        assert!(service.path.ends_with(".config/systemd/user/jackalope.agent.service"));
    }
}
