//! Tasks of the workspace: `cargo xtask <task>`.
//!
//! Each task is a module with one `run(&[String])`; the table below is the complete dispatch.
//! Nothing here is part of the released programs.
#![expect(clippy::print_stdout, reason = "tasks speak to people and scripts")]

mod bench;
mod chaos;
mod ci;
mod demo;
mod dist;
mod golden;
mod gpu_check;
mod licences;
mod loc;
mod mlx;
mod mutants;
mod process;
mod python;
mod running;
mod sample;
mod tidy;
mod web;

use std::process::ExitCode;

/// One task: its name, what it does in one line, and its code.
struct Task {
    name: &'static str,
    about: &'static str,
    run: fn(&[String]) -> anyhow::Result<()>,
}

const TASKS: &[Task] = &[
    Task {
        name: "mlx",
        about: "download the pinned official MLX library for this platform to target/",
        run: mlx::run,
    },
    Task {
        name: "golden",
        about: "regenerate mlx-lm's results for the models' test checkpoints",
        run: golden::run,
    },
    Task {
        name: "demo",
        about: "build everything and run the shipped model over two ranks",
        run: demo::run,
    },
    Task {
        name: "dist",
        about: "pack both programs and all that they need into an archive for this platform",
        run: dist::run,
    },
    Task {
        name: "tidy",
        about: "check what the compiler does not: sizes, names, dependency directions, documents",
        run: tidy::run,
    },
    Task {
        name: "web",
        about: "compare the web page with its source and test it in a browser; `build` builds it",
        run: web::run,
    },
    Task {
        name: "bench",
        about: "compare the CPU kernels with the machine's limits (kernels), or jackalope with its peers (peers)",
        run: bench::run,
    },
    Task {
        name: "gpu-check",
        about: "check and measure this machine's GPU, or bundle the check for one without a network",
        run: gpu_check::run,
    },
    Task {
        name: "chaos",
        about: "run a server under random faults from a seed, and report lost and changed streams and pauses",
        run: chaos::run,
    },
    Task {
        name: "mutants",
        about: "apply mutations to a copy of the workspace, and check that tests find each",
        run: mutants::run,
    },
    Task { name: "loc", about: "count lines of code, tests and comments by crate", run: loc::run },
    Task {
        name: "sample",
        about: "print a random sample of doc comments, option help and API rows for review",
        run: sample::run,
    },
    Task { name: "ci", about: "run all checks of CI, in the same order", run: ci::run },
];

fn main() -> ExitCode {
    if let Some(ended) = ci::run_as_compiler() {
        return ended;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some(task) = args.first().and_then(|name| TASKS.iter().find(|task| task.name == *name))
    else {
        eprintln!("{}", usage());
        let asked_for_help = matches!(args.first().map(String::as_str), Some("help" | "--help"));
        return if asked_for_help { ExitCode::SUCCESS } else { ExitCode::from(2) };
    };
    match (task.run)(&args[1..]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("error: {err:#}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> String {
    let mut text = String::from("usage: cargo xtask <task> [options]\n\ntasks:");
    for task in TASKS {
        text.push_str(&format!("\n  {:<8} {}", task.name, task.about));
    }
    text
}
