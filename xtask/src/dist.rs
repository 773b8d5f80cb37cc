//! `cargo xtask dist`: packs both programs and everything that they need into an archive for this
//! platform.
//!
//! ```text
//! target/dist/jackalope-VERSION-PLATFORM.tar.gz          bin/, lib/, share/, SHA256SUMS, ID
//! target/dist/jackalope-VERSION-PLATFORM-symbols.tar.gz  debug information of the programs
//! target/dist/jackalope-VERSION-PLATFORM.cdx.json        its bill of materials (CycloneDX)
//! target/dist/install.sh, SHA256SUMS                     the other files of a release
//! ```
//!
//! The layout of programs and libraries is that of `bootstrap`: the program writes it itself
//! (`jackalope pack`). The same sources, tools and paths give the same bytes: files are sorted, and have
//! one date and no owner.

mod archive;
mod materials;
mod programs;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::demo::Profile;
use crate::process::{command, target_dir, workspace_dir};

const USAGE: &str = "usage: cargo xtask dist [--profile release|dev] [--url URL] [--no-build]";

/// Files of the sources, and where an installation has them.
const DOCUMENTS: [(&str, &str); 5] = [
    ("README.md", "share/doc/jackalope/README.md"),
    ("CHANGELOG.md", "share/doc/jackalope/CHANGELOG.md"),
    ("LICENSE", "share/doc/jackalope/LICENSE"),
    ("LICENSE-MIT", "share/doc/jackalope/LICENSE-MIT"),
    ("LICENSE-APACHE", "share/doc/jackalope/LICENSE-APACHE"),
];

/// The model that ships, and where an installation has it.
const MODEL: [&str; 2] = ["models/jackalope-mini", "share/jackalope/models/jackalope-mini"];

/// The line of `install.sh` that a release replaces.
const NO_URL: &str = "releases=''";

#[derive(Debug, Eq, PartialEq)]
struct DistOptions {
    profile: Profile,
    /// URL of the releases, for `install.sh`.
    url: Option<String>,
    /// Whether the programs are built first.
    builds: bool,
}

pub(crate) fn run(args: &[String]) -> anyhow::Result<()> {
    let options = parse(args)?;
    if options.builds {
        crate::mlx::run(&[])?;
        crate::demo::build(options.profile)?;
    }
    let archive = pack(&options)?;
    let bytes = fs::metadata(&archive)?.len();
    println!("{} ({:.1} MB)", archive.display(), bytes as f64 / 1e6);
    Ok(())
}

/// Packs programs that are built already, twice, and checks that the archives have the same bytes.
pub(crate) fn pack_twice(profile: Profile) -> anyhow::Result<()> {
    let options = DistOptions { profile, url: None, builds: false };
    let first = fs::read(pack(&options)?)?;
    let second = fs::read(pack(&options)?)?;
    ensure!(first == second, "packing the same files twice gave different archives");
    Ok(())
}

fn parse(args: &[String]) -> anyhow::Result<DistOptions> {
    let mut options = DistOptions { profile: Profile::Release, url: None, builds: true };
    let mut rest = args.iter();
    while let Some(option) = rest.next() {
        if option == "--no-build" {
            options.builds = false;
            continue;
        }
        let value = rest.next().with_context(|| format!("{option} needs a value\n{USAGE}"))?;
        match (option.as_str(), value.as_str()) {
            ("--profile", "release") => options.profile = Profile::Release,
            ("--profile", "dev") => options.profile = Profile::Dev,
            ("--url", url) => {
                let is_plain = !url.contains(|c: char| c.is_whitespace() || c == '\'');
                ensure!(is_plain, "{url} is no URL");
                options.url = Some(url.trim_end_matches('/').to_owned());
            }
            _ => anyhow::bail!("unknown option {option} {value}\n{USAGE}"),
        }
    }
    Ok(options)
}

