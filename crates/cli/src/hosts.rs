//! `jackalope hosts`: checks, converts and creates hostfiles. Opens no connection unless
//! `--discover` asks for it.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use anyhow::{Context, bail, ensure};
use jackalope_console::output;
use jackalope_deploy::machines::discover;
use jackalope_fleet::hostfile::{
    self, ConvertError, Host, Hostfile, HostfileErrors, HostfileShape, HostfileWarning, RingPorts,
};
use jackalope_protocol::{Backend, counted};
use serde_json::{Value, json};

use crate::args::hosts::{
    ConvertArgs, HostsArgs, HostsCommand, LintArgs, NewHostsArgs, OutArgs, OverArg,
};
use crate::environment::Environment;

/// First address for cables: four for each, of which the two in the middle are used. Home networks
/// rarely use this range.
const CABLES: Ipv4Addr = Ipv4Addr::new(10, 254, 0, 0);

pub(crate) async fn run(args: HostsArgs, environment: &Environment) -> anyhow::Result<()> {
    match args.command {
        HostsCommand::Lint(args) => lint(&args),
        HostsCommand::Convert(args) => convert(&args),
        HostsCommand::New(args) => {
            let environment = environment.clone();
            tokio::task::spawn_blocking(move || new(&args, &environment)).await?
        }
    }
}

/// Reads a hostfile.
fn read(path: &Path) -> anyhow::Result<(Hostfile, HostfileShape)> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    Ok(Hostfile::parse_shape(&text, path)?)
}

fn lint(args: &LintArgs) -> anyhow::Result<()> {
    let path = args.file.display();
    let (hostfile, shape) = match read(&args.file) {
        Ok(read) => read,
        Err(err) => {
            if let Some(errors) = err.downcast_ref::<HostfileErrors>().filter(|_| args.json) {
                output::line(errors_json(errors))?;
            }
            return Err(err);
        }
    };
    let findings = hostfile::lint(&hostfile);
    if args.json {
        return Ok(output::line(found_json(&hostfile, shape, &findings))?);
    }
    let backend = hostfile.backend.map_or("no backend", Backend::name);
    let count = counted(hostfile.hosts.len(), "host");
    output::line(format_args!("{path}: valid ({} with {count}, {backend})", shape.name()))?;
    for finding in &findings {
        output::line(format_args!("warning: {finding}\nhint: {}", finding.hint()))?;
    }
    Ok(())
}

fn errors_json(errors: &HostfileErrors) -> Value {
    let errors = errors.errors.iter().map(|error| {
        json!({
            "line": error.line, "column": error.column, "entry": error.entry,
            "message": error.fault.to_string(), "hint": error.fault.hint(),
        })
    });
    json!({"legal": false, "errors": errors.collect::<Value>(), "warnings": []})
}

fn found_json(hostfile: &Hostfile, shape: HostfileShape, findings: &[HostfileWarning]) -> Value {
    let warnings = findings
        .iter()
        .map(|finding| json!({"message": finding.to_string(), "hint": finding.hint()}));
    json!({
        "legal": true, "shape": shape.name(), "num_hosts": hostfile.hosts.len(),
        "backend": hostfile.backend.map(Backend::name), "errors": [],
        "warnings": warnings.collect::<Value>(),
    })
}

fn convert(args: &ConvertArgs) -> anyhow::Result<()> {
    let (hostfile, _) = read(&args.file)?;
    let usual = RingPorts::default();
    let ports = (args.port.is_some() || args.connections.is_some()).then(|| RingPorts {
        first: args.port.unwrap_or(usual.first),
        connections: args.connections.unwrap_or(usual.connections),
    });
    write(&hostfile, args.to.into(), ports, &args.out)
}

