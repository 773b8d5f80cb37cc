//! `jackalope rank`: runs one rank, started by hand or by another launcher.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use jackalope_console::output;
use jackalope_deploy::config::CONTROL_PORT;
use jackalope_deploy::rank_process::{
    DataPlane, RankToStart, address, known_secret, spawn, ticket_by_hand,
};
use jackalope_fleet::hostfile::Hostfile;
use jackalope_fleet::listen::{address_towards, is_private, own_addresses};
use jackalope_fleet::process::exit_code;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::machines::RankArgs;
use crate::environment::Environment;

/// Interval of polling the process.
const POLL: Duration = Duration::from_millis(50);

pub(crate) async fn run(args: &RankArgs, environment: &Environment) -> anyhow::Result<ExitCode> {
    let rank = args
        .rank
        .or(environment.mlx.rank)
        .context("the number of this rank is missing\nhint: pass `--rank N`, or set MLX_RANK")?;
    let control = control(args, environment)?;
    let ticket = ticket_by_hand(&known_secret(&environment.local)?, rank);
    let ips = if args.data.is_empty() { default_ips(control.ip()) } else { args.data.clone() };
    let data = DataPlane { ips, ports: args.data_ports };
    let spawn = spawn(&RankToStart { rank, control, wait: args.wait }, &data, &ticket, &[])?;
    output::note(&format!("rank {rank} connects to the coordinator at {control}"));
    let mut child = spawn.start().context("starting the rank")?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    loop {
        if let Some(status) = child.try_wait() {
            let last_words = child.last_words();
            if !status.success() && !last_words.is_empty() {
                output::note(&last_words);
            }
            return Ok(ExitCode::from(u8::try_from(exit_code(status)).unwrap_or(1)));
        }
        tokio::select! {
            () = tokio::time::sleep(POLL) => {}
            // The rank ends with this process.
            _ = interrupt.recv() => return Ok(ExitCode::from(130)),
            _ = terminate.recv() => return Ok(ExitCode::from(143)),
        }
    }
}

/// Default addresses on which a rank listens for the others: the local address towards the
/// coordinator. If that is loopback, no other machine could reach it, so the rank listens on this
/// machine's private addresses, as an agent does.
fn default_ips(control: IpAddr) -> Vec<IpAddr> {
    match address_towards(control) {
        Some(ip) if !ip.is_loopback() => vec![ip],
        _ => own_addresses().into_iter().filter(|ip| is_private(*ip)).collect(),
    }
}

/// Returns the address of the coordinator, which by default is on rank 0's machine.
fn control(args: &RankArgs, environment: &Environment) -> anyhow::Result<SocketAddr> {
    let mlx = &environment.mlx;
    let host = match (&args.control, &mlx.coordinator, &mlx.hostfile) {
        (Some(control), ..) => control.clone(),
        (None, Some(coordinator), _) => host_of(coordinator).to_owned(),
        (None, None, Some(path)) => first_host(path)?,
        (None, None, None) => bail!(
            "where is the coordinator?\n\
             hint: pass `--control HOST[:PORT]`, or set MLX_JACCL_COORDINATOR or MLX_HOSTFILE"
        ),
    };
    // A bare IP address: its colons do not separate a port.
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, CONTROL_PORT));
    }
    let has_port = host.parse::<SocketAddr>().is_ok()
        || host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let host = if has_port { host } else { format!("{host}:{CONTROL_PORT}") };
    Ok(address(&host)?)
}

/// Returns the host without the port, which belongs to another transport.
fn host_of(addr: &str) -> &str {
    addr.rsplit_once(':').map_or(addr, |(host, _)| host)
}

fn first_host(path: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("reading {} (MLX_HOSTFILE)", path.display()))?;
    let hostfile = Hostfile::parse(&text, path)?;
    let host = hostfile.hosts.first().context("the hostfile names no host")?;
    let listen = host.listen.first().map(|listen| listen.host.clone());
    Ok(listen.or_else(|| host.ips.first().map(ToString::to_string)).unwrap_or_else(|| host.name()))
}
