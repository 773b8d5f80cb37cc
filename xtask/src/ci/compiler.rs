//! The compiler of CI: it also lints and documents each crate of the workspace while it compiles it, so
//! that dependencies are compiled once for all three. Cargo starts this program in place of `rustc`
//! (`RUSTC_WORKSPACE_WRAPPER`).
//!
//! Clippy lints the code of a library or a program once: with its unit tests, where it has any. Without
//! them, the compiler says what it would warn of, such as code that only tests use.

use std::env::consts::EXE_SUFFIX;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::{Context, ensure};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::process::{command, target_dir, workspace_dir};

/// Folder with the programs of the toolchain. Set for cargo, and by it for this program.
const TOOLCHAIN: &str = "JACKALOPE_CI_TOOLCHAIN";

/// Names of the crates that are compiled with their unit tests as well, each between two commas. Set for
/// cargo, and by it for this program.
const TESTED: &str = "JACKALOPE_CI_TESTED";

/// Settings of the profile in CI. Several units of code per crate take more work to compile than one, and pay
/// only where a changed crate is compiled again; and nobody debugs what CI has built.
const OF_PROFILE: [(&str, &str); 2] =
    [("CARGO_PROFILE_DEV_CODEGEN_UNITS", "1"), ("CARGO_PROFILE_DEV_DEBUG", "false")];

/// What decides lints without being an argument of the compiler.
const SETTINGS: &str = "clippy.toml";

/// Arguments of the compiler, clippy and rustdoc beside those that cargo gives to the compiler. Links to
/// private items resolve, because these are documented as well.
const OF_COMPILER: [&str; 2] = ["-D", "warnings"];
const OF_LINTER: [&str; 3] = ["-D", "warnings", "--emit=metadata"];
const OF_DOCUMENTER: [&str; 5] =
    ["-D", "warnings", "-A", "rustdoc::private_intra_doc_links", "--document-private-items"];

/// The compiler, ready for cargo to start it.
pub(super) struct Compiler {
    path: PathBuf,
    toolchain: PathBuf,
    /// See [`TESTED`].
    tested: String,
}

impl Compiler {
    /// # Errors
    /// Fails if the toolchain lacks clippy or rustdoc, or on input or output.
    pub(super) fn prepare() -> anyhow::Result<Compiler> {
        let (toolchain, tested) = (toolchain()?, tested()?);
        let folder = target_dir().join("ci");
        fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        // Cargo knows a compiler by its path, and compiles again what another one has compiled.
        let mut settings = fs::read(workspace_dir().join(SETTINGS)).context(SETTINGS)?;
        let arguments = OF_COMPILER.iter().chain(&OF_LINTER).chain(&OF_DOCUMENTER);
        settings.extend(arguments.flat_map(|it| it.bytes()).chain(tested.bytes()));
        let hash: String =
            Sha256::digest(&settings)[..4].iter().map(|byte| format!("{byte:02x}")).collect();
        let path = std::path::absolute(folder.join(format!("compiler-{hash}{EXE_SUFFIX}")))?;
        // A copy, because the build replaces this program.
        let this = std::env::current_exe().context("finding this program")?;
        let copy = folder.join("compiler.new");
        fs::copy(&this, &copy).with_context(|| format!("copying {}", this.display()))?;
        fs::rename(&copy, &path).with_context(|| format!("writing {}", path.display()))?;
        Ok(Compiler { path, toolchain, tested })
    }

    /// Returns a command of cargo that compiles with this compiler.
    pub(super) fn cargo(&self, args: &[&str]) -> Command {
        let mut cargo = command("cargo");
        cargo.args(args).env("RUSTC_WORKSPACE_WRAPPER", &self.path);
        cargo.env(TOOLCHAIN, &self.toolchain).env(TESTED, &self.tested);
        cargo.envs(OF_PROFILE).current_dir(workspace_dir());
        cargo
    }

    /// Returns a command of this program's copy, which no build replaces.
    pub(super) fn xtask(&self, args: &[&str]) -> Command {
        let mut xtask = command(&self.path.to_string_lossy());
        xtask.args(args).current_dir(workspace_dir());
        xtask
    }
}

