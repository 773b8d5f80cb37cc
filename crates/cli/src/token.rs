//! `jackalope token`: creates and prints the token that `worker p2p-mlx` and `serve --token` share.

use anyhow::{Context, ensure};
use jackalope_console::output;
use serde_json::json;

use crate::args::token::{TokenArgs, TokenCommand};
use crate::environment::Environment;

pub(crate) fn run(args: &TokenArgs, environment: &Environment) -> anyhow::Result<()> {
    let home = environment.home()?;
    let known = home.known_token()?;
    match args.command {
        TokenCommand::New { replace, json } => {
            ensure!(
                known.is_none() || replace,
                "this machine has a token already\n\
                 hint: print it with `jackalope token show`, or pass `--replace`"
            );
            let token = home.new_token()?;
            print(&token, json)?;
            if !json {
                eprintln!(
                    "on each worker: JACKALOPE_TOKEN=TOKEN jackalope worker p2p-mlx\n\
                     then here:      JACKALOPE_TOKEN=TOKEN jackalope serve --model ORG/NAME --discover \
                     --agent-port 5555"
                );
            }
            Ok(())
        }
        TokenCommand::Show { json } => {
            let token = known
                .context("this machine has no token\nhint: make one with `jackalope token new`")?;
            print(&token, json)
        }
    }
}

fn print(token: &str, json: bool) -> anyhow::Result<()> {
    if json { Ok(output::line(json!({"token": token}))?) } else { Ok(output::line(token)?) }
}
