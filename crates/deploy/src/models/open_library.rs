//! The library of this machine, which this process opens to other machines without an agent.

use std::collections::BTreeSet;
use std::net::{IpAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use jackalope_fleet::agent::{self, AgentConfig, AgentError};
use jackalope_fleet::listen::listen_on;

use crate::error::DeployError;

/// The library on a port that the user chose. Everything in this process that copies models uses the
/// same one, because two listeners cannot share a port.
#[derive(Clone, Debug, Default)]
pub struct FixedLibrary(Arc<Mutex<Option<Running>>>);

/// A library that runs in a thread.
#[derive(Debug)]
struct Running {
    port: u16,
    /// Addresses that it listens on.
    ips: BTreeSet<IpAddr>,
    added: AddedListeners,
    thread: JoinHandle<Result<(), AgentError>>,
}

/// Listeners that the thread of a library has not taken yet.
type AddedListeners = Arc<Mutex<Vec<TcpListener>>>;

impl FixedLibrary {
    /// Opens a library at these addresses, and returns its port. With port 0, it is a new library on
    /// any free port, which closes when [`AgentConfig::is_over`] is set; on another port, it is the one
    /// of this process, which stays open.
    ///
    /// # Errors
    /// If this machine cannot listen.
    pub(super) fn open(
        &self,
        ips: &BTreeSet<IpAddr>,
        port: u16,
        config: AgentConfig,
    ) -> Result<u16, DeployError> {
        if port == 0 {
            return Ok(start(ips, port, config)?.port);
        }
        let mut fixed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match fixed.as_mut().filter(|it| it.port == port && !it.thread.is_finished()) {
            Some(running) => {
                let listeners = listen(ips.difference(&running.ips), port)?;
                running.ips.extend(ips_of(&listeners));
                running.added.lock().unwrap_or_else(PoisonError::into_inner).extend(listeners);
            }
            None => {
                let config = AgentConfig { is_over: Arc::default(), ..config };
                *fixed = Some(start(ips, port, config)?);
            }
        }
        Ok(port)
    }
}

/// Listens, and starts the library's thread, which ends with [`AgentConfig::is_over`] or with the
/// process.
fn start(ips: &BTreeSet<IpAddr>, port: u16, config: AgentConfig) -> Result<Running, DeployError> {
    let listeners = listen(ips.iter(), port)?;
    let first = listeners.first().expect("it listens on the loopback address");
    let port = first.local_addr()?.port();
    let ips = ips_of(&listeners).collect();
    let added: AddedListeners = Arc::new(Mutex::new(listeners));
    let untaken = Arc::clone(&added);
    let new_listeners =
        move || std::mem::take(&mut *untaken.lock().unwrap_or_else(PoisonError::into_inner));
    let thread = std::thread::spawn(move || agent::serve_on(Box::new(new_listeners), config));
    Ok(Running { port, ips, added, thread })
}

fn listen<'a>(
    ips: impl Iterator<Item = &'a IpAddr>,
    port: u16,
) -> Result<Vec<TcpListener>, DeployError> {
    let ips: Vec<IpAddr> = ips.copied().collect();
    listen_on(&ips, port).map_err(|(addr, source)| DeployError::Library { addr, source })
}

fn ips_of(listeners: &[TcpListener]) -> impl Iterator<Item = IpAddr> + '_ {
    listeners.iter().filter_map(|it| Some(it.local_addr().ok()?.ip()))
}
