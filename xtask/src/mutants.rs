//! `cargo xtask mutants`: applies mutations to a copy of the workspace, one at a time, and checks
//! that tests find each: those of the engine's scheduler the simulation and the tests of fairness,
//! and those that remove the defence against a fault or an attack the tests that they name. A
//! mutation that survives is a mistake that these tests would not notice.

mod copy;
mod faults_page;
mod mutation;
mod running;
mod test_bed;
mod test_id;

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

use faults_page::FAULTS;
use mutation::{Mutation, changed_since, default_branch};
use test_bed::{MUTATION_DEADLINE, Outcome, TestBed};

use crate::process::workspace_dir;

const USAGE: &str = "usage: cargo xtask mutants \
                     NAME…|--all|--attacks|--of-ci|--changed BASE|--sample N [--seed S] [--json]";

/// Number of random mutations in CI.
const CI_SAMPLE: usize = 3;

/// Maximum number of mutations that CI takes because their files changed; a change of more files
/// gets a random selection of this size.
const CI_CHANGED_MAX: usize = 8;

/// The mutations to try.
#[derive(Debug, Eq, PartialEq)]
enum Selection {
    Names(Vec<String>),
    All,
    /// Those that name the tests that must find them.
    Attacks,
    /// Those of the scheduler whose files changed since the default branch, and a few others at random.
    OfCi,
    /// Those whose files changed since the merge base with this revision.
    Changed(String),
    /// A number of them, at random from a seed.
    Sample(usize, u64),
}

#[derive(Debug)]
struct Options {
    selection: Selection,
    json: bool,
}

pub(crate) fn run(args: &[String]) -> anyhow::Result<()> {
    let options = Options::parse(args)?;
    let all = Mutation::load_all()?;
    let selected = select(options.selection, all)?;
    try_all(&selected, options.json)
}

/// Selects the searched mutations whose files changed since the default branch, and a few at random.
/// The others build and start whole programs, which takes too long in CI.
fn select_for_ci(mut all: Vec<Mutation>) -> Vec<Mutation> {
    let seed = seed_of_now();
    all.retain(Mutation::is_searched);
    let mut selected = Vec::new();
    let changed = default_branch().and_then(|branch| Some((changed_since(&branch).ok()?, branch)));
    if let Some((files, branch)) = changed {
        let about: Vec<Mutation> = all.iter().filter(|it| it.is_about(&files)).cloned().collect();
        eprintln!("files of {} mutations changed since {branch}", about.len());
        selected = sample(about, CI_CHANGED_MAX, seed);
    } else {
        eprintln!(
            "where this left the default branch is not known: none is chosen by changed files"
        );
    }
    eprintln!("{} of these, and {CI_SAMPLE} others at random from seed {seed}", selected.len());
    let others = all.into_iter().filter(|it| !selected.contains(it)).collect();
    selected.extend(sample(others, CI_SAMPLE, seed));
    selected
}

impl Options {
    fn parse(args: &[String]) -> anyhow::Result<Options> {
        let (mut selections, mut names) = (Vec::new(), Vec::new());
        let (mut count, mut seed, mut json) = (None, None, false);
        let mut args = args.iter().map(String::as_str);
        while let Some(arg) = args.next() {
            let mut value =
                || args.next().with_context(|| format!("{arg} lacks its value\n{USAGE}"));
            match arg {
                "--all" => selections.push(Selection::All),
                "--attacks" => selections.push(Selection::Attacks),
                "--of-ci" => selections.push(Selection::OfCi),
                "--changed" => selections.push(Selection::Changed(value()?.to_owned())),
                "--sample" => count = Some(value()?.parse().context("--sample takes a number")?),
                "--seed" => seed = Some(value()?.parse().context("--seed takes a number")?),
                "--json" => json = true,
                _ if arg.starts_with('-') => bail!("there is no option {arg}\n{USAGE}"),
                _ => names.push(arg.to_owned()),
            }
        }
        ensure!(seed.is_none() || count.is_some(), "--seed goes with --sample\n{USAGE}");
        if let Some(count) = count {
            selections.push(Selection::Sample(count, seed.unwrap_or_else(seed_of_now)));
        }
        if !names.is_empty() {
            selections.push(Selection::Names(names));
        }
        let num_selections = selections.len();
        let selection = selections.pop().filter(|_| num_selections == 1);
        let selection = selection
            .with_context(|| format!("{num_selections} selections, expected 1\n{USAGE}"))?;
        Ok(Options { selection, json })
    }
}