fn write(
    hostfile: &Hostfile,
    shape: HostfileShape,
    ports: Option<RingPorts>,
    out: &OutArgs,
) -> anyhow::Result<()> {
    let written = match hostfile::convert(hostfile, shape, ports) {
        Ok(written) => written,
        // Errors of a hostfile contain their own hints.
        Err(ConvertError::Illegal(errors)) => bail!("the result would not be valid: {errors}"),
        Err(err) => bail!("{err}\nhint: {}", err.hint()),
    };
    for lost in &written.lost {
        eprintln!("note: {} has no place for {lost}", shape.name());
    }
    let Some(path) = &out.out else { return Ok(output::piece(written.text)?) };
    let mut options = OpenOptions::new();
    options.write(true);
    if out.force {
        options.create(true).truncate(true)
    } else {
        options.create_new(true)
    };
    let mut file = match options.open(path) {
        Err(err) if err.kind() == std::io::ErrorKind::AlreadyExists => {
            bail!("{} exists\nhint: pass --force to overwrite it", path.display())
        }
        opened => opened.with_context(|| format!("writing {}", path.display()))?,
    };
    file.write_all(written.text.as_bytes()).with_context(|| format!("writing {}", path.display()))
}

fn new(args: &NewHostsArgs, environment: &Environment) -> anyhow::Result<()> {
    ensure!(
        args.ips.len() <= args.hosts.len(),
        "`--ips` has {} for {}\nhint: join several addresses of one host with `+`",
        counted(args.ips.len(), "list"),
        counted(args.hosts.len(), "host")
    );
    let mut hosts = Vec::new();
    if let Some(num_machines) = args.discover {
        let ours = environment.credentials(None)?;
        let listed =
            discover(num_machines.into(), args.agent_port, &ours, &*environment.local.observer)?;
        hosts.extend(listed.hosts.into_iter().map(|it| it.host));
    }
    for (rank, name) in args.hosts.iter().enumerate() {
        let ips = args.ips.get(rank).map_or("", String::as_str);
        let ssh = jackalope_deploy::machines::host_name(name)?;
        hosts.push(Host { ips: addresses(&ssh, ips)?, ssh, ..Host::default() });
    }
    let mut hostfile =
        Hostfile { backend: args.backend.map(Backend::from), envs: Vec::new(), hosts };
    for env in &args.env {
        let Some(pair) = env.split_once('=') else {
            bail!("{env:?} has no `=`\nhint: write NAME=value");
        };
        hostfile.envs.push((pair.0.to_owned(), pair.1.to_owned()));
    }
    if let Some(path) = &args.rdma {
        take_devices(&mut hostfile, &read(path)?.0, path)?;
    }
    if args.over == OverArg::Thunderbolt {
        for cable in cables(&mut hostfile) {
            eprintln!("note: {cable}, mask 255.255.255.252");
        }
    }
    let is_plain = hostfile.backend.is_none() && hostfile.envs.is_empty();
    write(
        &hostfile,
        if is_plain { HostfileShape::Array } else { HostfileShape::Object },
        None,
        &args.out,
    )
}

/// Returns the addresses that were typed, or else the address that is the host's name.
fn addresses(name: &str, typed: &str) -> anyhow::Result<Vec<IpAddr>> {
    let ips: Vec<IpAddr> = typed
        .split('+')
        .filter(|ip| !ip.is_empty())
        .map(|ip| ip.parse().with_context(|| format!("{ip:?} is not a valid IP address")))
        .collect::<Result<_, _>>()?;
    let name = name.rsplit_once('@').map_or(name, |(_, name)| name);
    let named = name.parse().ok().filter(|ip: &IpAddr| !ip.is_loopback());
    Ok(if ips.is_empty() { named.into_iter().collect() } else { ips })
}

fn take_devices(hostfile: &mut Hostfile, matrix: &Hostfile, path: &Path) -> anyhow::Result<()> {
    ensure!(
        matrix.hosts.len() == hostfile.hosts.len(),
        "{} has {} for {}",
        path.display(),
        counted(matrix.hosts.len(), "row"),
        counted(hostfile.hosts.len(), "host")
    );
    for (host, row) in hostfile.hosts.iter_mut().zip(&matrix.hosts) {
        host.rdma.clone_from(&row.rdma);
    }
    Ok(())
}

