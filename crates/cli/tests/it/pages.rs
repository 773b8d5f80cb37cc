//! Pages that are made from the program say what the program says, and the Makefile's targets are
//! commands of it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program::run;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn check_page(path: &str, words: &[&str]) {
    let made = run(words);
    assert!(made.status.success(), "{made:?}");
    let kept = std::fs::read_to_string(root().join(path)).unwrap_or_default();
    assert!(
        kept == made.stdout,
        "{path} is out of date: cargo run -p jackalope-cli -- {} > {path}",
        words.join(" ")
    );
}

#[test]
fn the_page_of_commands_is_up_to_date() {
    check_page("docs/commands.md", &["commands-page"]);
}

#[test]
fn the_example_of_settings_is_up_to_date() {
    check_page(".env.example", &["config", "--example"]);
}

/// Targets of which each is a command of ours, with every variable they want.
fn make(words: &[&str]) -> String {
    #[expect(clippy::disallowed_methods, reason = "tests watch the processes from outside")]
    let mut command = Command::new("make");
    let variables = ["MODEL=org/name", "REMOTE=host", "MODEL_DIR=/model", "HOSTFILE=hosts.json"];
    let made = command.arg("-C").arg(root()).args(words).args(variables).arg("JACKALOPE=jackalope");
    let made = made.output().unwrap();
    assert!(made.status.success(), "{words:?}: {made:?}");
    String::from_utf8(made.stdout).unwrap()
}

/// Commands by the lines of `jackalope --help`.
fn commands() -> Vec<String> {
    let help = run(&["--help"]).stdout;
    let listed = help.split("Commands:").nth(1).unwrap().split("Options:").next().unwrap();
    let names = listed.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|it| !it.is_empty()).map(str::to_owned).collect()
}

#[test]
fn every_target_of_the_makefile_is_a_command_and_is_told_by_make_help() {
    let help = make(&["--no-print-directory", "help"]);
    let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
    let targets: Vec<&str> = makefile
        .lines()
        .filter_map(|line| line.split_once(": ##"))
        .map(|(target, _)| target)
        .filter(|it| it.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'))
        .collect();
    assert!(35 < targets.len(), "{targets:?}");
    let commands = commands();
    for target in targets {
        let told = help.lines().any(|line| line.split_whitespace().next() == Some(target));
        assert!(told, "`make help` does not tell {target}");
        let made = make(&["-n", "--no-print-directory", target]);
        for line in made.lines().filter(|line| line.starts_with("jackalope ")) {
            let command = line.split(' ').nth(1).unwrap();
            assert!(
                command == "--version" || commands.iter().any(|it| it == command),
                "`make {target}` runs `{line}`, and `jackalope --help` knows no `{command}`"
            );
        }
        let is_ours = |line: &str| line.starts_with("jackalope ") || line.starts_with("cargo ");
        let is_help = target == "help";
        assert!(
            is_help || made.lines().any(is_ours),
            "`make {target}` does nothing of ours: {made}"
        );
    }
}
