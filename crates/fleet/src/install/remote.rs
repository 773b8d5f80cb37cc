//! The scripts that run on the other machine, and the parsers of their output.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use jackalope_protocol::{ContentHash, FilePath};

use super::{Bundle, BundleFile, Install, InstallError, PIECE_TIMEOUT, SURVEY_TIMEOUT};
use crate::home::HOME_IN_SCRIPTS;
use crate::shell::{Output, Shell, quote};

/// Exit statuses of the scripts besides 0; sysexits.h does not use these numbers.
pub(super) const NOTHING_THERE: i32 = 3;
const OTHER_OFFSET: i32 = 4;
pub(super) const DAMAGED: i32 = 5;
pub(super) const NO_START: i32 = 6;
pub(super) const NOT_OURS: i32 = 7;

/// Returns the beginning of every script: the folder, and how files are hashed.
pub(super) fn preamble() -> String {
    format!(
        "h={HOME_IN_SCRIPTS}\numask 077\n\
         if command -v sha256sum >/dev/null 2>&1; then hash() {{ sha256sum; }}\n\
         elif command -v shasum >/dev/null 2>&1; then hash() {{ shasum -a 256; }}\n\
         else hash() {{ false; }}; fi\n"
    )
}

/// The state of a machine before an installation.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// System and architecture, as printed by `uname -sm`.
    pub(super) system: String,
    pub(super) home: String,
    pub(super) free_bytes: Option<u64>,
    pub(super) hash_tool: HashTool,
    /// Files of the complete version (`whole`), of its unfinished copy (`part`), and of the version
    /// in use (`current`).
    pub(super) whole: Files,
    pub(super) part: Files,
    pub(super) current: Files,
}

pub(super) type Files = BTreeMap<FilePath, Found>;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Found {
    pub(super) bytes: u64,
    pub(super) sha256: ContentHash,
}

/// Whether the machine has a tool that hashes files.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum HashTool {
    Present,
    #[default]
    Absent,
}

impl Survey {
    /// Returns true if the machine has every file of the complete version.
    pub(super) fn has_version(&self, bundle: &Bundle) -> bool {
        let is_there = |file: &BundleFile| {
            let found = self.whole.get(&file.place);
            found.is_some_and(|it| it.bytes == file.bytes && it.sha256 == file.sha256)
        };
        bundle.files().iter().all(is_there)
    }

    fn read(text: &str) -> Survey {
        let mut survey = Survey::default();
        for line in text.lines() {
            let Some((key, rest)) = line.split_once(' ') else { continue };
            match key {
                "system" => rest.clone_into(&mut survey.system),
                "home" => rest.clone_into(&mut survey.home),
                "df" => survey.free_bytes = free_bytes(rest).or(survey.free_bytes),
                "hash" => {
                    survey.hash_tool =
                        if rest == "yes" { HashTool::Present } else { HashTool::Absent };
                }
                "whole" => survey.whole.extend(file(rest)),
                "part" => survey.part.extend(file(rest)),
                "current" => survey.current.extend(file(rest)),
                _ => {}
            }
        }
        survey
    }
}

/// Parses `SIZE HASH PLACE`.
fn file(text: &str) -> Option<(FilePath, Found)> {
    let (bytes, rest) = text.split_once(' ')?;
    let (sha256, place) = rest.split_once(' ')?;
    let found = Found { bytes: bytes.parse().ok()?, sha256: sha256.to_owned().try_into().ok()? };
    Some((place.parse().ok()?, found))
}

/// Parses the last line of `df -Pk`: the available space stands before the percentage. Counting
/// columns would fail, because the name of a file system may contain blanks.
fn free_bytes(line: &str) -> Option<u64> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let percent = words.iter().position(|word| word.ends_with('%'))?;
    let kib: u64 = words.get(percent.checked_sub(1)?)?.parse().ok()?;
    Some(kib.saturating_mul(1024))
}

/// Queries a machine and its files of the bundle; reads and hashes those files.
pub(super) fn survey(host: &str, what: Install<'_>) -> Result<Survey, InstallError> {
    let id = what.bundle.id();
    let script = preamble()
        + &format!(
            "printf 'system %s\\n' \"$(uname -sm)\"\n\
             printf 'home %s\\n' \"$h\"\n\
             d=$h; while [ ! -d \"$d\" ]; do d=$(dirname \"$d\"); done\n\
             printf 'df %s\\n' \"$(df -Pk \"$d\" | tail -n 1)\"\n\
             if hash </dev/null >/dev/null 2>&1; then echo 'hash yes'; else echo 'hash no'; exit 0; fi\n\
             look() {{ if [ -f \"$2\" ]; then n=$(wc -c <\"$2\"); s=$(hash <\"$2\"); \
             printf '%s %s %s %s\\n' \"$1\" $n \"${{s%% *}}\" \"$3\"; fi; }}\n\
             while IFS= read -r f; do\n\
             look whole \"$h/versions/{id}/$f\" \"$f\"\n\
             look part \"$h/versions/.{id}.part/$f\" \"$f\"\n\
             look current \"$h/current/$f\" \"$f\"\n\
             done\n"
        );
    let places: String = what.bundle.files().iter().map(|it| format!("{}\n", it.place)).collect();
    let ran = run(host, what.shell, &script, places.as_bytes(), SURVEY_TIMEOUT)?;
    match ran.status {
        0 => Ok(Survey::read(&ran.stdout)),
        _ => Err(InstallError::script(host.to_owned(), "looking around", &ran)),
    }
}