/// Gives every cable its two addresses, and returns a line for each cable. For MLX's ring there are
/// cables between neighbours, and a rank lists only the address to which the rank before it
/// connects; otherwise there is a cable between any two machines.
fn cables(hostfile: &mut Hostfile) -> Vec<String> {
    let num_hosts = hostfile.hosts.len();
    let is_ring = hostfile.backend == Some(Backend::Ring);
    let pairs: Vec<(usize, usize)> = if is_ring && 2 < num_hosts {
        (0..num_hosts).map(|rank| (rank, (rank + 1) % num_hosts)).collect()
    } else {
        (0..num_hosts).flat_map(|a| (a + 1..num_hosts).map(move |b| (a, b))).collect()
    };
    let mut lines = Vec::new();
    for (cable, (a, b)) in (0_u32..).zip(pairs) {
        let [first, second] =
            [1, 2].map(|last| Ipv4Addr::from(u32::from(CABLES) + 4 * cable + last));
        let [from, to] = [a, b].map(|rank| hostfile.hosts[rank].name());
        lines.push(format!("cable {from} – {to}: {first} on {from}, {second} on {to}"));
        if !is_ring || num_hosts == 2 {
            hostfile.hosts[a].ips.push(first.into());
        }
        hostfile.hosts[b].ips.push(second.into());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hostfile(num_hosts: usize, backend: Option<Backend>) -> Hostfile {
        let host = |rank| Host { ssh: format!("mac{rank}"), ..Host::default() };
        Hostfile { backend, envs: Vec::new(), hosts: (0..num_hosts).map(host).collect() }
    }

    fn ips(hostfile: &Hostfile) -> Vec<Vec<String>> {
        let texts = |host: &Host| host.ips.iter().map(IpAddr::to_string).collect();
        hostfile.hosts.iter().map(texts).collect()
    }

    #[test]
    fn the_templates_that_ship_have_nothing_to_tell() {
        for num_hosts in [1, 2, 4] {
            let name = format!("../../hostfiles/hosts-{num_hosts}node.json");
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
            let (hostfile, _) = read(&path).unwrap();
            assert_eq!(hostfile.hosts.len(), num_hosts);
            assert_eq!(hostfile::lint(&hostfile), []);
        }
    }

    #[test]
    fn every_cable_has_a_subnet_of_its_own() {
        let mut mesh = hostfile(3, None);
        assert_eq!(
            cables(&mut mesh)[1],
            "cable mac0 – mac2: 10.254.0.5 on mac0, 10.254.0.6 on mac2"
        );
        let wanted = [
            ["10.254.0.1", "10.254.0.5"],
            ["10.254.0.2", "10.254.0.9"],
            ["10.254.0.6", "10.254.0.10"],
        ];
        assert_eq!(ips(&mesh), wanted);
        assert_eq!(hostfile::lint(&mesh), []);
        let mut ring = hostfile(3, Some(Backend::Ring));
        assert_eq!(cables(&mut ring).len(), 3);
        assert_eq!(ips(&ring), [["10.254.0.10"], ["10.254.0.2"], ["10.254.0.6"]]);
        let mut pair = hostfile(2, Some(Backend::Ring));
        assert_eq!(cables(&mut pair).len(), 1);
        assert_eq!(ips(&pair), [["10.254.0.1"], ["10.254.0.2"]]);
    }

    #[test]
    fn a_host_that_is_an_address_has_it() {
        let texts = |name, typed| -> Vec<String> {
            addresses(name, typed).unwrap().iter().map(IpAddr::to_string).collect()
        };
        assert_eq!(texts("me@10.0.0.7", ""), ["10.0.0.7"]);
        assert_eq!(texts("127.0.0.1", ""), Vec::<String>::new());
        assert_eq!(texts("mac1", "10.0.0.1+fd00::1"), ["10.0.0.1", "fd00::1"]);
        assert!(addresses("mac1", "10.0.0").is_err());
    }
}
