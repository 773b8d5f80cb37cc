//! `jackalope monitor`: shows the status repeatedly.

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::Context;
use jackalope_console::output;

use super::status::Report;
use crate::args::operate::MonitorArgs;
use crate::environment::Environment;

/// Default interval in seconds.
const INTERVAL_SECONDS: u64 = 5;

/// Variable that sets the interval.
const MONITOR_INTERVAL: &str = "MONITOR_INTERVAL";

/// Moves the cursor to the top left corner of the terminal and clears everything below.
const CLEAR: &str = "\u{1b}[H\u{1b}[J";

pub(crate) async fn monitor(args: MonitorArgs, environment: &Environment) -> anyhow::Result<()> {
    let given = environment.settings().get(MONITOR_INTERVAL).map(|text| {
        let seconds: Option<u64> = text.parse().ok().filter(|it| (1..=3600).contains(it));
        seconds.with_context(|| {
            format!("{MONITOR_INTERVAL} is `{text}`\nhint: give seconds between 1 and 3600")
        })
    });
    let interval = match (args.interval, given) {
        (Some(interval), _) => interval,
        (None, Some(given)) => given?,
        (None, None) => INTERVAL_SECONDS,
    };
    let redraws = !args.json && std::io::stdout().is_terminal();
    let mut num_left = args.count;
    while num_left != Some(0) {
        let report = tokio::select! {
            report = Report::take(environment) => report?,
            _ = tokio::signal::ctrl_c() => return Ok(()),
        };
        match (args.json, redraws) {
            (true, _) => output::line(&report.0)?,
            (false, true) => output::line(format_args!("{CLEAR}{}", report.text()))?,
            (false, false) => output::line(format_args!("{}\n", report.text()))?,
        }
        num_left = num_left.map(|it| it - 1);
        if num_left == Some(0) {
            break;
        }
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(interval)) => {}
            _ = tokio::signal::ctrl_c() => return Ok(()),
        }
    }
    Ok(())
}