/// Returns the folder with the programs of the toolchain.
fn toolchain() -> anyhow::Result<PathBuf> {
    let found = command("rustc").args(["--print", "sysroot"]).output().context("starting rustc")?;
    let sysroot = String::from_utf8(found.stdout).context("rustc's folder")?;
    let toolchain = Path::new(sysroot.trim()).join("bin");
    for program in ["clippy-driver", "rustdoc"] {
        let is_there = toolchain.join(format!("{program}{EXE_SUFFIX}")).is_file();
        let toolchain = toolchain.display();
        ensure!(is_there, "{toolchain} has no {program}\nhint: rustup component add clippy");
    }
    Ok(toolchain)
}

/// Returns the value of [`TESTED`].
fn tested() -> anyhow::Result<String> {
    let mut cargo = command("cargo");
    cargo.args(["metadata", "--no-deps", "--format-version", "1"]).current_dir(workspace_dir());
    let found = cargo.output().context("starting cargo")?;
    ensure!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
    let metadata: Value = serde_json::from_slice(&found.stdout).context("cargo's metadata")?;
    let names = names_of_tested(&metadata);
    ensure!(!names.is_empty(), "cargo names no library with tests");
    Ok(format!(",{},", names.join(",")))
}

fn names_of_tested(metadata: &Value) -> Vec<String> {
    let has_unit_tests = |target: &&Value| {
        let is = |kind: &str| target["kind"][0] == kind;
        target["test"] == true && (is("lib") || is("bin"))
    };
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let targets = packages.flat_map(|it| it["targets"].as_array().into_iter().flatten());
    let names = targets.filter(has_unit_tests).filter_map(|it| it["name"].as_str());
    names.map(|it| it.replace('-', "_")).collect()
}

/// Compiles, if cargo has started this program as its compiler; `None` otherwise.
pub(crate) fn run_as_compiler() -> Option<ExitCode> {
    let toolchain = PathBuf::from(crate::process::env(TOOLCHAIN)?);
    let mut args = std::env::args_os().skip(1);
    let rustc = args.next()?;
    let args: Vec<OsString> = args.collect();
    let tested = crate::process::env(TESTED).unwrap_or_default();
    let tested = tested.to_string_lossy();
    Some(match compile(&toolchain, &tested, &rustc, &args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(err) => {
            eprintln!("error: {err:#}");
            ExitCode::FAILURE
        }
    })
}

/// Compiles, lints and documents one crate; whether all of it succeeded. `tested` is that of [`TESTED`].
fn compile(
    toolchain: &Path,
    tested: &str,
    rustc: &OsStr,
    args: &[OsString],
) -> anyhow::Result<bool> {
    let mut compiler = program(Path::new(rustc));
    compiler.args(args);
    let mut checks = Vec::new();
    if let Some(arguments) = Arguments::read(args) {
        if arguments.is_linted_with_tests(tested) {
            compiler.args(OF_COMPILER);
        } else {
            // The linter says all that the compiler would warn of.
            compiler.args(["--cap-lints", "allow"]);
            let mut linter = program(&toolchain.join("clippy-driver"));
            linter.arg(rustc).args(arguments.of_linter()).args(OF_LINTER);
            checks.push(start(linter, "ci/lints")?);
        }
        if arguments.is_documented() {
            let mut documenter = program(&toolchain.join("rustdoc"));
            documenter.args(arguments.of_documenter()).args(OF_DOCUMENTER);
            checks.push(start(documenter, "doc")?);
        }
    }
    let status = compiler.status().context("starting rustc")?;
    let mut has_succeeded = status.success();
    for check in checks {
        let output = check.wait_with_output().context("waiting for a check")?;
        // What does not compile has been reported already.
        if status.success() {
            std::io::stderr().write_all(&output.stderr)?;
        }
        has_succeeded &= output.status.success();
    }
    Ok(has_succeeded)
}

/// Starts a check, which writes below `target`.
fn start(mut check: Command, folder: &str) -> anyhow::Result<Child> {
    let folder = target_dir().join(folder);
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    // Cargo prints messages of this form; it must not be told of files that it does not know.
    check.arg("--json=diagnostic-rendered-ansi").arg("--out-dir").arg(folder);
    check.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    check.spawn().with_context(|| format!("starting {:?}", check.get_program()))
}

/// Returns a command with all variables that cargo sets for a compiler.
fn program(path: &Path) -> Command {
    #[expect(clippy::disallowed_methods, reason = "a compiler ends when it has compiled")]
    Command::new(path)
}

/// The arguments of a compiler that compiles a crate: each option with its value, if that is an argument
/// of its own.
struct Arguments(Vec<Vec<OsString>>);

