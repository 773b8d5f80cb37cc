//! Serves a model with two ranks on this machine:
//!
//! ```text
//!   cargo build -p jackalope-runner && cargo run -p jackalope-deploy --example two_ranks -- DIR
//! ```

use std::path::PathBuf;

use anyhow::Context;
use jackalope_deploy::served_models::{ServedModels, ServedModelsConfig};
use jackalope_deploy::{Deployment, LocalContext, RankConfig};
use jackalope_server::{Reporting, ServerConfig, ShutdownMode};
use tokio::net::TcpListener;

#[tokio::main]
#[expect(clippy::print_stdout, reason = "an example speaks to people")]
async fn main() -> anyhow::Result<()> {
    let dir = std::env::args_os().nth(1).context("the first argument is the model's directory")?;
    let context = LocalContext::new(std::env::temp_dir().join("jackalope-two-ranks"));
    let offered = ServedModelsConfig { models: vec![PathBuf::from(dir)], ..Default::default() };
    let deployment = Deployment {
        models: ServedModels::of(&offered, &context)?,
        ranks: RankConfig { num_ranks: 2, ..RankConfig::default() },
        memory_budgets: Vec::new(),
        load_on_demand: None,
        http: ServerConfig::default(),
        reporting: Reporting::default(),
    };
    let server = deployment.start(TcpListener::bind("127.0.0.1:0").await?, &context).await?;
    let status = server.ready(|_| ()).await?;
    println!("{} ranks serve http://{}/v1 until input ends", status.ranks.len(), server.addr());
    tokio::select! {
        ended = server.look_after() => ended?,
        _ = tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink())) => {}
    }
    server.stop(ShutdownMode::Shutdown, async {}).await;
    Ok(())
}
