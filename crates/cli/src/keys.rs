//! Keys and tokens that stay off the command line, which every user of a machine can read (`ps`):
//! they come from files and from the environment. Warns about secrets on the command line.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, ensure};
use jackalope_console::output;
use jackalope_deploy::server_record::{secret_flag, variable_of};

use crate::args::keys::ClientKeyArgs;

/// Maximum size of a file of keys.
const KEY_FILE_BYTES_MAX: u64 = 1 << 20;

/// Reads a file of keys, one per line, and warns if other users can read it.
///
/// # Errors
/// If the file cannot be read, is too long, or has no key.
pub(crate) fn read_file(path: &Path) -> anyhow::Result<Vec<String>> {
    let shown = path.display();
    let metadata =
        std::fs::metadata(path).with_context(|| format!("reading the file of keys {shown}"))?;
    ensure!(
        metadata.len() <= KEY_FILE_BYTES_MAX,
        "{shown} has {} bytes, which is too long for a file of keys\nhint: write one key per line",
        metadata.len()
    );
    let text = std::fs::read_to_string(path);
    let text = text.with_context(|| format!("reading the file of keys {shown}"))?;
    if metadata.is_file() && metadata.permissions().mode() & 0o077 != 0 {
        output::note(&format!(
            "warning: others can read the keys in {shown}\nhint: chmod 600 {shown}"
        ));
    }
    let lines = text.lines().map(str::trim);
    let keys = lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned);
    let keys: Vec<String> = keys.collect();
    ensure!(!keys.is_empty(), "{shown} has no key\nhint: write one key per line");
    Ok(keys)
}

/// Returns the key that a command was given for a server: from the command line, or the first of a
/// file.
///
/// # Errors
/// If the file cannot be used.
pub(crate) fn given(args: &ClientKeyArgs) -> anyhow::Result<Option<String>> {
    match &args.api_key_file {
        None => Ok(args.api_key.clone()),
        Some(path) => Ok(read_file(path)?.into_iter().next()),
    }
}

/// Warns about secrets on the command line.
pub(crate) fn warn_of_typed(words: &[String]) {
    // A program started by `launch` has flags of its own.
    let is_launch =
        words.iter().skip(1).find(|it| !it.starts_with('-')).is_some_and(|it| it == "launch");
    if is_launch {
        return;
    }
    let typed = words.iter().take_while(|it| *it != "--").filter_map(|it| secret_flag(it));
    let mut warned: Vec<&str> = Vec::new();
    for flag in typed {
        if warned.contains(&flag) {
            continue;
        }
        warned.push(flag);
        let variable = variable_of(flag);
        let remedy = match flag {
            "token" => format!("set {variable} instead"),
            _ => format!("pass `--{flag}-file FILE`, or set {variable}"),
        };
        output::note(&format!(
            "warning: every user of this machine can read `--{flag}` in the list of processes\n\
             hint: {remedy}"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_key_on_each_line() {
        let path = std::env::temp_dir().join(format!("jackalope-keys-{}", std::process::id()));
        std::fs::write(&path, "# ours\n one\n\ntwo,three\n").unwrap();
        assert_eq!(read_file(&path).unwrap(), ["one", "two,three"]);
        std::fs::write(&path, "# nothing\n\n").unwrap();
        let refusal = read_file(&path).unwrap_err().to_string();
        assert!(refusal.contains("has no key\nhint: "), "{refusal}");
        std::fs::remove_file(&path).unwrap();
        assert!(read_file(&path).unwrap_err().to_string().contains("reading the file of keys"));
    }
}
