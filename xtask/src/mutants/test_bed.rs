//! A copy of the engine, in which mutations are built and tested.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use super::mutation::Mutation;
use crate::process::{command, target_dir, workspace_dir};

/// The crates of the copy: the engine, and our crates that it uses.
const CRATES: [&str; 2] = ["engine", "protocol"];

/// Files of the workspace that decide how it is built, where they exist.
const BUILD_FILES: [&str; 3] = ["Cargo.lock", "rust-toolchain", "rust-toolchain.toml"];

/// The tests that have to find every mutation: each module with this name has one.
const SEARCH: &str = "the_seeds_of_the_mutation_search_find_nothing";

/// The modules of these tests.
const SEARCH_MODULES: [&str; 2] = ["fairness", "simulation"];

/// Limit of building the unmutated tests with their dependencies, and of running them.
const CLEAN_DEADLINE: Duration = Duration::from_secs(1200);

/// Limit of one mutation: a rebuild and a search. The searches end at limits of steps, so this
/// is reached only if the scheduler itself never returns.
pub(crate) const MUTATION_DEADLINE: Duration = Duration::from_secs(300);

/// Interval of polling a child process.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The copy under `target/mutants`. Only one task may use it at a time.
pub(crate) struct TestBed {
    dir: PathBuf,
    logs: PathBuf,
    /// Exclusive while this value lives.
    _lock: File,
}

/// A test that found a mutation, and the first seed that shows it.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Finding {
    pub(crate) module: String,
    pub(crate) seed: u64,
}

/// Outcome of a mutation.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Outcome {
    Caught(Vec<Finding>),
    Survived,
    /// It does not compile, or the tests end in another way than by a failed assertion.
    Broken(String),
    /// [`MUTATION_DEADLINE`] passed.
    DeadlinePassed,
}

/// End of a test run.
struct Run {
    status: ExitStatus,
    output: String,
}

impl TestBed {
    /// Copies the engine from the working tree.
    pub(crate) fn prepare() -> anyhow::Result<TestBed> {
        let dir = target_dir().join("mutants");
        let logs = dir.join("logs");
        fs::create_dir_all(&logs).with_context(|| format!("creating {}", logs.display()))?;
        let lock = File::create(dir.join("lock")).context("creating the lock file")?;
        if lock.try_lock().is_err() {
            bail!("another `cargo xtask mutants` is running\nhint: wait until it has ended");
        }
        let manifest = fs::read_to_string(workspace_dir().join("Cargo.toml"))
            .context("reading the workspace's Cargo.toml")?;
        write_if_changed(&dir.join("Cargo.toml"), reduced_manifest(&manifest).as_bytes())?;
        for name in BUILD_FILES {
            if let Ok(content) = fs::read(workspace_dir().join(name)) {
                write_if_changed(&dir.join(name), &content)?;
            }
        }
        for name in CRATES {
            let path = Path::new("crates").join(name);
            copy_dir(&workspace_dir().join(&path), &dir.join(&path))?;
        }
        Ok(TestBed { dir, logs, _lock: lock })
    }

    /// Builds the unmutated tests and checks that they pass.
    pub(crate) fn check_clean(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + CLEAN_DEADLINE;
        let log = self.log("clean");
        let hint =
            format!("hint: see {}, or `cargo test -p jackalope-engine --lib`", log.display());
        let Some(built) = self.build("clean", deadline)? else {
            bail!("building the unmutated tests took over {CLEAN_DEADLINE:?}\n{hint}");
        };
        let program = built.map_err(|err| err.context(hint.clone()))?;
        let Some(run) = self.search("clean", &program, deadline)? else {
            bail!("the unmutated tests ran for over {CLEAN_DEADLINE:?}\n{hint}");
        };
        ensure!(run.status.success(), "the tests fail without a mutation\n{hint}");
        let passed = format!("{} passed", SEARCH_MODULES.len());
        ensure!(
            run.output.contains(&passed),
            "not all of the tests named {SEARCH} in {SEARCH_MODULES:?} ran\n{hint}"
        );
        Ok(())
    }

