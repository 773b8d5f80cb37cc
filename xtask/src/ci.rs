//! `cargo xtask ci`: runs exactly the checks of CI, in the same order. Packages are installed while the
//! first steps run. Programs with tests run several at a time; what measures time, or uses all cores to
//! build, runs alone.

mod clients;
mod lanes;
mod programs;

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, ensure};

use self::clients::{ENVIRONMENTS, Environment};
use self::lanes::Job;
use crate::demo::Profile;
use crate::process::{command, in_path, target_dir, workspace_dir};
use crate::web::Tools;

/// Build profile of the tested programs.
const PROFILE: Profile = Profile::Dev;

/// A short run with random faults from a fixed seed.
const CHAOS: [&str; 6] = ["--minutes", "1", "--seed", "13", "--patience", "3"];

pub(crate) fn run(args: &[String]) -> anyhow::Result<()> {
    ensure!(args.is_empty(), "`ci` takes no options");
    let started = Instant::now();
    crate::mlx::run(&[])?;
    let web = Tools::prepare();
    let environments = ENVIRONMENTS.map(|(name, tests)| Environment::prepare(name, tests));
    step("format", cargo(&["fmt", "--all", "--check"]))?;
    println!("── tidy");
    crate::tidy::run(&[])?;
    step(
        "lints",
        cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]),
    )?;
    let mut doc =
        cargo(&["doc", "--workspace", "--no-deps", "--quiet", "--document-private-items"]);
    // Links to private items resolve here, because these are documented as well.
    doc.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links");
    step("documentation", doc)?;
    // Tests of the commands start both programs, and `cargo test` builds only those of the tested crate.
    // Building programs and tests together builds every dependency once, with the features of both.
    // Clients speak to the same programs: they check arithmetic and assertions, which released ones do not.
    let mut build = cargo(&["build", "--workspace"]);
    build.args(programs::TARGETS);
    step("programs and tests", build)?;
    let mut jobs = programs::jobs()?;
    step("examples in documentation", cargo(&["test", "--workspace", "--doc", "--quiet"]))?;
    // The programs that the tests have built: a release would be built from nothing.
    println!("── dist");
    crate::dist::pack_twice(PROFILE)?;
    println!("── demo");
    crate::demo::show(PROFILE)?;
    let mut clients = Vec::new();
    for environment in environments {
        clients.push(environment.job()?);
    }
    let mut page = web.tests(&target_dir().join(PROFILE.folder()))?;
    page.current_dir(workspace_dir());
    clients.push(Job { name: "web page".to_owned(), command: page, num_lanes: 1 });
    // After the longest and before the shortest, so that all lanes end at about the same time.
    let after_longest = programs::LONGEST.len();
    jobs.splice(after_longest..after_longest, clients);
    println!("── tests, built and installed after {:.0} s", started.elapsed().as_secs_f64());
    programs::report(&lanes::run(jobs)?);
    println!("── mutations");
    crate::mutants::run_in_ci()?;
    step("chaos", crate::chaos::chaos(&CHAOS.map(str::to_owned))?)?;
    match arm_tests() {
        Ok(arm) => step("kernels on ARM, emulated", arm)?,
        Err(lack) => println!("── kernels on ARM, emulated: left out, for there is no {lack}"),
    }
    println!("── everything passed in {:.0} s", started.elapsed().as_secs_f64());
    Ok(())
}

fn step(name: &str, mut command: Command) -> anyhow::Result<()> {
    println!("── {name}");
    let started = Instant::now();
    let status = command
        .current_dir(workspace_dir())
        .status()
        .with_context(|| format!("starting {:?}", command.get_program()))?;
    ensure!(status.success(), "{name} failed: {status}\nhint: run it alone: {command:?}");
    println!("   {name} took {:.0} s", started.elapsed().as_secs_f64());
    Ok(())
}

fn cargo(args: &[&str]) -> Command {
    let mut command = command("cargo");
    command.args(args);
    command
}

/// Returns the command for the kernels' tests for 64-bit ARM under QEMU, or what this machine lacks
/// for them.
fn arm_tests() -> Result<Command, &'static str> {
    const TARGET: &str = "aarch64-unknown-linux-gnu";
    const LINKER: &str = "aarch64-linux-gnu-gcc";
    const EMULATOR: &str = "qemu-aarch64";
    if in_path(LINKER).is_none() {
        return Err("aarch64-linux-gnu-gcc (Debian: gcc-aarch64-linux-gnu, libc6-dev-arm64-cross)");
    }
    if in_path(EMULATOR).is_none() {
        return Err("qemu-aarch64 (Debian: qemu-user)");
    }
    let mut print = command("rustc");
    let libraries = print.args(["--print", "target-libdir", "--target", TARGET]).output();
    let libraries = libraries.map(|it| String::from_utf8_lossy(&it.stdout).trim().to_owned());
    if !libraries.is_ok_and(|dir| !dir.is_empty() && Path::new(&dir).is_dir()) {
        return Err("Rust library for it (rustup target add aarch64-unknown-linux-gnu)");
    }
    let mut tests = cargo(&["test", "--release", "--quiet"]);
    tests.args(["-p", "jackalope-simd", "-p", "jackalope-kernels"]);
    tests.args(["--target", TARGET, "--tests"]);
    tests.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER);
    let runner = format!("{EMULATOR} -cpu max -L /usr/aarch64-linux-gnu");
    tests.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner);
    // Emulation is slow; the same properties have had many more cases natively.
    tests.env("PROPTEST_CASES", "16").env("RUST_BACKTRACE", "0");
    Ok(tests)
}
