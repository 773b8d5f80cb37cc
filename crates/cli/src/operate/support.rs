//! `jackalope support`: collects the information that is needed to find a fault in one directory.
//! It contains no prompts, no answers of models, no keys and no secrets; users can read it before
//! they send it.

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use jackalope_console::client::Server;
use jackalope_console::output;
use jackalope_deploy::log_file::serve_log;
use jackalope_deploy::server_record::ServeRecord;
use jackalope_fleet::home::Home;
use jackalope_protocol::counted;
use serde_json::json;

use super::logs::agent_log;
use crate::args::operate::SupportArgs;
use crate::client::recorded;
use crate::doctor;
use crate::environment::Environment;

/// Maximum size of the end of each log that is included.
const LOG_BYTES: u64 = 2 << 20;

/// Timeout of one request to the server.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Paths of the server that are queried, with the files for the answers.
const PATHS: [(&str, &str); 5] = [
    ("/health", "health.json"),
    ("/v1/models", "models.json"),
    ("/requests", "requests.json"),
    ("/errors", "errors.json"),
    ("/metrics/snapshot", "metrics.json"),
];

/// The directory that is being filled.
struct Folder {
    path: PathBuf,
    files: Vec<String>,
    /// Contents that could not be obtained, with the reasons.
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
    let shell = environment.shell(args.machines.ssh.as_deref());
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
        "{} has {}: review, then attach the folder to a bug report",
        folder.path.display(),
        counted(folder.files.len(), "file")
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn usual_name() -> PathBuf {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs());
    PathBuf::from(format!("jackalope-support-{seconds}"))
}

/// Converts a host's name to a part of a file name.
fn file_name(host: &str) -> String {
    host.chars()
        .map(|c| if c.is_ascii_alphanumeric() || ".-".contains(c) { c } else { '_' })
        .collect()
}

/// Adds the server's own reports.
fn of_server(home: &Home, folder: &mut Folder) -> anyhow::Result<()> {
    let Some(record) = ServeRecord::running(home) else {
        folder.missing.push("the server: none runs on this machine".to_owned());
        return Ok(());
    };
    let server: Server = recorded(&record);
    for (path, name) in PATHS {
        let said = server.ask(path, None, TIMEOUT);
        let said = said.and_then(|it| {
            // The health of an unhealthy server comes with an error status.
            let is_report = it.is_ok() || it.body.get("error").is_none();
            anyhow::ensure!(is_report, "{}", it.refusal());
            Ok(format!("{:#}\n", it.body).into_bytes())
        });
        folder.take(name, said)?;
    }
    Ok(())
}

fn end_of(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut file = fs::File::open(path).with_context(|| path.display().to_string())?;
    let from = file.metadata()?.len().saturating_sub(LOG_BYTES);
    file.seek(SeekFrom::Start(from))?;
    let mut end = Vec::new();
    file.take(LOG_BYTES).read_to_end(&mut end)?;
    Ok(end)
}
