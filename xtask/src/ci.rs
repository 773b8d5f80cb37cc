//! `cargo xtask ci`: runs exactly the checks of CI, in the same order. Packages are installed while the
//! programs are built. Programs with tests run several at a time; what measures time, or uses all cores to
//! build, runs alone.

mod clients;
mod compiler;
mod lanes;
mod programs;

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, ensure};

use self::clients::{ENVIRONMENTS, Environment};
use self::compiler::Compiler;
pub(crate) use self::compiler::run_as_compiler;
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
    let mut format = command("cargo");
    step("format", format.args(["fmt", "--all", "--check"]))?;
    println!("── tidy");
    crate::tidy::run(&[])?;
    let compiler = Compiler::prepare()?;
    // Tests of the commands start both programs, and `cargo test` builds only those of the tested crate.
    // Building programs and tests together builds every dependency once, with the features of both.
    // Clients speak to the same programs: they check arithmetic and assertions, which released ones do not.
    let mut build = compiler.cargo(&["build", "--workspace", "--all-targets"]);
    step("programs and tests, their lints and documentation", &mut build)?;
    let mut jobs = programs::jobs(&compiler)?;
    let mut examples = compiler.cargo(&["test", "--workspace", "--doc", "--quiet"]);
    step("examples in documentation", &mut examples)?;
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
    let mutations = compiler.xtask(&["mutants", "--of-ci"]);
    clients.push(Job { name: "mutations".to_owned(), command: mutations, num_lanes: 1 });
    // After the longest and before the shortest, so that all lanes end at about the same time.
    let after_longest = programs::LONGEST.len();
    jobs.splice(after_longest..after_longest, clients);
    println!("── tests, built and installed after {:.0} s", started.elapsed().as_secs_f64());
    programs::report(&lanes::run(jobs)?);
    let chaos = crate::chaos::chaos(compiler.cargo(&[]), &CHAOS.map(str::to_owned));
    step("chaos", &mut chaos?)?;
    match arm_tests() {
        Ok(mut arm) => step("kernels on ARM, emulated", &mut arm)?,
        Err(lack) => println!("── kernels on ARM, emulated: left out, for there is no {lack}"),
    }
    println!("── everything passed in {:.0} s", started.elapsed().as_secs_f64());
    Ok(())
}

fn step(name: &str, command: &mut Command) -> anyhow::Result<()> {
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
    let mut tests = command("cargo");
    tests.args(["test", "--release", "--quiet", "-p", "jackalope-simd", "-p", "jackalope-kernels"]);
    tests.args(["--target", TARGET, "--tests"]);
    tests.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER);
    let runner = format!("{EMULATOR} -cpu max -L /usr/aarch64-linux-gnu");
    tests.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner);
    // Emulation is slow; the same properties have had many more cases natively.
    tests.env("PROPTEST_CASES", "16").env("RUST_BACKTRACE", "0");
    Ok(tests)
}