fn select(selection: Selection, all: Vec<Mutation>) -> anyhow::Result<Vec<Mutation>> {
    match selection {
        Selection::All => Ok(all),
        Selection::Attacks => Ok(all.into_iter().filter(|it| !it.is_searched()).collect()),
        Selection::OfCi => Ok(select_for_ci(all)),
        Selection::Changed(base) => {
            let files = changed_since(&base)?;
            Ok(all.into_iter().filter(|it| it.is_about(&files)).collect())
        }
        Selection::Sample(count, seed) => {
            eprintln!("seed {seed}");
            Ok(sample(all, count, seed))
        }
        Selection::Names(names) => {
            let known: Vec<&str> = all.iter().map(|it| it.name.as_str()).collect();
            for name in &names {
                ensure!(
                    known.contains(&name.as_str()),
                    "there is no mutation {name}\nhint: there are {}",
                    known.join(", ")
                );
            }
            Ok(all.into_iter().filter(|it| names.contains(&it.name)).collect())
        }
    }
}

/// Selects at most `count` mutations at random.
fn sample(mut mutations: Vec<Mutation>, count: usize, seed: u64) -> Vec<Mutation> {
    // SplitMix64 (Steele, Lea and Flood 2014).
    let mut state = seed;
    let mut below = |n: usize| {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % n as u64) as usize
    };
    while count < mutations.len() {
        mutations.remove(below(mutations.len()));
    }
    mutations
}

fn seed_of_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |it| u64::from(it.subsec_nanos()))
}

/// Checks that the tests pass without a mutation and fail with each of these.
fn try_all(mutations: &[Mutation], json: bool) -> anyhow::Result<()> {
    for mutation in mutations {
        mutation.check()?;
    }
    let mut results: Vec<Value> = Vec::new();
    let mut missed = Vec::new();
    if !mutations.is_empty() {
        let test_bed = TestBed::prepare(mutations)?;
        let started = Instant::now();
        test_bed.check_clean(mutations)?;
        eprintln!("the tests pass without a mutation ({:.0} s)", started.elapsed().as_secs_f64());
        if !json {
            println!("{}", row(["name", "caught by", "after N seeds", "seconds"]));
        }
        for mutation in mutations {
            let started = Instant::now();
            let outcome = test_bed.try_mutation(mutation)?;
            let seconds = started.elapsed().as_secs_f64();
            if !json {
                let (by, seeds) = summary(&outcome);
                println!("{}", row([&mutation.name, &by, &seeds, &format!("{seconds:.1}")]));
            }
            missed.extend(shortcoming(mutation, &outcome));
            results.push(result(mutation, &outcome, seconds));
        }
    }
    if json {
        println!("{}", json!({ "mutations": results }));
    } else {
        println!("{} of {} mutations were caught", mutations.len() - missed.len(), mutations.len());
    }
    ensure!(missed.is_empty(), "{} mutations were not caught\n{}", missed.len(), missed.join("\n"));
    Ok(())
}

/// Returns why a mutation was not caught, and what to do; `None` if it was.
fn shortcoming(mutation: &Mutation, outcome: &Outcome) -> Option<String> {
    let Mutation { name, about, .. } = mutation;
    match outcome {
        Outcome::Caught(_) => None,
        Outcome::Survived(tests) if mutation.is_searched() => Some(format!(
            "{name} survived {}: {about}\nhint: extend these tests until one of them fails under it",
            tests.join(" and ")
        )),
        Outcome::Survived(tests) => Some(format!(
            "{name} survived: {about}\nhint: extend {} until it fails under it",
            tests.join(" and ")
        )),
        Outcome::Broken(reason) => Some(format!(
            "{name} proves nothing: {reason}\nhint: correct {}",
            mutation.path.display()
        )),
        Outcome::DeadlinePassed => Some(format!(
            "{name} did not end within {MUTATION_DEADLINE:?}: {about}\nhint: if the scheduler never \
             returns, assert a limit of steps in it, or make the mistake in another way"
        )),
    }
}

