//! What every command of the program does first: it reads a secret and listens for its peers.

use std::io::BufRead;
use std::net::IpAddr;
use std::str::FromStr;

use anyhow::Context;
use jackalope_protocol::{Secret, counted};
use jackalope_transport::Listener;
use tracing::warn;

/// Listens for peers. Addresses that this machine does not have are skipped, never replaced by
/// other ones.
pub(crate) fn listen(ips: &[IpAddr], ports: PortRange) -> anyhow::Result<Listener> {
    let bound = Listener::bind_all(ips, ports.0..=ports.1);
    let listener = bound.context(
        "listening for peers\n\
         hint: free a port of `--data-ports` or name another range; an address that is not \
         available is named in the hostfile or was lost by its interface",
    )?;
    for ip in listener.missing() {
        warn!(%ip, "this machine lacks an address that other ranks use to reach it");
    }
    Ok(listener)
}

/// One port, or several consecutive ones.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct PortRange(u16, u16);

impl FromStr for PortRange {
    type Err = String;

    fn from_str(text: &str) -> Result<PortRange, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let parse = |text: &str| text.parse().map_err(|_| format!("{text:?} is not a valid port"));
        let range = PortRange(parse(first)?, parse(last)?);
        if range.1 < range.0 { Err(format!("{text} ends before it begins")) } else { Ok(range) }
    }
}

/// Reads the first line of standard input: 64 hexadecimal digits.
pub(crate) fn read_secret() -> anyhow::Result<Secret> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).context("reading the secret")?;
    Secret::from_hex(&line).with_context(|| {
        let found = counted(line.trim().len(), "character");
        format!("expected 64 hexadecimal digits on standard input, found {found}")
    })
}
