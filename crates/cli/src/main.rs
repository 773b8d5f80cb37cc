//! `jackalope`: connects arguments to crates. It decides nothing but the output of a command.

mod agent;
mod args;
mod autoconfig;
mod bench;
mod client;
mod config;
mod console;
mod convert;
mod discover;
mod doctor;
mod edge;
mod environment;
mod fingerprint;
mod generate;
mod hosts;
mod install;
mod keys;
mod launch;
mod link;
mod models;
mod openapi;
mod operate;
mod pack;
mod plan;
mod progress;
mod pull;
mod rank;
mod report;
mod serve;
mod service;
mod split;
mod synth;
mod token;
mod trust;
mod worker;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use jackalope_console::output::OutputError;
use jackalope_protocol::log::{self, FLUSH_TIMEOUT, LogWriter, RecentLines};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt};

use crate::args::{Args, Command};
use crate::config::Resolved;
use crate::environment::Environment;
use crate::report::{INTERRUPTED, Interrupted};

/// Filter of the lines that stay in memory.
const KEPT_LOG: &str = "warn,jackalope=info";

fn main() -> ExitCode {
    let environment = Environment::read(config::setting_names());
    let has_colors = !environment.no_color && std::io::stderr().is_terminal();
    let words: Vec<String> =
        std::env::args_os().map(|it| it.to_string_lossy().into_owned()).collect();
    if words.len() == 1 && std::io::stdout().is_terminal() {
        return match console::welcome(&environment) {
            Ok(()) => ExitCode::SUCCESS,
            Err(err) => failed(&err, has_colors),
        };
    }
    let resolved = match config::resolve(words.clone(), environment.settings()) {
        Ok(resolved) => resolved,
        Err(err) => {
            return failed(&err, has_colors);
        }
    };
    let parsed = match resolved.words == words {
        // The arguments as the system passed them, even if they are not UTF-8.
        true => Args::try_parse(),
        false => Args::try_parse_from(&resolved.words),
    };
    let args = match parsed {
        Ok(args) => args,
        Err(err) => {
            let hint = args::foreign::hint(&err);
            // Fails if the reader is gone.
            drop(err.print());
            if let Some(hint) = hint {
                eprintln!("hint: {hint}");
            }
            return ExitCode::from(u8::try_from(err.exit_code()).unwrap_or(1));
        }
    };
    log::report_panics();
    keys::warn_of_typed(&words);
    let default = if args.verbose { "info" } else { resolved.log_level.unwrap_or("warn") };
    start_log(default, has_colors);
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(err) => {
            return failed(&anyhow::Error::new(err).context("starting the runtime"), has_colors);
        }
    };
    let result = runtime.block_on(run(args.command, &resolved, &environment));
    // A thread that waits for terminal input must not delay the end.
    runtime.shutdown_background();
    let code = match result {
        Ok(code) => code,
        Err(err) if err.downcast_ref().is_some_and(OutputError::is_closed) => ExitCode::SUCCESS,
        Err(err) if err.is::<Interrupted>() => {
            log::line(&report::text(&err));
            ExitCode::from(INTERRUPTED)
        }
        Err(err) => return failed(&err, has_colors),
    };
    log::flush(FLUSH_TIMEOUT);
    code
}

/// Starts the log: to standard error, and to memory, where the web page reads it. `default` filters the
/// former unless `RUST_LOG` is set.
fn start_log(default: &str, has_colors: bool) {
    let printed = EnvFilter::try_from_default_env().unwrap_or_else(|_| default.into());
    let to_stderr = fmt::layer().with_writer(LogWriter::new).with_ansi(has_colors);
    let to_memory = fmt::layer().with_writer(RecentLines::new).with_ansi(false);
    tracing_subscriber::registry()
        .with(to_stderr.with_filter(printed))
        .with(to_memory.with_filter(EnvFilter::new(KEPT_LOG)))
        .init();
}

fn failed(err: &anyhow::Error, has_colors: bool) -> ExitCode {
    log::line(&report::with_label(&report::text(err), has_colors));
    log::flush(FLUSH_TIMEOUT);
    ExitCode::FAILURE
}

async fn run(
    command: Command,
    resolved: &Resolved,
    environment: &Environment,
) -> anyhow::Result<ExitCode> {
    match command {
        Command::Serve(args) if args.only_check => serve::check(*args, environment),
        Command::Serve(args) => serve::run(*args, resolved, environment).await,
        Command::Start(args) => operate::start(*args, resolved, environment).await,
        Command::Stop(args) => operate::stop(args, environment).await,
        Command::Restart(args) => operate::restart(args, environment).await,
        Command::Resume(args) => operate::resume(args, environment).await,
        Command::Status(args) => return operate::status(args, environment).await,
        Command::Monitor(args) => operate::monitor(args, environment).await,
        Command::Logs(args) => operate::logs(args, environment).await,
        Command::Health(args) => return operate::health(args, environment).await,
        Command::Metrics(args) => return operate::metrics(args, environment).await,
        Command::Queue(args) => return operate::queue(args, environment).await,
        Command::Served(args) => return operate::served(args, environment).await,
        Command::Test(args) => return operate::test(args, environment).await,
        Command::Support(args) => return operate::support(&args, environment),
        Command::KillAll(args) => return operate::kill_all(args, environment).await,
        Command::Config(args) => config::config(&args, environment),
        Command::Openapi(args) => openapi::run(&args),
        Command::Completions(args) => config::completions(&args),
        Command::CommandsPage => config::commands_page(),
        Command::Pack(args) => pack::run(&args),
        Command::Chat(args) => console::chat(args, environment).await,
        Command::Demo(args) => console::demo(args, environment).await,
        Command::Top(args) => console::top(args, environment).await,
        Command::Generate(args) => generate::run(args, environment).await,
        Command::Bench(args) => bench::run(*args, environment).await,
        Command::Pull(args) => pull::run(args, environment).await,
        Command::Models(args) => models::run(args, environment).await,
        Command::Agent(args) => agent::run(&args, environment).await,
        Command::Service(args) => return service::run(&args, environment),
        Command::Rank(args) => return rank::run(&args, environment).await,
        Command::Worker(args) => return worker::run(args, environment).await,
        Command::Bootstrap(args) => install::bootstrap(args, environment).await,
        Command::Sync(args) => install::sync(args, environment).await,
        Command::Uninstall(args) => install::uninstall(args, environment).await,
        Command::Trust(args) => trust::run(&args, environment),
        Command::Token(args) => token::run(&args, environment),
        Command::Launch(args) => return launch::run(args, environment).await,
        Command::Link(args) => link::run(&args, environment).await,
        Command::Hosts(args) => hosts::run(args, environment).await,
        Command::Plan(args) => plan::run(&args, environment),
        Command::Synth(args) => synth::run(&args),
        Command::Discover(args) => discover::run(args, environment).await,
        Command::Doctor(args) => doctor::run(&args, environment),
        Command::Autoconfig(args) => autoconfig::run(&args, environment),
        Command::ClusterInfo(args) => fingerprint::cluster_info(&args, environment),
        Command::Fingerprint(args) => fingerprint::run(&args),
    }
    .map(|()| ExitCode::SUCCESS)
}
