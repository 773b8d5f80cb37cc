//! A copy of the workspace, in which mutations are built and tested.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use super::copy::{copy_workspace, write_if_changed};
use super::mutation::{Expectation, ExpectedFailure, Mutation};
use super::running::{end_programs_of, wait};
use super::test_id::{TestId, TestProgram};
use crate::process::{command, target_dir};

/// The tests that search for mutations of the engine: each module with this name has one.
const SEARCH: &str = "the_seeds_of_the_mutation_search_find_nothing";

/// The modules of these tests.
const SEARCH_MODULES: [&str; 2] = ["fairness", "simulation"];

/// The crate whose tests start both programs.
const STARTS_PROGRAMS: &str = "cli";

/// Limit of building the unmutated tests with their dependencies, and of running one of them.
const CLEAN_DEADLINE: Duration = Duration::from_secs(3600);

/// Limit of one mutation: a rebuild, and its tests. The searches end at limits of steps, and tests
/// of processes at deadlines of their own, so this is reached only if something never returns.
pub(crate) const MUTATION_DEADLINE: Duration = Duration::from_secs(1200);

/// The copy under `target/mutants`. Only one task may use it at a time.
pub(crate) struct TestBed {
    tree: PathBuf,
    target: PathBuf,
    logs: PathBuf,
    /// Exclusive while this value lives.
    _lock: File,
}

/// A test that found a mutation.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Finding {
    pub(crate) test: String,
    /// The first seed that shows it, if the test searches.
    pub(crate) seed: Option<u64>,
}

/// Outcome of a mutation.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Outcome {
    Caught(Vec<Finding>),
    /// These tests, which had to fail, did not.
    Survived(Vec<String>),
    /// It does not compile, or the tests end in another way than by the expected failure.
    Broken(String),
    /// [`MUTATION_DEADLINE`] passed.
    DeadlinePassed,
}

/// End of a test run.
struct Run {
    status: ExitStatus,
    output: String,
}

/// A build, or why there is none.
enum Built {
    Program(PathBuf),
    Failed(String),
    DeadlinePassed,
}

impl TestBed {
    /// Copies the working tree, for these mutations.
    pub(crate) fn prepare(mutations: &[Mutation]) -> anyhow::Result<TestBed> {
        let dir = target_dir().join("mutants");
        // The search is a program of the copy alone, with dependencies that the workspace may have built already.
        // Other tests start programs, which would replace those of the workspace.
        let starts_programs = mutations.iter().any(|it| !it.is_searched());
        let target = if starts_programs { dir.join("target") } else { target_dir() };
        let (tree, logs) = (dir.join("tree"), dir.join("logs"));
        for folder in [&tree, &logs] {
            fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        }
        let lock = File::create(dir.join("lock")).context("creating the lock file")?;
        if lock.try_lock().is_err() {
            bail!("another `cargo xtask mutants` is running\nhint: wait until it has ended");
        }
        copy_workspace(&tree)?;
        Ok(TestBed { tree, target, logs, _lock: lock })
    }

    /// Builds the unmutated tests that these mutations need, and checks that they pass.
    pub(crate) fn check_clean(&self, mutations: &[Mutation]) -> anyhow::Result<()> {
        let mut tests: BTreeSet<&TestId> = BTreeSet::new();
        let mut is_searched = false;
        for mutation in mutations {
            match &mutation.expectation {
                Expectation::Search => is_searched = true,
                Expectation::Tests(failures) => tests.extend(failures.iter().map(|it| &it.test)),
            }
        }
        if is_searched {
            self.check_clean_search()?;
        }
        let mut programs: BTreeMap<&TestProgram, PathBuf> = BTreeMap::new();
        for test in tests {
            let deadline = Instant::now() + CLEAN_DEADLINE;
            let program = match programs.get(&test.program) {
                Some(program) => program.clone(),
                None => self.build_clean(&test.program)?,
            };
            let log = self.log(&log_name("clean", test));
            let run = self.run_test("clean", test, &program, deadline)?;
            let has_passed = run.is_some_and(|run| {
                run.status.success() && run.output.contains("test result: ok. 1 passed")
            });
            ensure!(has_passed, "{test} fails without a mutation\nhint: see {}", log.display());
            programs.insert(&test.program, program);
        }
        Ok(())
    }

