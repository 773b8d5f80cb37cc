//! `jackalope launch`: runs any program on all machines.

use std::io::Read;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use jackalope_console::output;
use jackalope_deploy::machines;
use jackalope_fleet::agent::{OnLine, Order, OrderedProgram, Program, Stream};
use jackalope_fleet::hostfile::Host;
use jackalope_fleet::nodes::Nodes;
use jackalope_fleet::{routes, stock};
use jackalope_protocol::Backend;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::machines::LaunchArgs;
use crate::convert::environment_of;
use crate::environment::Environment;

/// Interval of polling the programs.
const POLL: Duration = Duration::from_millis(20);

/// Time that the other ranks have to end after one has failed; then they are killed.
const END_GRACE: Duration = Duration::from_secs(5);

/// Time after which a machine that cannot be reached is given up.
const AWAY_MAX: Duration = Duration::from_secs(30);

pub(crate) async fn run(args: LaunchArgs, environment: &Environment) -> anyhow::Result<ExitCode> {
    let file = machines::hostfile(args.hosts.as_deref().unwrap_or("127.0.0.1"))?;
    let backend = args.backend.map(Into::into).or(file.backend).unwrap_or(Backend::Ring);
    let repeat = args.repeat_hosts as usize;
    let hosts: Vec<Host> =
        file.hosts.iter().flat_map(|host| std::iter::repeat_n(host.clone(), repeat)).collect();
    let envs = [file.envs, environment_of(&args.env)?].concat();
    let config = machines::nodes_config(&args.reach.config(environment), &environment.local)?;
    let nodes = machines::bring_up(
        hosts.clone(),
        config,
        &environment.local.observer,
        printer(args.no_prefix),
    )
    .await?;
    let hosts = if backend.is_stock() { with_addresses(&hosts, &nodes)? } else { hosts };
    let mut programs = Vec::new();
    for rank in 0..hosts.len() {
        let settings = stock::settings(backend, &hosts, args.starting_port, rank)
            .map_err(|err| anyhow::anyhow!("{err}\nhint: {}", err.hint()))?;
        let order = order(&args, rank, &envs, settings);
        programs.push(nodes.nodes[nodes.of_rank[rank]].agent.start(order));
    }
    forward_input(&programs);
    let code = watch(&programs, &hosts).await?;
    // Programs that still run end with the agents' sessions.
    drop(nodes);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// Adds the addresses that MLX's programs read
/// (<https://ml-explore.github.io/mlx/build/html/usage/distributed.html>): a host without addresses
/// gets one that its agent reports.
fn with_addresses(hosts: &[Host], nodes: &Nodes) -> anyhow::Result<Vec<Host>> {
    let facts = |rank: usize| Some(&nodes.nodes[nodes.of_rank[rank]].facts);
    let node = |(rank, host)| routes::RouteNode { host, facts: facts(rank) };
    let nodes: Vec<routes::RouteNode<'_>> = hosts.iter().enumerate().map(node).collect();
    Ok(routes::with_addresses(&nodes)?)
}

fn order(
    args: &LaunchArgs,
    rank: usize,
    envs: &[(String, String)],
    settings: stock::RankSettings,
) -> Order {
    let stock::RankSettings { env, files } = settings;
    let here = std::env::current_dir().ok().map(|dir| dir.to_string_lossy().into_owned());
    let (program, rest) = args.program.split_first().expect("a program is required");
    Order {
        name: format!("launch {} rank {rank}", std::process::id()),
        program: OrderedProgram::Other(program.clone()),
        args: rest.to_vec(),
        env: envs.iter().cloned().chain(env).collect(),
        files,
        cwd: args.cwd.clone().or(here),
        lease_ms: 0,
        ticket: None,
    }
}

/// Returns a printer for the ranks' output: lines go to the same stream, with the rank's number
/// unless `no_prefix`.
fn printer(no_prefix: bool) -> impl Fn(&str) -> OnLine + Send + Sync + 'static {
    move |_host: &str| {
        Box::new(move |name: &str, stream: Stream, text: &str| {
            let rank = name.rsplit(' ').next().unwrap_or_default();
            let line = if no_prefix { text.to_owned() } else { format!("[{rank}] {text}") };
            match stream {
                // Errors are ignored: the reader of standard output may be gone.
                Stream::Out => drop(output::line(line)),
                Stream::Err => output::note(&line),
            }
        })
    }
}

/// Forwards standard input to every rank, as `mlx.launch` does.
fn forward_input(programs: &[Program]) {
    let programs = programs.to_vec();
    std::thread::spawn(move || {
        let mut bytes = vec![0; 16 << 10];
        loop {
            let num_read = std::io::stdin().lock().read(&mut bytes).unwrap_or(0);
            for program in &programs {
                program.input(bytes[..num_read].to_vec());
            }
            if num_read == 0 {
                return;
            }
        }
    });
}

/// Waits until every rank has ended and returns the exit status of the first failure, or 0. When
/// one rank fails, the others are terminated, and killed after [`END_GRACE`]. Signals are forwarded
/// to all ranks.
async fn watch(programs: &[Program], hosts: &[Host]) -> anyhow::Result<i32> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut failed: Option<(i32, Instant)> = None;
    let mut away_since: Option<Instant> = None;
    loop {
        let is_over = programs.iter().all(|program| program.ended().is_some());
        let first = programs.iter().enumerate().find_map(|(rank, program)| {
            program.ended().filter(|ended| ended.code != 0).map(|ended| (rank, ended))
        });
        if let (None, Some((rank, ended))) = (failed, first) {
            output::note(&format!("rank {rank} on {}: {}", hosts[rank].name(), ended.exit));
            signal_all(programs, 15);
            failed = Some((ended.code, Instant::now()));
        }
        match (is_over, failed) {
            (true, failed) => return Ok(failed.map_or(0, |(code, _)| code)),
            (false, Some((code, at))) if END_GRACE < at.elapsed() => {
                programs.iter().for_each(Program::kill);
                return Ok(code);
            }
            _ => {}
        }
        let trouble = programs.iter().enumerate().find_map(|(rank, program)| {
            program.ended().is_none().then(|| program.trouble()).flatten().map(|it| (rank, it))
        });
        away_since = trouble.as_ref().map(|_| away_since.unwrap_or_else(Instant::now));
        if let (Some((rank, trouble)), Some(since)) = (trouble, away_since)
            && AWAY_MAX < since.elapsed()
        {
            signal_all(programs, 15);
            bail!("rank {rank} on {} cannot be reached: {trouble}", hosts[rank].name());
        }
        let received = tokio::select! {
            () = tokio::time::sleep(POLL) => None,
            _ = interrupt.recv() => Some(2),
            _ = terminate.recv() => Some(15),
            _ = hangup.recv() => Some(1),
        };
        if let Some(number) = received {
            signal_all(programs, number);
            failed.get_or_insert((128 + number, Instant::now()));
        }
    }
}

fn signal_all(programs: &[Program], signal: i32) {
    programs.iter().filter(|it| it.ended().is_none()).for_each(|it| it.signal(signal));
}