fn row([name, by, seeds, seconds]: [&str; 4]) -> String {
    format!("{name:<48}  {seeds:>13}  {seconds:>7}  {by}")
}

/// Formats an outcome: what caught the mutation, or why nothing did; and the first failing seeds.
fn summary(outcome: &Outcome) -> (String, String) {
    let reason = match outcome {
        Outcome::Caught(findings) => {
            let tests: Vec<&str> = findings.iter().map(|it| it.test.as_str()).collect();
            let seeds = findings.iter().filter_map(|it| Some(it.seed?.to_string()));
            let seeds: Vec<String> = seeds.collect();
            let seeds = if seeds.is_empty() { "-".to_owned() } else { seeds.join(", ") };
            return (tests.join(", "), seeds);
        }
        Outcome::Survived(_) => "NOTHING",
        Outcome::Broken(_) => "BROKEN",
        Outcome::DeadlinePassed => "NOTHING IN TIME",
    };
    (reason.to_owned(), "-".to_owned())
}

fn result(mutation: &Mutation, outcome: &Outcome, seconds: f64) -> Value {
    let (kind, reason) = match outcome {
        Outcome::Caught(_) => ("caught", None),
        Outcome::Survived(_) => ("survived", None),
        Outcome::Broken(reason) => ("broken", Some(reason)),
        Outcome::DeadlinePassed => ("deadline passed", None),
    };
    let findings = match outcome {
        Outcome::Caught(findings) => findings.as_slice(),
        _ => &[],
    };
    let caught_by: Vec<Value> =
        findings.iter().map(|it| json!({ "test": it.test, "seed": it.seed })).collect();
    json!({
        "name": mutation.name,
        "outcome": kind,
        "reason": reason,
        "caught_by": caught_by,
        "seconds": seconds,
    })
}

/// Checks that every mutation applies to the working tree and names tests that exist, and that
/// [`FAULTS`] names the mutations and their tests in the same rows.
pub(crate) fn check_patches(findings: &mut Vec<String>) -> anyhow::Result<()> {
    let all = Mutation::load_all()?;
    findings.extend(all.iter().filter_map(|it| it.check().err()).map(|err| err.to_string()));
    let page = std::fs::read_to_string(workspace_dir().join(FAULTS))
        .with_context(|| format!("reading {FAULTS}"))?;
    faults_page::check(&page, &all, findings);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> anyhow::Result<Options> {
        Options::parse(&args.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn one_selection_is_asked_for() {
        assert_eq!(parse(&["--all"]).unwrap().selection, Selection::All);
        assert_eq!(parse(&["--attacks"]).unwrap().selection, Selection::Attacks);
        let sample = parse(&["--sample", "3", "--seed", "7", "--json"]).unwrap();
        assert!(sample.json);
        assert_eq!(sample.selection, Selection::Sample(3, 7));
        assert_eq!(parse(&["--of-ci"]).unwrap().selection, Selection::OfCi);
        let names = parse(&["a", "b"]).unwrap().selection;
        assert_eq!(names, Selection::Names(vec!["a".to_owned(), "b".to_owned()]));
        for wrong in [&[][..], &["--all", "a"], &["--seed", "1"], &["--sample"], &["--what"]] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_sample_depends_on_its_seed_alone() {
        let all = Mutation::load_all().unwrap();
        let names = |seed| sample(all.clone(), 3, seed).into_iter().map(|it| it.name);
        let of = |seed| names(seed).collect::<Vec<_>>();
        assert_eq!(of(1), of(1));
        assert_eq!(of(1).len(), 3);
        assert!((2..20).any(|seed| of(seed) != of(1)));
    }
}