    /// Applies a mutation, runs the tests, and reverts it.
    ///
    /// # Errors
    /// If the mutation does not apply, or the copy cannot be used.
    pub(crate) fn try_mutation(&self, mutation: &Mutation) -> anyhow::Result<Outcome> {
        let read = |file: &PathBuf| {
            let path = self.dir.join(file);
            fs::read(&path).with_context(|| format!("reading {}", path.display()))
        };
        let contents: Vec<Vec<u8>> = mutation.files.iter().map(read).collect::<Result<_, _>>()?;
        mutation.apply(&self.dir)?;
        let outcome = self.outcome(&mutation.name);
        for (file, content) in mutation.files.iter().zip(contents) {
            write_if_changed(&self.dir.join(file), &content)?;
        }
        outcome
    }

    fn outcome(&self, name: &str) -> anyhow::Result<Outcome> {
        let deadline = Instant::now() + MUTATION_DEADLINE;
        let program = match self.build(name, deadline)? {
            None => return Ok(Outcome::DeadlinePassed),
            Some(Err(err)) => return Ok(Outcome::Broken(format!("{err:#}"))),
            Some(Ok(program)) => program,
        };
        let Some(run) = self.search(name, &program, deadline)? else {
            return Ok(Outcome::DeadlinePassed);
        };
        if run.status.success() {
            return Ok(Outcome::Survived);
        }
        let findings = findings(&run.output);
        if findings.is_empty() {
            let log = self.log(name);
            let reason =
                format!("no seed failed, but the tests did ({}): {}", run.status, log.display());
            return Ok(Outcome::Broken(reason));
        }
        Ok(Outcome::Caught(findings))
    }

    /// Builds the tests of the engine; none after the deadline. Returns the program, or why it was
    /// not built.
    fn build(
        &self,
        name: &str,
        deadline: Instant,
    ) -> anyhow::Result<Option<anyhow::Result<PathBuf>>> {
        let mut cargo = command("cargo");
        cargo.args(["test", "--offline", "--quiet", "--package", "jackalope-engine", "--lib"]);
        cargo.args(["--no-run", "--message-format=json-render-diagnostics"]);
        cargo.current_dir(&self.dir);
        cargo.env("CARGO_TARGET_DIR", self.dir.join("target")).env("CARGO_INCREMENTAL", "1");
        let (messages, log) = (self.logs.join("messages.json"), self.log(name));
        let Some(status) = wait(&mut cargo, &messages, &log, deadline)? else { return Ok(None) };
        if !status.success() {
            return Ok(Some(Err(anyhow::anyhow!("it does not compile: {}", log.display()))));
        }
        let text = fs::read_to_string(&messages).context("reading cargo's messages")?;
        let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut programs =
            messages.filter_map(|it| Some(PathBuf::from(it["executable"].as_str()?)));
        Ok(Some(programs.next().context("cargo names no test program")))
    }

    /// Runs the search for mutations; none after the deadline.
    fn search(&self, name: &str, program: &Path, deadline: Instant) -> anyhow::Result<Option<Run>> {
        let mut tests = command(&program.to_string_lossy());
        tests.arg(SEARCH).current_dir(&self.dir).env("RUST_BACKTRACE", "0");
        let log = self.log(name);
        let errors = self.logs.join("errors.log");
        let Some(status) = wait(&mut tests, &log, &errors, deadline)? else { return Ok(None) };
        let output = fs::read(&log).with_context(|| format!("reading {}", log.display()))?;
        Ok(Some(Run { status, output: String::from_utf8_lossy(&output).into_owned() }))
    }

    fn log(&self, name: &str) -> PathBuf {
        self.logs.join(format!("{name}.log"))
    }
}