impl Arguments {
    /// Options whose value is the next argument.
    const WITH_VALUE: [&str; 10] = [
        "--crate-name",
        "--crate-type",
        "--out-dir",
        "--extern",
        "--cfg",
        "--check-cfg",
        "--target",
        "-C",
        "-L",
        "-l",
    ];

    /// Options that only the compiler gets.
    const OF_COMPILER: [&str; 3] = ["--emit", "--out-dir", "--json"];

    /// Options that rustdoc gets too. Lints are not among them: it has its own.
    const OF_DOCUMENTER: [&str; 10] = [
        "--crate-name",
        "--crate-type",
        "--edition",
        "--error-format",
        "--extern",
        "--cfg",
        "--check-cfg",
        "--target",
        "--diagnostic-width",
        "-L",
    ];

    /// Reads the arguments; `None` if they only ask the compiler something.
    fn read(args: &[OsString]) -> Option<Arguments> {
        let mut groups: Vec<Vec<OsString>> = Vec::new();
        let mut rest = args.iter();
        while let Some(arg) = rest.next() {
            let has_value = Arguments::WITH_VALUE.iter().any(|it| arg == it);
            let value = rest.by_ref().take(usize::from(has_value));
            groups.push([arg].into_iter().chain(value).cloned().collect());
        }
        let arguments = Arguments(groups);
        arguments.value("--out-dir").is_some().then_some(arguments)
    }

    /// Returns the value of an option that has one in an argument of its own.
    fn value(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|group| option(group) == name)?.get(1)?.to_str()
    }

    /// Whether this is a crate that is also compiled with its unit tests, without them.
    fn is_linted_with_tests(&self, tested: &str) -> bool {
        let name = self.value("--crate-name").unwrap_or_default();
        self.is_documented() && tested.contains(&format!(",{name},"))
    }

    fn is_test(&self) -> bool {
        self.0.iter().any(|group| option(group) == "--test")
    }

    /// Whether this is a library or a program, and neither tests, an example nor a build script.
    fn is_documented(&self) -> bool {
        let is_script = self.value("--crate-name").is_some_and(|it| it.starts_with("build_script"));
        let is_example = self.value("--out-dir").is_some_and(|it| it.ends_with("examples"));
        !self.is_test() && !is_script && !is_example
    }

    fn of_linter(&self) -> impl Iterator<Item = &OsString> {
        // The compiler writes what it needs to compile the crate again, and only one program may.
        let is_incremental = |group: &[OsString]| {
            group.get(1).is_some_and(|it| it.to_string_lossy().starts_with("incremental="))
        };
        let is_shared = move |group: &&Vec<OsString>| {
            !Arguments::OF_COMPILER.contains(&option(group)) && !is_incremental(group)
        };
        self.0.iter().filter(is_shared).flatten()
    }

    fn of_documenter(&self) -> impl Iterator<Item = &OsString> {
        let is_source = |group: &[OsString]| !group[0].to_string_lossy().starts_with('-');
        let is_shared = move |group: &&Vec<OsString>| {
            is_source(group) || Arguments::OF_DOCUMENTER.contains(&option(group))
        };
        self.0.iter().filter(is_shared).flatten()
    }
}

