//! Generated pages match the program, and the Makefile's targets are
//! commands of it.

use std::collections::{BTreeMap, BTreeSet};
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
fn the_description_of_the_api_is_up_to_date() {
    check_page("docs/openapi.json", &["openapi"]);
}

#[test]
fn the_tables_of_endpoints_are_up_to_date() {
    let page = root().join("docs/api.md");
    check_page("docs/api.md", &["openapi", "--page", &page.display().to_string()]);
}

#[test]
fn the_example_of_settings_is_up_to_date() {
    check_page(".env.example", &["config", "--example"]);
}

/// Runs make with all variables that the targets need, and returns its output.
fn make(words: &[&str]) -> String {
    #[expect(clippy::disallowed_methods, reason = "tests watch the processes from outside")]
    let mut command = Command::new("make");
    let variables =
        ["MODEL=org/name", "REMOTE=host", "MODEL_DIR=/model", "HOSTFILE=hosts.json", "HOSTS=mac1"];
    let made = command.arg("-C").arg(root()).args(words).args(variables).arg("JACKALOPE=jackalope");
    let made = made.output().unwrap();
    assert!(made.status.success(), "{words:?}: {made:?}");
    String::from_utf8(made.stdout).unwrap()
}

/// Returns the commands that `jackalope --help` lists.
fn commands() -> Vec<String> {
    let help = run(&["--help"]).stdout;
    let listed = help.split("Commands:").nth(1).unwrap().split("Options:").next().unwrap();
    let names = listed.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|it| !it.is_empty()).map(str::to_owned).collect()
}

#[test]
fn every_target_of_the_makefile_is_a_command_and_is_listed_by_make_help() {
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

#[test]
fn the_link_test_of_make_prints_each_round_if_it_is_asked_to() {
    let made = |args: &[&str]| make(&[&["-n", "--no-print-directory"], args].concat());
    assert!(!made(&["rdma-test"]).contains("--every-round"));
    for args in [
        &["rdma-test", "RDMA_VERBOSE=1"][..],
        &["rdma-verbose"],
        &["rdma-verbose", "RDMA_VERBOSE=0"],
    ] {
        assert_eq!(made(args).matches("--every-round").count(), 1, "{args:?}");
    }
}

/// Areas of the inventory behind docs/parity.md, with the number of rows of each.
const AREAS: &[(&str, usize)] = &[
    ("TOP", 23),
    ("HF", 20),
    ("LA", 33),
    ("CP", 13),
    ("CM", 49),
    ("DI", 15),
    ("TS", 27),
    ("LD", 19),
    ("ME", 6),
    ("CF", 40),
    ("OB", 11),
    ("DB", 12),
    ("SE", 7),
    ("SA", 7),
    ("API", 26),
    ("PP", 10),
    ("DO", 13),
    ("RM", 31),
    ("NF", 9),
];

const VERDICTS: &[&str] = &["yes", "beyond", "other way", "hardware", "no"];

/// Collects every function below a folder, as `crate name`: its folder in `crates`, and its name.
fn functions(dir: &Path, crate_name: &str, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap_or_default();
        if path.is_dir() {
            let inner = if crate_name.is_empty() { name } else { crate_name };
            functions(&path, inner, found);
        } else if name.ends_with(".rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let begins = text.lines().filter_map(|line| {
                let line = line.trim_start();
                line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ")
            });
            found.extend(
                begins.map(|it| format!("{crate_name} {}", it.split(['(', '<']).next().unwrap())),
            );
        }
    }
}

/// Collects every function of the workspace.
fn all_functions() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    functions(&root().join("crates"), "", &mut found);
    functions(&root().join("xtask"), "xtask", &mut found);
    found
}

/// Panics if one of the tests or pages in this cell of a table does not exist.
fn assert_are_there(row: &str, shown: &str, functions_found: &BTreeSet<String>) {
    for name in shown.split(", ").filter(|it| !it.is_empty()) {
        let name = name.trim_matches('`');
        let is_there = match (name.split("::").next(), name.rsplit_once("::")) {
            (Some(first), Some((_, last))) => functions_found.contains(&format!("{first} {last}")),
            _ => root().join(name).is_file(),
        };
        assert!(is_there, "{row} names {name}, which is not there");
    }
}