/// Runs a command with its output in two files. Returns none, and ends it, if the deadline passes.
fn wait(
    command: &mut Command,
    stdout: &Path,
    stderr: &Path,
    deadline: Instant,
) -> anyhow::Result<Option<ExitStatus>> {
    let create =
        |path: &Path| File::create(path).with_context(|| format!("creating {}", path.display()));
    command.stdout(create(stdout)?).stderr(create(stderr)?);
    let mut child =
        command.spawn().with_context(|| format!("starting {:?}", command.get_program()))?;
    loop {
        if let Some(status) = child.try_wait().context("waiting for a child process")? {
            return Ok(Some(status));
        }
        if deadline <= Instant::now() {
            child.kill().context("ending a child process")?;
            child.wait().context("waiting for a child process")?;
            return Ok(None);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Finds, in the output of the tests, the modules that failed and their first failing seeds.
fn findings(output: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut module = None;
    for line in output.lines() {
        if let Some(test) = line.strip_prefix("---- ") {
            module = test.split("::").next().map(str::to_owned);
        }
        let seed = line.strip_prefix("failing seed: ").and_then(|seed| seed.parse().ok());
        if let (Some(seed), Some(module)) = (seed, module.take_if(|_| seed.is_some())) {
            findings.push(Finding { module, seed });
        }
    }
    // Tests run beside each other and end in any order.
    findings.sort();
    findings
}

/// The workspace's manifest with only the crates of the copy.
fn reduced_manifest(text: &str) -> String {
    let members: Vec<String> = CRATES.iter().map(|name| format!("\"crates/{name}\"")).collect();
    let (mut reduced, mut is_default_members, mut is_of_others) = (String::new(), false, false);
    for line in text.lines() {
        if line.starts_with('[') {
            let package = line.strip_prefix("[profile.dev.package.jackalope-");
            is_of_others = package.is_some_and(|it| !CRATES.contains(&it.trim_end_matches(']')));
        }
        is_default_members |= line.starts_with("default-members");
        if line.starts_with("members") {
            reduced += &format!("members = [{}]\n", members.join(", "));
        } else if !is_default_members && !is_of_others {
            reduced += line;
            reduced.push('\n');
        }
        is_default_members &= !line.ends_with(']');
    }
    reduced
}

/// Makes `target` a copy of `source`. Files with the same content keep their times, so that cargo
/// does not build them again.
fn copy_dir(source: &Path, target: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(target).with_context(|| format!("creating {}", target.display()))?;
    let mut names = BTreeSet::new();
    let entries =
        |dir: &Path| fs::read_dir(dir).with_context(|| format!("listing {}", dir.display()));
    for entry in entries(source)? {
        let entry = entry?;
        let (path, copy) = (entry.path(), target.join(entry.file_name()));
        names.insert(entry.file_name());
        if path.is_dir() {
            copy_dir(&path, &copy)?;
        } else {
            let content = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
            write_if_changed(&copy, &content)?;
        }
    }
    for entry in entries(target)? {
        let entry = entry?;
        if names.contains(&entry.file_name()) {
            continue;
        }
        let path = entry.path();
        let removed =
            if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.with_context(|| format!("removing {}", path.display()))?;
    }
    Ok(())
}

fn write_if_changed(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    if fs::read(path).is_ok_and(|found| found == content) {
        return Ok(());
    }
    fs::write(path, content).with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_has_only_the_crates_that_the_engine_needs() {
        let manifest = fs::read_to_string(workspace_dir().join("Cargo.toml")).unwrap();
        let reduced = reduced_manifest(&manifest);
        assert!(reduced.contains("members = [\"crates/engine\", \"crates/protocol\"]\n"));
        for gone in ["crates/*", "default-members", "dev.package.jackalope-cli]"] {
            assert!(manifest.contains(gone) && !reduced.contains(gone), "{gone}");
        }
        for kept in
            ["[profile.dev]", "[workspace.lints.clippy]", "[profile.release]", "opt-level = 1"]
        {
            assert!(reduced.contains(kept), "{kept}");
        }
    }

    #[test]
    fn the_first_failing_seed_of_each_module_is_found() {
        let output = "---- fairness::a stdout ----\nseed 2: late\nfailing seed: 2\n\n\
                      ---- simulation::a stdout ----\nfailing seed: 41\n\nfailures:\n";
        let found: Vec<(String, u64)> =
            findings(output).into_iter().map(|it| (it.module, it.seed)).collect();
        assert_eq!(found, [("fairness".to_owned(), 2), ("simulation".to_owned(), 41)]);
        assert_eq!(findings("running 2 tests\n"), []);
    }

    #[test]
    fn a_command_that_does_not_end_is_ended_at_the_deadline() {
        let file = |name: &str| std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        let (stdout, stderr) = (file("mutants-stdout"), file("mutants-stderr"));
        let mut sleep = command("sleep");
        let soon = Instant::now() + Duration::from_millis(50);
        assert_eq!(wait(sleep.arg("600"), &stdout, &stderr, soon).unwrap(), None);
        fs::remove_file(stdout).unwrap();
        fs::remove_file(stderr).unwrap();
    }
}
