//! Python packages of tests and references, in environments below `target`. uv installs them: it takes a
//! tenth of the processor time of pip.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, anyhow};

use crate::process::{command, env, quietly, target_dir, workspace_dir};

/// The installer, a package of Python itself.
const UV: &str = "uv==0.13.9";

/// Name of the file that says that an environment is whole: what an interrupted installation has left cannot be
/// mended by another one.
const INSTALLED: &str = "installed";

/// Settings of pip, and the variables by which uv is told the same.
const SETTINGS: [(&str, &str); 8] = [
    ("cert", "SSL_CERT_FILE"),
    ("default-timeout", "UV_HTTP_TIMEOUT"),
    ("timeout", "UV_HTTP_TIMEOUT"),
    ("extra-index-url", "UV_INDEX"),
    ("find-links", FIND_LINKS),
    ("index-url", "UV_DEFAULT_INDEX"),
    ("proxy", "ALL_PROXY"),
    ("trusted-host", "UV_INSECURE_HOST"),
];

/// Folders and pages with packages, separated by commas. uv refuses folders that do not exist.
const FIND_LINKS: &str = "UV_FIND_LINKS";

/// Returns the interpreter of an environment with the packages, made if there is none: `wanted` is what pip
/// takes, such as `mlx==0.32.4` or `-r requirements.txt`.
///
/// # Errors
/// Fails if there is no Python, or the packages cannot be installed.
pub(crate) fn environment(dir: &Path, wanted: &[&str]) -> anyhow::Result<PathBuf> {
    static INSTALLER: OnceLock<Result<Installer, String>> = OnceLock::new();
    let installer =
        INSTALLER.get_or_init(|| Installer::prepare().map_err(|err| format!("{err:#}")));
    let installer = installer.as_ref().map_err(|reason| anyhow!("{reason}"))?;
    let (python, mark) = (dir.join("bin/python"), dir.join(INSTALLED));
    if !mark.is_file() {
        let make = ["venv", "--clear", "--python", &system_python()];
        quietly(installer.command().args(make).arg(dir))?;
    }
    let mut install = installer.command();
    install.args(["pip", "install", "--python"]).arg(&python).args(wanted);
    // Files of requirements are named from there.
    quietly(install.current_dir(workspace_dir()))?;
    fs::write(&mark, []).with_context(|| format!("writing {}", mark.display()))?;
    Ok(python)
}

/// uv, and what it has to know of this machine.
struct Installer {
    program: PathBuf,
    settings: BTreeMap<&'static str, String>,
}

impl Installer {
    fn prepare() -> anyhow::Result<Installer> {
        let dir = target_dir().join("uv");
        let [python, program] = ["bin/python", "bin/uv"].map(|name| dir.join(name));
        let installed = dir.join(INSTALLED);
        if fs::read_to_string(&installed).ok().as_deref() != Some(UV) {
            let mut make = command(&system_python());
            quietly(make.args(["-m", "venv", "--clear"]).arg(&dir)).context(
                "python3 -m venv failed\nhint: install Python 3.10 or newer; on Debian and Ubuntu, python3-venv too",
            )?;
            let mut install = command(&python.to_string_lossy());
            quietly(install.args(["-m", "pip", "install", "--quiet", "--no-compile", UV]))?;
            fs::write(&installed, UV)
                .with_context(|| format!("writing {}", installed.display()))?;
        }
        let mut config = command(&python.to_string_lossy());
        let config = config.args(["-m", "pip", "config", "list"]).output();
        let config = config.with_context(|| format!("starting {}", python.display()))?;
        let settings = settings(&String::from_utf8_lossy(&config.stdout));
        Ok(Installer { program, settings })
    }

    fn command(&self) -> Command {
        let mut uv = command(&self.program.to_string_lossy());
        uv.arg("--quiet").env("UV_CACHE_DIR", target_dir().join("uv/cache"));
        let own = self.settings.iter().filter(|(name, _)| env(name).is_none());
        uv.envs(own);
        uv
    }
}

/// Returns variables for uv from the output of `pip config list`, such as `global.cert='/etc/ca.pem'`. Those of
/// pip's environment (`:env:`) come before those of its files.
fn settings(listed: &str) -> BTreeMap<&'static str, String> {
    let mut found = BTreeMap::new();
    let (of_env, of_files): (Vec<&str>, Vec<&str>) =
        listed.lines().partition(|line| line.starts_with(":env:"));
    for line in of_files.into_iter().chain(of_env) {
        let Some((key, value)) = line.split_once('=') else { continue };
        let key = key.rsplit_once('.').map_or(key, |(_, key)| key);
        let known = SETTINGS.iter().find(|(name, _)| *name == key);
        let Some((_, variable)) = known else { continue };
        let value = value.trim_matches(['\'', '"']).replace("\\n", " ");
        let words = value.split_whitespace();
        let value = match *variable {
            FIND_LINKS => words.filter(|it| is_there(it)).collect::<Vec<_>>().join(","),
            _ => words.collect::<Vec<_>>().join(" "),
        };
        if !value.is_empty() {
            found.insert(*variable, value);
        }
    }
    found
}

/// Whether this is the URL of a page, or a folder that exists.
fn is_there(place: &str) -> bool {
    place.contains("://") || Path::new(place).exists()
}

/// Returns `PYTHON`, or the default name.
fn system_python() -> String {
    env("PYTHON").map_or("python3".to_owned(), |python| python.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uv_hears_what_pip_was_told() {
        let listed = ":env:.cert='/etc/own.pem'\n:env:.disable-pip-version-check='1'\n\
            :env:.find-links='/ /nowhere/at/all https://example.com/wheels'\n\
            global.cert='/etc/all.pem'\nglobal.index-url=\"https://example.com/simple\"\n\
            install.extra-index-url='\\nhttps://a.example\\nhttps://b.example'\nno setting\n";
        let expected = [
            ("SSL_CERT_FILE", "/etc/own.pem"),
            ("UV_DEFAULT_INDEX", "https://example.com/simple"),
            ("UV_FIND_LINKS", "/,https://example.com/wheels"),
            ("UV_INDEX", "https://a.example https://b.example"),
        ];
        let expected = expected.map(|(name, value)| (name, value.to_owned()));
        assert_eq!(settings(listed), BTreeMap::from(expected));
        assert_eq!(settings(""), BTreeMap::new());
    }
}
