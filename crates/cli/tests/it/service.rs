//! `jackalope service`, for calls that do not change the system.

use std::path::PathBuf;
use std::process::Output;

use crate::program::command;

fn service(words: &[&str]) -> Output {
    let mut command = command(env!("CARGO_BIN_EXE_jackalope"));
    command.arg("service").args(words).env("JACKALOPE_HOME", "/tmp/some where");
    command.output().unwrap()
}

/// Returns the file that would be written.
fn file_of(words: &[&str]) -> String {
    let output = service(words);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let (_, text) = text.split_once(":\n").unwrap();
    let end = text.find("\nsystemctl").or_else(|| text.find("\nlaunchctl")).unwrap();
    text[..end].to_owned()
}

#[test]
fn systemd_accepts_the_unit() {
    if command("systemd-analyze").arg("--version").output().is_err() {
        eprintln!("systemd-analyze is not installed: the units are not verified");
        return;
    }
    let dir: PathBuf = std::env::temp_dir().join(format!("jackalope-unit-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let dry = ["install", "--dry-run", "--manager", "systemd"];
    let server = [&dry[..], &["server", "--", "--model", "a $b% \"c\"", "--port", "1"]].concat();
    let agent = [&dry[..], &["agent", "--", "--announce"]].concat();
    for (name, words) in [("jackalope.server.service", server), ("jackalope.agent.service", agent)]
    {
        let path = dir.join(name);
        std::fs::write(&path, file_of(&words)).unwrap();
        let mut verify = command("systemd-analyze");
        verify.args(["verify", "--user"]).arg(&path).env("XDG_RUNTIME_DIR", &dir);
        let output = verify.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && !said.contains("jackalope."), "{name}: {said}");
    }
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn secrets_and_mistyped_arguments_are_refused_before_anything_is_written() {
    for (words, reason) in [
        (&["--model", "m", "--api-key", "secret"][..], "hint: give `--api-key-file FILE`"),
        (&["--model", "m", "--token=secret"], "JACKALOPE_TOKEN="),
        (&["--modle", "m"], "unexpected argument '--modle'"),
        (&["--model", "a\nb"], "control character"),
    ] {
        let output = service(&[&["install", "server", "--dry-run", "--"], words].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(reason), "{words:?}: {said}");
        assert!(!said.contains("=secret"), "{said}");
        assert!(output.stdout.is_empty(), "{words:?}");
    }
}
