//! `jackalope support`: what somebody else needs to find a fault, in one folder. Nothing in it was asked
//! of a model or said by one, and no key and no secret; whoever sends it can read it before.

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use jackalope_cluster::home::Home;
use serde_json::{Value, json};

use super::Server;
use super::logs::{agent_log, serve_log};
use super::record::ServeRecord;
use crate::args::operate::SupportArgs;
use crate::environment::Environment;
use crate::{doctor, output};

/// Of each log, its end.
const LOG_BYTES: u64 = 2 << 20;

/// For one question to the server.
const TIMEOUT: Duration = Duration::from_secs(20);

/// What the server is asked for.
const PATHS: [(&str, &str); 5] = [
    ("/health", "health.json"),
    ("/v1/models", "models.json"),
    ("/requests", "requests.json"),
    ("/errors", "errors.json"),
    ("/metrics/snapshot", "metrics.json"),
];

/// The folder as it grows.
struct Folder {
    path: PathBuf,
    files: Vec<String>,
    /// What could not be had, and why.
    missing: Vec<String>,
}

impl Folder {
    fn write(&mut self, name: &str, content: &[u8]) -> anyhow::Result<()> {
        let path = self.path.join(name);
        fs::write(&path, content).with_context(|| format!("writing {}", path.display()))?;
        self.files.push(name.to_owned());
        Ok(())
    }

    fn take(&mut self, name: &str, content: anyhow::Result<Vec<u8>>) -> anyhow::Result<()> {
        match content {
            Ok(content) => self.write(name, &content),
            Err(err) => {
                self.missing.push(format!("{name}: {}", crate::report::text(&err)));
                Ok(())
            }
        }
    }
}

pub(crate) fn support(args: &SupportArgs, environment: &Environment) -> anyhow::Result<ExitCode> {
    let home = environment.home()?;
    let path = args.out.clone().unwrap_or_else(usual_name);
    fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
    let mut folder = Folder { path, files: Vec::new(), missing: Vec::new() };
    let looked = doctor::look(&args.machines, environment);
    let looked = looked.map(|seen| format!("{:#}\n", seen.object()).into_bytes());
    folder.take("doctor.json", looked)?;
    of_server(&home, &mut folder)?;
    folder.take("serve.log", end_of(&serve_log(&home)))?;
    let (names, _) = doctor::machines(&args.machines)?;
    let shell = crate::machines::shell(args.machines.ssh.as_deref(), environment);
    for name in &names {
        let log = agent_log(&shell, name).map(String::into_bytes);
        folder.take(&format!("agent-{}.log", file_name(name)), log)?;
    }
    let missing = folder.missing.join("\n") + "\n";
    folder.write("missing.txt", missing.as_bytes())?;
    if args.machines.json {
        let Folder { path, files, missing } = folder;
        output::line(json!({"path": path, "files": files, "missing": missing}))?;
        return Ok(ExitCode::SUCCESS);
    }
    for missing in &folder.missing {
        output::note(&format!("not in it: {missing}"));
    }
    output::line(format_args!(
        "{} has {} files: look through them, then attach the folder to a report",
        folder.path.display(),
        folder.files.len()
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn usual_name() -> PathBuf {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs());
    PathBuf::from(format!("jackalope-support-{seconds}"))
}

/// A host's name, as part of a file's.
fn file_name(host: &str) -> String {
    host.chars()
        .map(|c| if c.is_ascii_alphanumeric() || ".-".contains(c) { c } else { '_' })
        .collect()
}

/// What the server of this machine says of itself.
fn of_server(home: &Home, folder: &mut Folder) -> anyhow::Result<()> {
    let Some(record) = ServeRecord::running(home) else {
        folder.missing.push("the server: none runs on this machine".to_owned());
        return Ok(());
    };
    let server: Server = record.server();
    for (path, name) in PATHS {
        let said = server.ask(path, None, TIMEOUT);
        let said = said.and_then(|it| {
            // Health is told with an error's status if it is bad.
            let is_told = it.is_ok() || it.body.get("error").is_none();
            anyhow::ensure!(is_told, "{}", it.refusal());
            Ok(pretty(&it.body))
        });
        folder.take(name, said)?;
    }
    Ok(())
}

fn pretty(value: &Value) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}

fn end_of(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut file = fs::File::open(path).with_context(|| path.display().to_string())?;
    let from = file.metadata()?.len().saturating_sub(LOG_BYTES);
    file.seek(SeekFrom::Start(from))?;
    let mut end = Vec::new();
    file.take(LOG_BYTES).read_to_end(&mut end)?;
    Ok(end)
}
