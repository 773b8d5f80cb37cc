//! Parses the output of the scripts.

use jackalope_fleet::facts::{Section, ToolEnding};

use super::{Echo, ModelFile};

/// Parses the list of a model's files; `None` if there is no such folder.
pub(super) fn model_files(text: &str) -> Option<Vec<ModelFile>> {
    let (_, list) = text.split_once("@@folder\n")?;
    let files = list.lines().filter_map(|line| {
        let mut words = line.splitn(3, ' ');
        let bytes = words.next()?.parse().ok()?;
        let sha256 = words.next().filter(|it| *it != "-").map(str::to_owned);
        Some(ModelFile { name: words.next()?.to_owned(), bytes, sha256 })
    });
    Some(files.collect())
}

/// Parses the output of `ping` on macOS and on Linux.
pub(super) fn echo(section: Option<&Section>) -> Echo {
    let Some(section) = section else { return Echo::Untried };
    if matches!(section.ending, ToolEnding::Missing(_)) {
        return Echo::Untried;
    }
    // `round-trip min/avg/max/stddev = 0.4/0.5/0.6/0.1 ms`, on Linux `rtt min/avg/max/mdev = …`.
    let times =
        section.text.lines().find_map(|line| line.split_once("min/avg/max")?.1.split_once("= "));
    let mean = times.and_then(|(_, times)| times.split('/').nth(1)?.parse::<f64>().ok());
    match mean {
        Some(mean_ms) => Echo::Answers { mean_us: mean_ms * 1000.0 },
        None if ["No route to host", "Network is unreachable", "Unreachable"]
            .iter()
            .any(|it| section.text.contains(it)) =>
        {
            Echo::NoRoute
        }
        None => Echo::Silent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pings_of_both_systems_are_read() {
        let check = |text: &str, ending, wanted| {
            let section = Section { text: text.to_owned(), ending };
            assert_eq!(echo(Some(&section)), wanted, "{text}");
        };
        check(
            "3 packets transmitted, 3 packets received, 0.0% packet loss\n\
             round-trip min/avg/max/stddev = 0.312/0.498/0.611/0.131 ms",
            ToolEnding::Status(0),
            Echo::Answers { mean_us: 498.0 },
        );
        check(
            "rtt min/avg/max/mdev = 0.020/0.025/0.030/0.004 ms",
            ToolEnding::Status(0),
            Echo::Answers { mean_us: 25.0 },
        );
        check("ping: sendto: No route to host", ToolEnding::Status(2), Echo::NoRoute);
        check("3 packets transmitted, 0 packets received", ToolEnding::Stuck, Echo::Silent);
        check("", ToolEnding::Missing("ping".to_owned()), Echo::Untried);
    }
}