/// Returns the lines of a page outside of code blocks.
fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    page.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// Returns whether a page has the heading that an anchor names, by GitHub's rule.
fn has_heading(page: &str, anchor: &str) -> bool {
    prose(page).filter(|line| line.starts_with('#')).any(|line| {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|it| it.is_alphanumeric() || " -_".contains(*it));
        kept.map(|it| if it == ' ' { '-' } else { it }).eq(anchor.chars())
    })
}

#[test]
fn links_between_pages_lead_to_files_and_headings() {
    let entries = |dir: &str| std::fs::read_dir(root().join(dir)).unwrap();
    let paths = entries("").chain(entries("docs")).map(|it| it.unwrap().path());
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let mut num_links = 0;
    for path in paths.filter(|it| it.extension().is_some_and(|it| it == "md")) {
        let page = read(&path);
        let links = prose(&page).flat_map(|line| line.split("](").skip(1));
        for link in links.filter_map(|it| it.split(')').next()).filter(|it| !it.contains(':')) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target =
                if file.is_empty() { path.clone() } else { path.with_file_name("").join(file) };
            assert!(target.exists(), "{}: {link} leads nowhere", path.display());
            let is_there = anchor.is_empty() || has_heading(&read(&target), anchor);
            assert!(is_there, "{}: {link} leads to no heading", path.display());
            num_links += 1;
        }
    }
    assert!(100 < num_links, "only {num_links} links were read");
}

#[test]
fn the_page_of_faults_names_tests_that_exist() {
    let page = std::fs::read_to_string(root().join("docs/faults.md")).unwrap();
    let functions_found = all_functions();
    let mut num_rows = 0;
    for line in page.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, fault, _, shown, _mutation, _] = cells[..] else { continue };
        if shown != "Shown by" && !shown.starts_with("---") {
            assert!(!shown.is_empty(), "{fault} is shown by nothing");
            assert_are_there(fault, shown, &functions_found);
            num_rows += 1;
        }
    }
    assert!(25 < num_rows, "only {num_rows} rows were read");
}

#[test]
fn parity_has_every_row_once_and_names_tests_that_exist() {
    let page = std::fs::read_to_string(root().join("docs/parity.md")).unwrap();
    let functions_found = all_functions();
    let mut rows = Vec::new();
    let mut counted: BTreeMap<(String, String), usize> = BTreeMap::new();
    for line in page.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let Some(area) = cells.get(1).and_then(|row| row.split_once('-')).map(|it| it.0) else {
            continue;
        };
        if !AREAS.iter().any(|it| it.0 == area) {
            continue;
        }
        let [_, row, feature, told, shown, _] = cells[..] else { panic!("no row of four: {line}") };
        assert!(!feature.is_empty(), "{row} has no feature");
        let verdict = told.split(':').next().unwrap();
        assert!(VERDICTS.contains(&verdict), "{row} is `{verdict}`, not one of {VERDICTS:?}");
        assert!(verdict != "no" || verdict != told, "{row} does not say what is missing");
        assert!(verdict == "no" || !shown.is_empty(), "{row} is shown by nothing");
        assert_are_there(row, shown, &functions_found);
        rows.push(row.to_owned());
        *counted.entry((area.to_owned(), verdict.to_owned())).or_insert(0) += 1;
    }
    for line in page.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, name, numbers @ .., _] = &cells[..] else { continue };
        let area = name.rsplit_once('(').map(|(_, it)| it.trim_end_matches(')'));
        let is_total = *name == "all";
        if numbers.len() != VERDICTS.len() || !(is_total || area.is_some()) {
            continue;
        }
        let count = |verdict: &&str| {
            let of = |it: &&str| counted.get(&((*it).to_owned(), (*verdict).to_owned()));
            let areas = AREAS.iter().map(|it| it.0).filter(|it| is_total || Some(*it) == area);
            areas.filter_map(|it| of(&it)).sum::<usize>().to_string()
        };
        let wanted: Vec<String> = VERDICTS.iter().map(count).collect();
        assert_eq!(numbers, wanted, "{name} in the table of areas");
    }
    let numbers = |&(area, count): &(&str, usize)| {
        (1..=count).map(|number| format!("{area}-{number:02}")).collect::<Vec<_>>()
    };
    let wanted: Vec<String> = AREAS.iter().flat_map(numbers).collect();
    for row in &wanted {
        let times = rows.iter().filter(|it| *it == row).count();
        assert_eq!(times, 1, "{row} stands {times} times in docs/parity.md");
    }
    assert_eq!(rows.len(), wanted.len(), "docs/parity.md has rows that nobody knows");
}
