//! `jackalope pack DIR` (hidden): writes the files of an installation that the programs know
//! themselves, in the layout that `bootstrap` uses: programs and libraries, man pages, completions.
//! `cargo xtask dist` adds what does not come from the programs.

use std::fs;
use std::path::Path;

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;
use jackalope_console::output;
use jackalope_fleet::install::Bundle;
use jackalope_fleet::local::find_rank_program;
use jackalope_fleet::nodes::own_program;
use serde_json::json;

use crate::args::{Args, PackArgs};

/// Folder of the man pages in an installation.
const MAN_PAGES: &str = "share/man/man1";

/// Shells, and where their completions lie in an installation.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "share/bash-completion/completions/jackalope"),
    (Shell::Zsh, "share/zsh/site-functions/_jackalope"),
    (Shell::Fish, "share/fish/vendor_completions.d/jackalope.fish"),
];

pub(crate) fn run(args: &PackArgs) -> anyhow::Result<()> {
    let bundle = Bundle::of_programs(&own_program()?, &find_rank_program()?)?;
    let dir = &args.dir;
    bundle.copy_to(dir).with_context(|| format!("copying to {}", dir.display()))?;
    let pages = dir.join(MAN_PAGES);
    fs::create_dir_all(&pages)?;
    clap_mangen::generate_to(Args::command(), &pages).context("writing man pages")?;
    for (shell, place) in COMPLETIONS {
        let path = dir.join(place);
        fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Args::command(), "jackalope", &mut script);
        fs::write(&path, script).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(output::line(json!({
        "id": bundle.id(), "version": env!("CARGO_PKG_VERSION"), "system": bundle.system(),
    }))?)
}
