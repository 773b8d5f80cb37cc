//! Arguments of `plan`.

use std::path::PathBuf;

use super::hosts::OverArg;
use super::{EncryptArg, SplitArg};

#[derive(Debug, clap::Args)]
pub(crate) struct PlanArgs {
    /// Directory of the checkpoint, or ORG/NAME of a model on this machine.
    #[arg(long, value_name = "DIR|ORG/NAME")]
    pub(crate) model: PathBuf,
    /// Machines: a hostfile, or SSH host names separated by commas. Default: this machine.
    #[arg(long, value_name = "FILE|NAMES")]
    pub(crate) hosts: Option<String>,
    /// Plan for the machines that `jackalope discover` finds; with `=N`, wait until N are found.
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "0", value_parser = clap::value_parser!(u16).range(0..=64), conflicts_with = "hosts")]
    pub(crate) discover: Option<u16>,
    /// Port of the agents to discover.
    #[arg(long, value_name = "PORT", default_value_t = 18081, value_parser = clap::value_parser!(u16).range(1..), requires = "discover")]
    pub(crate) agent_port: u16,
    /// Maximum context length in tokens. Default: 8192, or the model's if that is shorter.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) context: Option<u32>,
    /// Number of machines to use. Default: the smallest number that holds the model.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) machines: Option<u32>,
    /// Split every layer over the ranks (`tensor`), or give each rank whole layers (`pipeline`).
    /// Default: the one with the faster estimate.
    #[arg(long, value_enum)]
    pub(crate) split: Option<SplitArg>,
    /// Free memory to assume, e.g. `mac1=48GiB,mac2=20GiB`, or one size for every machine that is not
    /// named.
    #[arg(long, value_delimiter = ',', value_name = "NAME=SIZE", value_parser = parse_memory)]
    pub(crate) memory: Vec<MemoryArg>,
    /// Link to assume between machines without RDMA devices.
    #[arg(long, value_enum, default_value_t = OverArg::Ethernet)]
    pub(crate) over: OverArg,
    /// Which connections between ranks `serve` will encrypt; the plan shows it for each.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = EncryptArg::Auto)]
    pub(crate) encrypt_data: EncryptArg,
    /// Command to run as ssh, optionally with arguments (JACKALOPE_SSH).
    #[arg(long, value_name = "COMMAND")]
    pub(crate) ssh: Option<String>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The memory of one machine, or of all machines.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct MemoryArg {
    pub(crate) name: Option<String>,
    pub(crate) bytes: u64,
}

pub(crate) fn parse_memory(text: &str) -> Result<MemoryArg, String> {
    let (name, size) = match text.rsplit_once('=') {
        Some((name, size)) => (Some(name.to_owned()), size),
        None => (None, text),
    };
    let bytes = parse_size(size).ok_or("expected a size such as 48GiB or 512MiB")?;
    Ok(MemoryArg { name, bytes })
}

pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    parse_size(text).ok_or_else(|| "expected a size such as 48GiB or 512MiB".to_owned())
}

/// A number with a unit; without one it is bytes.
fn parse_size(text: &str) -> Option<u64> {
    const UNITS: [(&str, f64); 11] = [
        ("KiB", 1024.0),
        ("MiB", 1_048_576.0),
        ("GiB", 1_073_741_824.0),
        ("TiB", 1_099_511_627_776.0),
        ("KB", 1e3),
        ("MB", 1e6),
        ("GB", 1e9),
        ("TB", 1e12),
        ("M", 1_048_576.0),
        ("G", 1_073_741_824.0),
        ("B", 1.0),
    ];
    let text = text.trim();
    let unit = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, bytes)));
    let (number, bytes) = unit.unwrap_or((text, &1.0));
    let number: f64 = number.trim().parse().ok()?;
    let size = number * bytes;
    // Beyond 2^53 bytes nothing is exact, and no machine has so much.
    (0.0..=9e15).contains(&size).then_some(size as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_understood_with_their_units() {
        let cases = [
            ("64GiB", 64 << 30),
            ("64G", 64 << 30),
            ("1.5 MiB", 3 << 19),
            ("2GB", 2_000_000_000),
            ("7", 7),
        ];
        for (text, wanted) in cases {
            assert_eq!(parse_size(text), Some(wanted), "{text}");
        }
        for text in ["", "GiB", "many", "-1GiB", "inf", "NaN", "1e300TB", "5 apples"] {
            assert_eq!(parse_size(text), None, "{text}");
        }
        let named = MemoryArg { name: Some("me@mac1".to_owned()), bytes: 1 << 30 };
        assert_eq!(parse_memory("me@mac1=1GiB"), Ok(named));
        assert_eq!(parse_memory("1GiB"), Ok(MemoryArg { name: None, bytes: 1 << 30 }));
    }
}
