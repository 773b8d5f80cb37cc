//! `jackalope doctor`: examines machines and prints the commands that fix what it finds. Also
//! resolves how commands name machines.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use anyhow::{Context, bail, ensure};
use jackalope_console::output;
use jackalope_fleet::hostfile::Hostfile;
use jackalope_inspect::doctor::{self, Ask, Entry, Examination, ExaminedNode, Finding, Severity};
use jackalope_protocol::counted;
use serde_json::{Value, json};

use crate::args::{DoctorArgs, MachinesArgs};
use crate::client::broken_links;
use crate::environment::Environment;

/// Maximum number of bytes of a log that are examined: its last ones.
const LOG_BYTES_MAX: usize = 256 << 20;

/// Number of bytes read at once.
const LOG_PIECE_BYTES: usize = 1 << 20;

pub(crate) fn run(args: &DoctorArgs, environment: &Environment) -> anyhow::Result<()> {
    if args.catalogue {
        output::piece(doctor::catalogue::markdown())?;
        return Ok(());
    }
    if let Some(path) = &args.log {
        return explain(path, args.machines.json);
    }
    let model = args.model.as_deref().map(absolute).transpose()?;
    let looked = look_for(&args.machines, model.as_deref(), args.hash, environment)?;
    if args.machines.json {
        output::line(looked.object())?;
    } else {
        for line in report(&looked.names, &looked.findings) {
            output::line(line)?;
        }
    }
    let num_errors = count(&looked.findings, Severity::Error);
    ensure!(num_errors == 0, "the doctor found {}", counted(num_errors, "error"));
    Ok(())
}

/// Result of an examination.
pub(crate) struct DoctorReport {
    names: Vec<String>,
    nodes: Vec<ExaminedNode>,
    findings: Vec<Finding>,
}

impl DoctorReport {
    /// Returns the result as JSON.
    pub(crate) fn object(&self) -> Value {
        object(&self.nodes, &self.findings)
    }
}

/// Examines machines without a model.
pub(crate) fn look(args: &MachinesArgs, environment: &Environment) -> anyhow::Result<DoctorReport> {
    look_for(args, None, false, environment)
}

fn look_for(
    args: &MachinesArgs,
    model: Option<&str>,
    hashes: bool,
    environment: &Environment,
) -> anyhow::Result<DoctorReport> {
    let (names, hostfile) = machines(args)?;
    let shell = environment.shell(args.ssh.as_deref());
    let hostfile = hostfile.as_ref();
    let (nodes, here) = Ask { shell: &shell, hostfile, model, hashes }.look(&names);
    let broken_links = broken_links(environment);
    let findings = doctor::examine(&Examination {
        hostfile,
        nodes: &nodes,
        model,
        here: &here,
        broken_links: &broken_links,
    });
    Ok(DoctorReport { names, nodes, findings })
}

/// Returns the absolute path of a directory, so that it is the same on every machine, wherever a
/// shell starts there.
fn absolute(folder: &str) -> anyhow::Result<String> {
    let path = std::path::absolute(folder).with_context(|| format!("the folder {folder}"))?;
    Ok(path.to_string_lossy().into_owned())
}

/// Returns the machines that a command names, and the hostfile if there is one.
pub(crate) fn machines(args: &MachinesArgs) -> anyhow::Result<(Vec<String>, Option<Hostfile>)> {
    if let Some(path) = &args.hosts {
        let hostfile = jackalope_deploy::machines::hostfile(path)?;
        return Ok((doctor::names(&hostfile), Some(hostfile)));
    }
    let mut names = args.host.clone();
    names.dedup();
    if names.is_empty() {
        names.push("127.0.0.1".to_owned());
    }
    Ok((names, None))
}

/// Formats the findings for people: for each machine first what is right, one line each, then the
/// problems.
fn report(names: &[String], findings: &[Finding]) -> Vec<String> {
    let mut lines = Vec::new();
    for name in names {
        lines.push(name.clone());
        let mut own: Vec<&Finding> =
            findings.iter().filter(|it| it.node.as_ref() == Some(name)).collect();
        own.sort_by_key(|it| it.severity);
        lines.extend(own.into_iter().flat_map(paragraph));
        lines.push(String::new());
    }
    let mut all = findings.iter().filter(|it| it.node.is_none()).peekable();
    if all.peek().is_some() {
        lines.push("all machines".to_owned());
        lines.extend(all.flat_map(paragraph));
        lines.push(String::new());
    }
    lines.extend(what_to_type(findings));
    let [errors, warnings] = [Severity::Error, Severity::Warn].map(|it| count(findings, it));
    lines.push(match (errors, warnings) {
        (0, 0) => "no problems found".to_owned(),
        _ => format!("{}, {}", counted(errors, "error"), counted(warnings, "warning")),
    });
    lines
}

/// Returns the end of the report: the commands to type, for the worst problems first, none twice.
fn what_to_type(findings: &[Finding]) -> Vec<String> {
    let mut problems: Vec<&Finding> =
        findings.iter().filter(|it| Severity::Note < it.severity).collect();
    problems.sort_by_key(|it| std::cmp::Reverse(it.severity));
    let mut lines = Vec::new();
    let mut said: Vec<&String> = Vec::new();
    for finding in problems {
        let new: Vec<&String> = finding.type_this.iter().filter(|it| !said.contains(it)).collect();
        if new.is_empty() {
            continue;
        }
        let node = finding.node.as_ref().map(|it| format!(" ({it})")).unwrap_or_default();
        lines.push(format!("  {}{node}", finding.code));
        lines.extend(new.iter().map(|line| format!("    > {line}")));
        said.extend(new);
    }
    if !lines.is_empty() {
        lines.insert(0, "what to type".to_owned());
        lines.push(String::new());
    }
    lines
}

