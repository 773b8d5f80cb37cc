//! Converts arguments to the configuration of the HTTP server.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{bail, ensure};
use jackalope_deploy::server::is_loopback;
use jackalope_server::{
    AllowedHosts, AllowedOrigins, ApiKeys, Reporting, RequestLog, ServerConfig, ServerLimits,
    SpanExporter, Tls,
};

use crate::args::{EdgeArgs, ServeArgs};
use crate::environment::Environment;
use crate::keys;

/// Returns the server's configuration.
pub(crate) fn config(host: IpAddr, args: &ServeArgs) -> anyhow::Result<ServerConfig> {
    let edge = &args.edge;
    let api_keys = api_keys(edge)?;
    check_exposure(host, &api_keys, edge.insecure)?;
    // A server that requires keys is safe from pages that pretend to be this machine, because they
    // have none.
    let hosts = if is_loopback(host) && api_keys.is_empty() {
        AllowedHosts::Local(edge.allow_host.clone())
    } else {
        AllowedHosts::Any
    };
    let tls = match (&edge.tls_cert, &edge.tls_key) {
        (Some(cert), Some(key)) => Some(Tls::new(cert, key)?),
        _ => None,
    };
    for origin in edge.cors.iter().map(|it| it.trim()).filter(|it| *it != "*") {
        let is_origin = origin.split_once("://").is_some_and(|(scheme, host)| {
            !scheme.is_empty() && !host.is_empty() && !host.trim_end_matches('/').contains('/')
        });
        ensure!(
            is_origin,
            "`--cors {origin}` is no origin\nhint: write it as browsers do: https://chat.example"
        );
    }
    let mib = usize::try_from(args.edge.max_body)?;
    let limits = ServerLimits {
        body_bytes: mib << 20,
        open_streams: usize::try_from(edge.max_open_streams)?,
        request_timeout: args.request_timeout,
        default_max_tokens: args.default_max_tokens,
        load_wait: args.models.load_wait,
        strict_model_names: args.models.strict_model_names,
        ..ServerLimits::default()
    };
    let origins = AllowedOrigins::new(&edge.cors);
    let log_lines_dropped = Some(jackalope_protocol::log::num_dropped as fn() -> u64);
    let config = ServerConfig { limits, api_keys, origins, hosts, tls, ..ServerConfig::default() };
    Ok(ServerConfig { log_lines_dropped, ..config })
}

/// Opens the request log and the exporter of traces that the arguments or the environment name.
pub(crate) fn reporting(args: &EdgeArgs, environment: &Environment) -> anyhow::Result<Reporting> {
    let collector = args.otlp.as_ref().or(environment.otlp.as_ref());
    Ok(Reporting {
        request_log: args.request_log.as_deref().map(RequestLog::open).transpose()?,
        spans: collector.map(|url| SpanExporter::new(url)).transpose()?,
    })
}

fn api_keys(args: &EdgeArgs) -> anyhow::Result<ApiKeys> {
    for (flag, keys) in [("--api-key", &args.api_key), ("--admin-key", &args.admin_key)] {
        ensure!(
            keys.iter().all(|key| !key.trim().is_empty()),
            "a key of `{flag}` is empty\nhint: separate keys by single commas"
        );
    }
    let of_file = |path: &Option<PathBuf>| path.as_deref().map(keys::read_file).transpose();
    let clients = [args.api_key.clone(), of_file(&args.api_key_file)?.unwrap_or_default()].concat();
    let admins =
        [args.admin_key.clone(), of_file(&args.admin_key_file)?.unwrap_or_default()].concat();
    let keys = ApiKeys::new(&clients).with_admins(&admins);
    Ok(match &args.api_keys {
        Some(path) => keys.with_file(path)?,
        None => keys,
    })
}

/// Fails if other machines can reach a server that requires no keys, unless `insecure` allows it.
pub(crate) fn check_exposure(
    host: IpAddr,
    api_keys: &ApiKeys,
    insecure: bool,
) -> anyhow::Result<()> {
    if !is_loopback(host) && api_keys.is_empty() && !insecure {
        bail!(
            "{host} can be reached from other machines, and no key is required\n\
             hint: pass `--api-key-file FILE`, or `--insecure` to serve everybody"
        );
    }
    Ok(())
}