/// Returns the name of an option, without a value in the same argument.
fn option(group: &[OsString]) -> &str {
    let first = group[0].to_str().unwrap_or_default();
    first.split_once('=').map_or(first, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Arguments with which cargo compiles a library.
    const LIBRARY: &str = "--crate-name spec --edition=2024 crates/spec/src/lib.rs --error-format=json \
        --json=diagnostic-rendered-ansi,artifacts --crate-type lib --emit=dep-info,metadata,link \
        -C opt-level=1 -C incremental=target/incremental --warn=missing_docs --check-cfg cfg(test) \
        -C metadata=0123 --out-dir target/debug/deps -L dependency=target/debug/deps \
        --extern serde=target/debug/deps/libserde-4567.rmeta";

    fn read(text: &str) -> Option<Arguments> {
        let args: Vec<OsString> = text.split_whitespace().map(OsString::from).collect();
        Arguments::read(&args)
    }

    fn joined<'a>(args: impl Iterator<Item = &'a OsString>) -> String {
        args.map(|arg| arg.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn checks_get_what_decides_about_the_code_and_write_elsewhere() {
        let library = read(LIBRARY).unwrap();
        let shared = "--crate-name spec --edition=2024 crates/spec/src/lib.rs --error-format=json \
            --crate-type lib";
        let place =
            "-L dependency=target/debug/deps --extern serde=target/debug/deps/libserde-4567.rmeta";
        assert_eq!(
            joined(library.of_linter()),
            format!(
                "{shared} -C opt-level=1 --warn=missing_docs --check-cfg cfg(test) -C metadata=0123 {place}"
            )
        );
        assert_eq!(
            joined(library.of_documenter()),
            format!("{shared} --check-cfg cfg(test) {place}")
        );
    }

    #[test]
    fn libraries_and_programs_are_documented() {
        let is_documented = |text: &str| read(text).unwrap().is_documented();
        assert!(is_documented(LIBRARY));
        assert!(is_documented(
            "--crate-name jackalope --crate-type bin --out-dir target/debug/deps"
        ));
        assert!(!is_documented("--crate-name spec --test --out-dir target/debug/deps"));
        assert!(!is_documented(
            "--crate-name cost --crate-type bin --out-dir target/debug/examples"
        ));
        assert!(!is_documented("--crate-name build_script_build --out-dir target/debug/build/mlx"));
    }

    #[test]
    fn what_does_not_compile_or_pass_the_checks_is_refused() {
        let folder = target_dir().join("ci/planted");
        fs::create_dir_all(&folder).unwrap();
        let (source, toolchain) = (folder.join("lib.rs"), toolchain().unwrap());
        let args = format!(
            "--crate-name planted --edition=2024 {} --error-format=json --crate-type lib \
             --emit=metadata --out-dir {}",
            source.display(),
            folder.display()
        );
        let compiles_with = |text: &str, tested: &str, more: &str| {
            fs::write(&source, text).unwrap();
            let args = format!("{args} {more}");
            let args: Vec<OsString> = args.split_whitespace().map(OsString::from).collect();
            compile(&toolchain, tested, OsStr::new("rustc"), &args).unwrap()
        };
        let compiles = |text: &str| compiles_with(text, ",other,", "");
        assert!(compiles("/// Does nothing.\npub fn fine() {}\n"));
        assert!(!compiles("pub fn wrong() -> u8 { true }\n"), "a type");
        assert!(!compiles("fn unused() {}\n"), "what the compiler warns of");
        assert!(!compiles("pub fn none(x: &[u8]) -> bool { x.len() == 0 }\n"), "a lint of clippy");
        assert!(!compiles("/// As [`Nothing`].\npub fn linked() {}\n"), "a link to nothing");
        // Clippy sees the code with its tests, and the compiler without them.
        let linted = "pub fn none(x: &[u8]) -> bool { x.len() == 0 }\n";
        assert!(compiles_with(linted, ",planted,", ""));
        assert!(!compiles_with(linted, ",planted,", "--test"));
        let tested = "fn used() -> u8 { 1 }\n#[test]\nfn test() { assert_eq!(used(), 1); }\n";
        assert!(compiles_with(tested, ",planted,", "--test"));
        assert!(!compiles_with(tested, ",planted,", ""), "code that only tests use");
    }

    #[test]
    fn libraries_and_programs_with_unit_tests_are_linted_with_these() {
        let metadata = serde_json::json!({"packages": [
            {"targets": [
                {"name": "jackalope-spec", "kind": ["lib"], "test": true},
                {"name": "it", "kind": ["test"], "test": true},
            ]},
            {"targets": [
                {"name": "kernels", "kind": ["lib"], "test": false},
                {"name": "rank", "kind": ["bin"], "test": true},
                {"name": "build-script-build", "kind": ["custom-build"], "test": false},
            ]},
        ]});
        assert_eq!(names_of_tested(&metadata), ["jackalope_spec", "rank"]);
        let is_linted_with_tests =
            |text: &str, tested: &str| read(text).unwrap().is_linted_with_tests(tested);
        assert!(is_linted_with_tests(LIBRARY, ",spec,rank,"));
        assert!(!is_linted_with_tests(LIBRARY, ",jackalope_spec,rank,"));
        let tests = "--crate-name spec --test --out-dir target/debug/deps";
        assert!(!is_linted_with_tests(tests, ",spec,"));
    }

    #[test]
    fn questions_to_the_compiler_are_passed_on() {
        assert!(read("-vV").is_none());
        assert!(read("- --crate-name ___ --print=file-names --crate-type bin").is_none());
    }
}