fn paragraph(finding: &Finding) -> Vec<String> {
    if finding.severity == Severity::Ok {
        return vec![format!("  ok       {:<11}{}", finding.about, finding.found)];
    }
    let Finding { severity, about, code, found, explain, .. } = finding;
    let mut lines =
        vec![format!("  {severity:<8} {about} [{code}]"), format!("           {found}")];
    // The title of a note is enough; its explanation is in the catalogue.
    if *severity == Severity::Note {
        return lines;
    }
    lines.extend(wrapped(explain).into_iter().map(|line| format!("           {line}")));
    lines
}

/// Wraps text to lines of at most `WIDTH` characters.
fn wrapped(text: &str) -> Vec<String> {
    const WIDTH: usize = 84;
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last_mut().expect("there is always one");
        if last.is_empty() {
            last.push_str(word);
        } else if last.chars().count() + word.chars().count() < WIDTH {
            last.push(' ');
            last.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

fn count(findings: &[Finding], severity: Severity) -> usize {
    findings.iter().filter(|it| it.severity == severity).count()
}

fn object(nodes: &[ExaminedNode], findings: &[Finding]) -> Value {
    let node = |node: &ExaminedNode| match &node.report {
        Ok(report) => json!({"name": node.name, "report": report}),
        Err(err) => json!({"name": node.name, "error": err.to_string()}),
    };
    json!({
        "ok": count(findings, Severity::Error) == 0,
        "errors": count(findings, Severity::Error),
        "warnings": count(findings, Severity::Warn),
        "findings": findings,
        "nodes": nodes.iter().map(node).collect::<Vec<Value>>(),
    })
}

/// Reads to the end, and returns the last `max` bytes, from the beginning of a line on.
fn end_of(mut log: impl Read, max: usize) -> io::Result<Vec<u8>> {
    let (mut bytes, mut is_cut) = (Vec::new(), false);
    loop {
        let more = log.by_ref().take(LOG_PIECE_BYTES as u64).read_to_end(&mut bytes)?;
        if more == 0 || max.saturating_mul(2) < bytes.len() {
            let excess = bytes.len().saturating_sub(max);
            // A cut at the end of a line cuts no line.
            is_cut = if excess == 0 { is_cut } else { bytes[excess - 1] != b'\n' };
            bytes.drain(..excess);
        }
        if more == 0 {
            break;
        }
    }
    if is_cut {
        let line = bytes.iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |at| at + 1);
        bytes.drain(..line);
    }
    Ok(bytes)
}

/// Explains the errors in a log.
fn explain(path: &Path, is_json: bool) -> anyhow::Result<()> {
    let reading = || format!("reading the log {}", path.display());
    let bytes = if path == Path::new("-") {
        end_of(io::stdin(), LOG_BYTES_MAX).with_context(reading)?
    } else {
        let mut file = File::open(path).with_context(reading)?;
        // One byte more shows whether the first line is whole. A pipe has no length.
        let skipped = file.metadata().with_context(reading)?.len();
        let skipped = skipped.saturating_sub(LOG_BYTES_MAX as u64 + 1);
        if 0 < skipped {
            file.seek(SeekFrom::Start(skipped)).with_context(reading)?;
        }
        end_of(file, LOG_BYTES_MAX).with_context(reading)?
    };
    let entries = doctor::explain(&String::from_utf8_lossy(&bytes));
    if is_json {
        let object = |it: &&Entry| json!({"code": it.code, "title": it.title, "explain": it.explain, "type_this": it.type_this});
        output::line(json!({"found": entries.iter().map(object).collect::<Vec<Value>>()}))?;
        return Ok(());
    }
    if entries.is_empty() {
        output::line("this log contains no known error; `jackalope doctor` checks the machines")?;
    }
    for entry in &entries {
        output::line(format!("{} [{}]", entry.title, entry.code))?;
        for line in wrapped(entry.explain) {
            output::line(format!("  {line}"))?;
        }
        for line in entry.type_this {
            output::line(format!("  > {line}"))?;
        }
        output::line("")?;
    }
    Ok(())
}

/// Fails if a name is given twice: several ranks on one machine are described in a hostfile.
pub(crate) fn distinct(names: &[String]) -> anyhow::Result<()> {
    for (at, name) in names.iter().enumerate() {
        if names[..at].contains(name) {
            bail!("{name} is named twice\nhint: several ranks on one machine go into a hostfile");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_is_read_from_the_beginning_of_a_line() {
        let end = |text: &str, max: usize| {
            String::from_utf8(end_of(text.as_bytes(), max).unwrap()).unwrap()
        };
        assert_eq!(end("one\ntwo\nthree\n", 100), "one\ntwo\nthree\n");
        assert_eq!(end("one\ntwo\nthree\n", 8), "three\n");
        assert_eq!(end("one\ntwo\nthree\n", 10), "two\nthree\n");
        assert_eq!(end("one\ntwo\nthree\n", 6), "three\n");
        assert_eq!(end("one", 2), "");
        let long = format!("{}\nlast\n", "x\n".repeat(3 << 20));
        assert_eq!(end(&long, 6), "\nlast\n");
    }

    #[test]
    fn long_explanations_are_wrapped_between_words() {
        let text = "word ".repeat(60);
        let lines = wrapped(text.trim());
        assert!(lines.iter().all(|line| line.len() <= 84) && 1 < lines.len());
        assert_eq!(lines.join(" "), text.trim());
    }
}
