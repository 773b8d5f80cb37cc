//! `jackalope resume`: restores cables and server after a reboot.
//!
//! After a restart, a Mac has its Thunderbolt ports in a bridge and without addresses, and no
//! process of Jackalope runs. The setting that enables RDMA survives, unless the system was
//! reinstalled.

use std::time::{Duration, Instant};

use anyhow::bail;
use jackalope_console::output;
use jackalope_deploy::server_record::{ServeRecord, ServerStart};

use super::start::{Outcome, begin, report};
use super::start_lock::StartLock;
use crate::args::operate::ResumeArgs;
use crate::autoconfig;
use crate::client::off_runtime;
use crate::environment::Environment;

pub(crate) async fn resume(args: ResumeArgs, environment: &Environment) -> anyhow::Result<()> {
    let home = environment.home()?;
    let shell = environment.shell(args.ssh.as_deref());
    off_runtime(move || {
        let Some(start) = ServerStart::last(&home) else {
            bail!(
                "nothing was started on this machine yet\n\
                 hint: `jackalope start --model DIR`; its arguments are remembered"
            );
        };
        if args.json && !args.yes && !args.dry_run {
            bail!("`--json` cannot ask for confirmation\nhint: add `--yes`");
        }
        autoconfig::again(
            &home,
            &shell,
            autoconfig::ConfirmOptions { dry_run: args.dry_run, yes: args.yes, json: args.json },
        )?;
        let json = args.json;
        let deadline = Instant::now() + Duration::from_secs(args.wait);
        let take_lock = || StartLock::take(&home, deadline);
        let _lock = (!args.dry_run).then(take_lock).transpose()?;
        if let Some(running) = ServeRecord::running(&home) {
            return report(&running, Outcome { event: "runs", json }, &home);
        }
        if args.dry_run {
            let (cwd, command) = (start.cwd.display(), start.public_command());
            return Ok(output::line(format_args!("in {cwd}: {command}"))?);
        }
        begin(&home, &start, deadline, Outcome { event: "resumed", json })
    })
    .await
}
