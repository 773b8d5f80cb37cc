//! `jackalope chat`, `jackalope demo`, `jackalope top`, and `jackalope` without arguments: starts a server where one is
//! needed, and leaves the rest to the crate `console`, which talks to it over HTTP.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use jackalope_console::chat::{AnswerInterrupter, Chat, ChatConfig, ChatParams};
use jackalope_console::client::Server;
use jackalope_console::top::{self, TopConfig};
use jackalope_console::welcome::{ServerHere, Welcome};
use jackalope_console::{demo, output};
use jackalope_deploy::models::locate_loadable;
use jackalope_deploy::served::{HttpServer, served};
use jackalope_deploy::server_record::{ServeRecord, ServerStart};
use jackalope_deploy::{Cluster, RankConfig};
use jackalope_fleet::nodes::own_program;
use jackalope_fleet::trust::TrustStore;
use jackalope_server::{ServerConfig, ServerState};
use jackalope_store::Check;
use tokio::net::TcpListener;

use crate::args::operate::{AskArgs, TopArgs};
use crate::args::{ChatArgs, DemoArgs};
use crate::client::off_runtime;
use crate::environment::Environment;
use crate::report::{self, interruptible};
use crate::{operate, progress};

/// Default server.
const DEFAULT_URL: &str = "http://127.0.0.1:8080";

/// Name of a server's default model in requests.
const DEFAULT_MODEL: &str = "default";

/// The model that ships: below the folder of an installation, and in the sources.
const SHIPPED_MODELS: [&str; 2] =
    ["share/jackalope/models/jackalope-mini", "models/jackalope-mini"];

/// Number of folders above a program that are searched: `target/debug/deps`.
const LEVELS_MAX: usize = 4;

/// File of earlier lines of `chat`, in Jackalope's own folder.
const CHAT_HISTORY: &str = "chat-history";

/// Line width in columns, if the terminal does not report its own.
const COLUMNS: u16 = 80;

pub(crate) async fn chat(args: ChatArgs, environment: &Environment) -> anyhow::Result<()> {
    let named = args.model.as_ref().map(|it| it.to_string_lossy().into_owned());
    let mut params = ChatParams::default().with("max_tokens", args.max_tokens);
    if let Some(temperature) = args.temperature {
        params = params.with("temperature", temperature);
    }
    let mut config = ChatConfig {
        model: DEFAULT_MODEL.to_owned(),
        system: args.system,
        params,
        has_colors: !environment.no_color,
        history: environment.home().ok().map(|it| it.join(CHAT_HISTORY)),
    };
    let (None, Some(model)) = (&args.url, args.model) else {
        let url = args.url.as_deref().unwrap_or(DEFAULT_URL);
        let server = operate::named(url, &args.key, environment)?;
        config.model = named.unwrap_or(config.model);
        return converse(Chat::new(server, config)).await;
    };
    let ranks = args.ranks.config(environment)?;
    with_server(&model, &ranks, environment, |server| converse(Chat::new(server, config))).await
}

/// Runs the conversation on its own thread, because reading a terminal cannot be interrupted. In a
/// terminal, Ctrl-C ends the answer, and twice in a row the conversation.
async fn converse(chat: Chat) -> anyhow::Result<()> {
    let interrupter = chat.interrupter();
    let describe = |err: &anyhow::Error| report::with_label(&report::text(err), false);
    let conversation = tokio::task::spawn_blocking(move || chat.run(describe));
    tokio::select! {
        result = conversation => result?,
        () = interrupted_twice(interrupter) => Ok(()),
    }
}

async fn interrupted_twice(interrupter: AnswerInterrupter) {
    let is_terminal = std::io::stdin().is_terminal();
    loop {
        // Fails only if the signal cannot be received at all.
        if tokio::signal::ctrl_c().await.is_err() || !is_terminal || interrupter.interrupt() {
            return;
        }
    }
}