/// Copies a file from the version in use.
pub(super) fn copy(host: &str, what: Install<'_>, file: &BundleFile) -> Result<(), InstallError> {
    let script = preamble()
        + &part_of(what.bundle, file)
        + &format!("cp \"$h/current/\"{} \"$f\"\n", quote(file.place.as_str()));
    let ran = run(host, what.shell, &script, b"", SURVEY_TIMEOUT)?;
    match ran.status {
        0 => Ok(()),
        _ => Err(InstallError::script(host.to_owned(), "copying a file", &ran)),
    }
}

/// Returns a script that sets `$f` to a file's unfinished copy and creates the folder of that copy.
fn part_of(bundle: &Bundle, file: &BundleFile) -> String {
    let place = quote(file.place.as_str());
    let id = bundle.id();
    format!(
        "set -e\nf=\"$h/versions/.{id}.part/\"{place}\nd=$(dirname \"$f\")\n[ -d \"$d\" ] || mkdir -p \"$d\"\n"
    )
}

/// Appends a piece to a file's unfinished copy, if the copy ends where the piece begins.
pub(super) fn append(
    host: &str,
    what: Install<'_>,
    file: &BundleFile,
    offset: u64,
    piece: &[u8],
) -> Result<(), InstallError> {
    let end = offset + piece.len() as u64;
    let begin = if offset == 0 { ": >\"$f\"\n" } else { "" };
    let script = preamble()
        + &part_of(what.bundle, file)
        + begin
        + &format!(
            "n=$(wc -c <\"$f\"); [ $n -eq {offset} ] || exit {OTHER_OFFSET}\n\
             cat >>\"$f\"\n\
             n=$(wc -c <\"$f\"); [ $n -eq {end} ] || exit {OTHER_OFFSET}\n"
        );
    let ran = run(host, what.shell, &script, piece, PIECE_TIMEOUT)?;
    match ran.status {
        0 => Ok(()),
        OTHER_OFFSET => Err(InstallError::Offset {
            host: host.to_owned(),
            place: file.place.as_str().to_owned(),
        }),
        _ => Err(InstallError::script(host.to_owned(), "writing a file", &ran)),
    }
}

/// Returns a script that verifies the files, renames the folder and tries the programs, and the
/// script's standard input.
pub(super) fn finish_script(bundle: &Bundle) -> (String, String) {
    let id = bundle.id();
    let script = preamble()
        + &format!(
            "p=\"$h/versions/.{id}.part\"; v=\"$h/versions/{id}\"\n\
             while IFS=' ' read -r want mode f; do\n\
             s=$(hash <\"$p/$f\"); if [ \"${{s%% *}}\" != \"$want\" ]; then\n\
             printf '%s\\n' \"$f\"; rm -f \"$p/$f\"; exit {DAMAGED}; fi\n\
             chmod \"$mode\" \"$p/$f\" || exit 1\n\
             done\n\
             rm -rf \"$v\" && mv \"$p\" \"$v\" || exit 1\n\
             for b in jackalope jackalope-rank; do\n\
             if ! o=$(\"$v/bin/$b\" --version 2>&1 </dev/null); then\n\
             printf '%s: %s\\n' \"$b\" \"$o\"; rm -rf \"$p\"; mv \"$v\" \"$p\"; exit {NO_START}; fi\n\
             done\n"
        );
    let mut input = String::new();
    for file in bundle.files() {
        writeln!(input, "{} {:o} {}", file.sha256, file.mode, file.place)
            .expect("a string takes all");
    }
    (script, input)
}

/// Returns a script with which the installed program switches to itself.
pub(super) fn activate_script(id: &str) -> String {
    preamble() + &format!("exec \"$h/versions/{id}/bin/jackalope\" agent activate {id}\n")
}

/// Returns a script with which the previous program switches to itself, because the current one may
/// not start.
pub(super) fn roll_back_script() -> String {
    preamble()
        + &format!(
            "p=\"$h/previous/bin/jackalope\"\n[ -x \"$p\" ] || exit {NOTHING_THERE}\n\
             exec \"$p\" agent activate --previous </dev/null\n"
        )
}

/// Runs a script on the machine.
pub(super) fn run(
    host: &str,
    shell: &dyn Shell,
    script: &str,
    input: &[u8],
    timeout: Duration,
) -> Result<Output, InstallError> {
    shell.run(host, script, input, timeout).map_err(|source| InstallError::Shell { source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_free_stands_before_the_percentage() {
        let apple = "map auto_home  0  0  4096 100%  /System/Volumes/Data/home";
        assert_eq!(free_bytes(apple), Some(4096 << 10));
        assert_eq!(free_bytes("/dev/sda1 100 50 50 50% /a b"), Some(50 << 10));
        assert_eq!(free_bytes("nothing"), None);
    }
}