/// Writes all files of a release for this platform, and returns the path of the archive.
fn pack(options: &DistOptions) -> anyhow::Result<PathBuf> {
    let out = target_dir().join("dist");
    let work = out.join("work");
    // The folder does not exist at the first run.
    fs::remove_dir_all(&work).ok();
    fs::create_dir_all(&work)?;
    let built = programs::strip(&target_dir().join(options.profile.folder()), &work)?;
    let tree = work.join("tree");
    let packed = programs::pack(&built, &tree)?;
    let text = |key: &str| packed[key].as_str().map(str::to_owned).context("`pack` names no id");
    let (version, id) = (text("version")?, text("id")?);
    let name = format!("jackalope-{version}-{}", platform(&text("system")?));
    fs::write(tree.join("ID"), format!("{id}\n"))?;
    copy_documents(&tree)?;
    let materials = materials::read(&tree)?;
    let documents = tree.join("share/doc/jackalope");
    fs::write(documents.join("THIRD-PARTY-LICENSES.txt"), materials.licences()?)?;
    let bill = format!("{:#}\n", materials.cyclone_dx(&version));
    fs::write(documents.join("jackalope.cdx.json"), &bill)?;
    fs::write(out.join(format!("{name}.cdx.json")), &bill)?;
    fs::write(tree.join("SHA256SUMS"), sums(&tree, &archive::files(&tree)?)?)?;
    archive::write(&tree, &name, &out)?;
    archive::write(&built.symbols, &format!("{name}-symbols"), &out)?;
    write_installer(options.url.as_deref(), &out)?;
    let published = [
        format!("{name}.tar.gz"),
        format!("{name}-symbols.tar.gz"),
        format!("{name}.cdx.json"),
        "install.sh".to_owned(),
    ];
    fs::write(out.join("SHA256SUMS"), sums(&out, &published.map(PathBuf::from))?)?;
    fs::remove_dir_all(&work)?;
    Ok(out.join(format!("{name}.tar.gz")))
}

/// Returns the platform as in the names of archives: `linux-x86_64`, from `Linux x86_64`.
fn platform(system: &str) -> String {
    system.to_lowercase().replace(' ', "-").replace("darwin", "macos")
}

fn copy_documents(tree: &Path) -> anyhow::Result<()> {
    let root = workspace_dir();
    let mut files = DOCUMENTS.map(|(from, to)| (root.join(from), tree.join(to))).to_vec();
    let [model, place] = MODEL;
    for file in archive::files(&root.join(model))? {
        files.push((root.join(model).join(&file), tree.join(place).join(&file)));
    }
    for (from, to) in files {
        fs::create_dir_all(to.parent().expect("it lies below the tree"))?;
        let bytes = fs::read(&from).with_context(|| format!("reading {}", from.display()))?;
        fs::write(&to, bytes)?;
    }
    Ok(())
}

fn write_installer(url: Option<&str>, out: &Path) -> anyhow::Result<()> {
    let text = fs::read_to_string(workspace_dir().join("packaging/install.sh"))?;
    ensure!(text.contains(NO_URL), "packaging/install.sh has no line {NO_URL}");
    let text = match url {
        Some(url) => text.replacen(NO_URL, &format!("releases='{url}'"), 1),
        None => text,
    };
    Ok(fs::write(out.join("install.sh"), text)?)
}

/// Returns the lines that `sha256sum -c` reads.
fn sums(dir: &Path, files: &[PathBuf]) -> anyhow::Result<String> {
    let mut text = String::new();
    for file in files {
        let bytes = fs::read(dir.join(file))?;
        let hash = Sha256::digest(&bytes).iter().map(|it| format!("{it:02x}")).collect::<String>();
        text.push_str(&format!("{hash}  {}\n", file.display()));
    }
    Ok(text)
}

/// Runs a command and returns its standard output.
fn output(program: &str, args: &[&str]) -> anyhow::Result<Vec<u8>> {
    let output = command(program)
        .args(args)
        .current_dir(workspace_dir())
        .output()
        .with_context(|| format!("starting {program}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {}\n{said}", args.join(" "), output.status);
    Ok(output.stdout)
}

/// Returns the output of `cargo metadata` for this platform.
fn metadata() -> anyhow::Result<Value> {
    let version = String::from_utf8(output("rustc", &["-vV"])?)?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.context("rustc does not name its host")?;
    let args = ["metadata", "--format-version", "1", "--locked", "--filter-platform", host];
    Ok(serde_json::from_slice(&output("cargo", &args)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn options_are_read_and_archives_are_named_by_platform() {
        let options = parse(&words("--profile dev --no-build --url https://h/r/")).unwrap();
        let url = Some("https://h/r".to_owned());
        assert_eq!(options, DistOptions { profile: Profile::Dev, url, builds: false });
        for wrong in ["--profile", "--profile fast", "--url a'b", "x y"] {
            assert!(parse(&words(wrong)).is_err(), "{wrong}");
        }
        assert_eq!(platform("Linux x86_64"), "linux-x86_64");
        assert_eq!(platform("Darwin arm64"), "macos-arm64");
    }
}