/// Starts ranks and a server for a model on a port that the system selects, and stops them after
/// `work`.
async fn with_server<W: Future<Output = anyhow::Result<()>>>(
    model: &Path,
    ranks: &RankConfig,
    environment: &Environment,
    work: impl FnOnce(Server) -> W,
) -> anyhow::Result<()> {
    let model = locate_loadable(model, &environment.local)?;
    let mut cluster = Cluster::start(&model, ranks, &environment.local).await?;
    let work = async {
        interruptible(progress::ready(&mut cluster)).await?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let state = ServerState::new(served(&model.name, &cluster), ServerConfig::default());
        let server = HttpServer::start(listener, state)?;
        let result = work(Server { url: format!("http://{}", server.addr), api_key: None }).await;
        server.stop().await;
        result
    };
    let result = work.await;
    let stopped = cluster.stop().await;
    result.and(stopped.map_err(Into::into))
}

/// Serves the model that ships over two ranks, asks it three questions, and stops.
pub(crate) async fn demo(args: DemoArgs, environment: &Environment) -> anyhow::Result<()> {
    let model = match args.model {
        Some(model) => model,
        None => shipped_model()?,
    };
    output::line(format_args!("starting {} ranks with {}", args.ranks, model.display()))?;
    let ranks = RankConfig { num_ranks: args.ranks, ..RankConfig::default() };
    let show = |server: Server| async move {
        output::line(format_args!("asking over {}/v1/chat/completions\n", server.url))?;
        interruptible(off_runtime(move || demo::show(&server))).await
    };
    with_server(&model, &ranks, environment, show).await?;
    Ok(output::line(format_args!(
        "\nEverything has ended. To serve this model, or one of your own, and to talk to it:\n  \
         jackalope serve --model {} --ranks 2\n  \
         jackalope chat",
        model.display()
    ))?)
}

/// Shows the state of a server.
pub(crate) async fn top(args: TopArgs, environment: &Environment) -> anyhow::Result<()> {
    let asked = AskArgs { url: args.url, key: args.key, json: false };
    let server = operate::server(&asked, environment)?;
    let config = TopConfig {
        interval: Duration::from_millis(args.interval),
        once: args.once,
        json: args.json,
        has_colors: !environment.no_color,
    };
    off_runtime(move || top::run(&server, config, report::text)).await
}

/// Returns the folder of the model that ships.
fn shipped_model() -> anyhow::Result<PathBuf> {
    let program = own_program()?;
    let above = program.ancestors().skip(1).take(LEVELS_MAX);
    let found = above.flat_map(|dir| SHIPPED_MODELS.map(|model| dir.join(model)));
    found.into_iter().find(|it| it.join("config.json").is_file()).with_context(|| {
        format!(
            "the model that ships is not in an installation around {}\n\
             hint: `jackalope demo --model DIR|ORG/NAME` uses another one",
            program.display()
        )
    })
}

/// Prints the state of this machine, and what to do next.
pub(crate) fn welcome(environment: &Environment) -> anyhow::Result<()> {
    let home = environment.home().ok();
    let running = home.as_ref().and_then(ServeRecord::running);
    let trusted = home.as_ref().and_then(|it| TrustStore::new(it).load().ok());
    let machines = trusted.into_iter().flat_map(|it| it.machines).map(|it| it.name);
    let models = environment.stores().list().unwrap_or_default();
    let usable = models.iter().filter(|it| {
        let check = Check::of_dir(&it.dir);
        check.is_whole() && check.unsupported.is_none()
    });
    let welcome = Welcome {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        server: running.map(|it| ServerHere { url: it.local_url(), model: it.model().to_owned() }),
        has_last_start: home.as_ref().and_then(ServerStart::last).is_some(),
        models: usable.map(|it| it.name.clone()).collect(),
        machines: machines.collect(),
    };
    for line in welcome.lines(columns().into()) {
        output::line(line)?;
    }
    Ok(())
}

/// Returns the width of the terminal.
fn columns() -> u16 {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
    size.map(|it| it.ws_col).filter(|it| 0 < *it).unwrap_or(COLUMNS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_that_ships_is_found_from_the_programs_of_a_build() {
        assert!(shipped_model().unwrap().join("tokenizer.json").is_file());
    }
}