    fn check_clean_search(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + CLEAN_DEADLINE;
        let log = self.log("clean");
        let hint =
            format!("hint: see {}, or `cargo test -p jackalope-engine --lib`", log.display());
        let program = self.build_clean(&search_program())?;
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

    fn build_clean(&self, program: &TestProgram) -> anyhow::Result<PathBuf> {
        match self.build("clean", program, Instant::now() + CLEAN_DEADLINE)? {
            Built::Program(program) => Ok(program),
            Built::Failed(reason) => bail!("without a mutation: {reason}"),
            Built::DeadlinePassed => {
                bail!("building the unmutated tests took over {CLEAN_DEADLINE:?}")
            }
        }
    }

    /// Applies a mutation, runs the tests, and reverts it.
    ///
    /// # Errors
    /// If the mutation does not apply, or the copy cannot be used.
    pub(crate) fn try_mutation(&self, mutation: &Mutation) -> anyhow::Result<Outcome> {
        let read = |file: &PathBuf| {
            let path = self.tree.join(file);
            fs::read(&path).with_context(|| format!("reading {}", path.display()))
        };
        let contents: Vec<Vec<u8>> = mutation.files.iter().map(read).collect::<Result<_, _>>()?;
        mutation.apply(&self.tree)?;
        let deadline = Instant::now() + MUTATION_DEADLINE;
        let outcome = match &mutation.expectation {
            Expectation::Search => self.outcome_of_search(&mutation.name, deadline),
            Expectation::Tests(failures) => {
                self.outcome_of_tests(&mutation.name, failures, deadline)
            }
        };
        for (file, content) in mutation.files.iter().zip(contents) {
            write_if_changed(&self.tree.join(file), &content)?;
        }
        outcome
    }

    fn outcome_of_search(&self, name: &str, deadline: Instant) -> anyhow::Result<Outcome> {
        let program = match self.build(name, &search_program(), deadline)? {
            Built::Program(program) => program,
            Built::Failed(reason) => return Ok(Outcome::Broken(reason)),
            Built::DeadlinePassed => return Ok(Outcome::DeadlinePassed),
        };
        let Some(run) = self.search(name, &program, deadline)? else {
            return Ok(Outcome::DeadlinePassed);
        };
        if run.status.success() {
            return Ok(Outcome::Survived(SEARCH_MODULES.map(str::to_owned).into()));
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

    fn outcome_of_tests(
        &self,
        name: &str,
        failures: &[ExpectedFailure],
        deadline: Instant,
    ) -> anyhow::Result<Outcome> {
        let (mut caught, mut survived) = (Vec::new(), Vec::new());
        let mut programs: BTreeMap<&TestProgram, PathBuf> = BTreeMap::new();
        for ExpectedFailure { test, text } in failures {
            if !programs.contains_key(&test.program) {
                match self.build(name, &test.program, deadline)? {
                    Built::Program(program) => programs.insert(&test.program, program),
                    Built::Failed(reason) => return Ok(Outcome::Broken(reason)),
                    Built::DeadlinePassed => return Ok(Outcome::DeadlinePassed),
                };
            }
            let run = self.run_test(name, test, &programs[&test.program], deadline)?;
            let Some(Run { status, output }) = run else { return Ok(Outcome::DeadlinePassed) };
            if status.success() {
                survived.push(test.to_string());
            } else if output.contains("test result: FAILED") && output.contains(text) {
                caught.push(Finding { test: test.to_string(), seed: None });
            } else {
                let log = self.log(&log_name(name, test));
                let reason = format!(
                    "{test} fails ({status}), but does not print \"{text}\": {}",
                    log.display()
                );
                return Ok(Outcome::Broken(reason));
            }
        }
        Ok(if survived.is_empty() { Outcome::Caught(caught) } else { Outcome::Survived(survived) })
    }

    /// Builds a test program.
    fn build(&self, name: &str, program: &TestProgram, deadline: Instant) -> anyhow::Result<Built> {
        let mut cargo = build_command(program);
        cargo.args(["--offline", "--quiet", "--message-format=json-render-diagnostics"]);
        cargo.current_dir(&self.tree);
        cargo.env("CARGO_TARGET_DIR", &self.target).env("CARGO_INCREMENTAL", "1");
        let (messages, log) = (self.logs.join("messages.json"), self.log(name));
        let Some(status) = wait(&mut cargo, &messages, &log, deadline)? else {
            return Ok(Built::DeadlinePassed);
        };
        if !status.success() {
            return Ok(Built::Failed(format!("it does not compile: {}", log.display())));
        }
        let text = fs::read_to_string(&messages).context("reading cargo's messages")?;
        let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        // Cargo also names the programs that it built beside the tests.
        let mut tests = messages.filter(|it| it["profile"]["test"] == true);
        let built = tests.find_map(|it| Some(PathBuf::from(it["executable"].as_str()?)));
        Ok(Built::Program(built.context("cargo names no test program")?))
    }

    /// Runs one test; none after the deadline.
    fn run_test(
        &self,
        name: &str,
        test: &TestId,
        program: &Path,
        deadline: Instant,
    ) -> anyhow::Result<Option<Run>> {
        let listed = command(&program.to_string_lossy())
            .arg("--list")
            .output()
            .with_context(|| format!("starting {}", program.display()))?;
        let full_name = test.full_name(&String::from_utf8_lossy(&listed.stdout));
        let full_name =
            full_name.with_context(|| format!("{} has no test {test}", program.display()))?;
        let mut run = command(&program.to_string_lossy());
        run.args(["--exact", &full_name, "--test-threads", "1"]).env("RUST_BACKTRACE", "0");
        run.current_dir(self.tree.join("crates").join(&test.program.crate_name));
        let run = self.run(&log_name(name, test), &mut run, deadline);
        end_programs_of(&self.target);
        run
    }

    /// Runs the search for mutations; none after the deadline.
    fn search(&self, name: &str, program: &Path, deadline: Instant) -> anyhow::Result<Option<Run>> {
        let mut tests = command(&program.to_string_lossy());
        tests.arg(SEARCH).current_dir(&self.tree).env("RUST_BACKTRACE", "0");
        self.run(name, &mut tests, deadline)
    }

    fn run(
        &self,
        name: &str,
        tests: &mut Command,
        deadline: Instant,
    ) -> anyhow::Result<Option<Run>> {
        let log = self.log(name);
        let errors = self.logs.join("errors.log");
        let Some(status) = wait(tests, &log, &errors, deadline)? else { return Ok(None) };
        let output = fs::read(&log).with_context(|| format!("reading {}", log.display()))?;
        Ok(Some(Run { status, output: String::from_utf8_lossy(&output).into_owned() }))
    }

    fn log(&self, name: &str) -> PathBuf {
        self.logs.join(format!("{name}.log"))
    }
}

/// The test program of the search.
fn search_program() -> TestProgram {
    TestProgram { crate_name: "engine".to_owned(), target: None }
}

/// Names the log of one test.
fn log_name(name: &str, test: &TestId) -> String {
    format!("{name}-{}", test.to_string().replace("::", "."))
}

/// Returns the command that builds a test program, and the programs that its tests start.
fn build_command(program: &TestProgram) -> Command {
    let package = format!("jackalope-{}", program.crate_name);
    let mut cargo = command("cargo");
    match &program.target {
        Some(target) if program.crate_name == STARTS_PROGRAMS => {
            // One selection of packages, because another one could enable other features.
            cargo.args(["build", "--package", &package, "--package", "jackalope-runner"]);
            cargo.args(["--bins", "--test", target]);
        }
        Some(target) => {
            cargo.args(["test", "--no-run", "--package", &package, "--test", target]);
        }
        None => {
            cargo.args(["test", "--no-run", "--package", &package, "--lib"]);
        }
    }
    cargo
}

/// Finds, in the output of the search, the modules that failed and their first failing seeds.
fn findings(output: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut module = None;
    for line in output.lines() {
        if let Some(test) = line.strip_prefix("---- ") {
            module = test.split("::").next().map(str::to_owned);
        }
        let seed: Option<u64> =
            line.strip_prefix("failing seed: ").and_then(|seed| seed.parse().ok());
        if let (Some(_), Some(test)) = (seed, module.take_if(|_| seed.is_some())) {
            findings.push(Finding { test, seed });
        }
    }
    // Tests run beside each other and end in any order.
    findings.sort();
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failing_seed_of_each_module_is_found() {
        let output = "---- fairness::a stdout ----\nseed 2: late\nfailing seed: 2\n\n\
                      ---- simulation::a stdout ----\nfailing seed: 41\n\nfailures:\n";
        let found: Vec<(String, Option<u64>)> =
            findings(output).into_iter().map(|it| (it.test, it.seed)).collect();
        assert_eq!(found, [("fairness".to_owned(), Some(2)), ("simulation".to_owned(), Some(41))]);
        assert_eq!(findings("running 2 tests\n"), []);
    }
}
