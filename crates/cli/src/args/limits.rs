//! Tests: every flag that takes a number refuses absurd ones.

use std::time::Duration;

use clap::builder::ValueParser;
use clap::error::ErrorKind;
use clap::{Command, CommandFactory, value_parser};

use super::Args;

/// Values that no flag takes as a number, a size or a time.
const NEVER: [&str; 8] =
    ["", "-1", "NaN", "inf", "1e30", "ten", "0x10", "340282366920938463463374607431768211456"];

/// Flags for which 0 has a meaning, or is refused later with a hint: parts of a split.
const ZERO: &[&str] = &[
    "absent-after",
    "bandwidth",
    "control-port",
    "copy-port",
    "discover",
    "grace",
    "idle-unload",
    "layers",
    "lease",
    "lines",
    "linger",
    "load-wait",
    "memory-critical",
    "memory-warn",
    "min-p",
    "port",
    "prompt-ids",
    "queue-max",
    "rank",
    "retries",
    "seed",
    "share",
    "temperature",
    "top-k",
    "wait",
    "warmup",
];

/// Flags that take every number of 32 bits: lengths are bounded by the model's context, tokens by its
/// vocabulary, and sizes of memory and of payloads are larger.
const ANY: &[&str] = &[
    "context",
    "default-max-tokens",
    "gen-tokens",
    "max-tokens",
    "memory-critical",
    "memory-warn",
    "prompt-ids",
    "prompt-tokens",
    "seed",
    "sizes",
    "top-k",
];

/// A flag that takes a number, with the subcommands that lead to it.
struct Flag {
    words: Vec<String>,
    name: String,
}

fn collect(command: &Command, words: &[String], flags: &mut Vec<Flag>) {
    let numbers = [
        ValueParser::from(value_parser!(u16)),
        ValueParser::from(value_parser!(u32)),
        ValueParser::from(value_parser!(u64)),
        ValueParser::from(value_parser!(usize)),
        ValueParser::from(value_parser!(f32)),
        ValueParser::from(|text: &str| text.parse().map(Duration::from_secs)),
    ];
    for arg in command.get_arguments() {
        let kind = arg.get_value_parser().type_id();
        let is_number = numbers.iter().any(|number| number.type_id() == kind);
        if let Some(name) = arg.get_long().filter(|_| is_number && arg.get_action().takes_values())
        {
            flags.push(Flag { words: words.to_vec(), name: name.to_owned() });
        }
    }
    for inner in command.get_subcommands() {
        let words = [words, &[inner.get_name().to_owned()]].concat();
        collect(inner, &words, flags);
    }
}

impl Flag {
    fn takes(&self, value: &str) -> bool {
        let flag = format!("--{}={value}", self.name);
        let words = self.words.iter().map(String::as_str).chain([flag.as_str()]);
        let parsed =
            Args::command().try_get_matches_from(std::iter::once("jackalope").chain(words));
        let kinds = [ErrorKind::ValueValidation, ErrorKind::InvalidValue];
        !parsed.is_err_and(|err| kinds.contains(&err.kind()))
    }
}

#[test]
fn absurd_numbers_are_refused_by_every_flag() {
    let mut flags = Vec::new();
    collect(&Args::command(), &[], &mut flags);
    assert!(60 < flags.len(), "{}", flags.len());
    let mut wrong = Vec::new();
    for flag in &flags {
        let name = flag.name.as_str();
        let mut absurd = NEVER.to_vec();
        if !ZERO.contains(&name) {
            absurd.push("0");
        }
        if !ANY.contains(&name) {
            absurd.push("4294967295");
        }
        if name != "seed" {
            absurd.push("18446744073709551615");
        }
        let taken = absurd.into_iter().filter(|value| flag.takes(value));
        wrong.extend(taken.map(|value| format!("{} --{name}={value:?}", flag.words.join(" "))));
        let sane = ["1", "2", "10", "64", "1000", "8080", "0.5"];
        assert!(sane.into_iter().any(|value| flag.takes(value)), "--{name} takes no number");
    }
    assert!(wrong.is_empty(), "these are taken:\n{}", wrong.join("\n"));
}
