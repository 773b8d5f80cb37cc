//! Copies a model from one machine to others: reaches the machines, has the source hash its files,
//! and lets each machine that has the model send it on. What is already there is kept, so a copy
//! that was interrupted continues. Reports progress as events and prints nothing.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use jackalope_fleet::hostfile::Host;
use jackalope_fleet::nodes::{self, Node, NodeError, NodesError};
use jackalope_fleet::trust::Credentials;
use jackalope_store::exchange::{
    CopyPeer, ExchangeError, FetchOrder, Fetched, FoundFiles, Holding, LibraryClient, SpreadOrder,
    spread,
};

use super::locate;
use super::member::Member;
use crate::config::ReachConfig;
use crate::context::LocalContext;
use crate::error::{CopyError, DeployError};
use crate::machines;

/// Default number of connections between two machines.
pub const DEFAULT_CONNECTIONS: u32 = 4;

/// The machines between which models are to be copied.
#[derive(Clone, Copy, Debug)]
pub struct CopyMembers<'a> {
    /// A hostfile, or names separated by commas.
    pub hosts: &'a str,
    /// Names of the machines to copy to. Default: all.
    pub only: Option<&'a [String]>,
    /// Machine to copy from. Default: this machine.
    pub from: Option<&'a str>,
    /// How machines are reached.
    pub reach: &'a ReachConfig,
    /// Port on which this machine's library listens; 0 lets the system choose.
    pub copy_port: u16,
}

/// Machines between which models are copied, with an agent on each. This machine's library is open
/// to the others: on a free port until this value is dropped, on a chosen port as long as the process
/// runs.
#[derive(Debug)]
pub struct CopyGroup {
    members: Vec<Member>,
    /// Position of the machine to copy from.
    source: usize,
    ours: Credentials,
    /// Machines that cannot be used, with the reasons.
    unreached: Vec<(String, NodeError)>,
    /// The connections to the agents: agents that were started for this end without them.
    _nodes: Vec<Node>,
}

impl Drop for CopyGroup {
    fn drop(&mut self) {
        self.members.iter().filter(|it| it.is_here).for_each(Member::close);
    }
}

/// A model to copy to all machines of a group.
#[derive(Clone, Debug)]
pub struct CopyOrder {
    /// Name of the model at the source, or path of its directory.
    pub model: String,
    /// Name of the copies. Default: the name that the source knows the model by.
    pub name: Option<String>,
    /// Number of connections between two machines.
    pub num_connections: u32,
    /// Once set, the copy ends; what has arrived is kept.
    pub is_cancelled: Arc<AtomicBool>,
}

/// Progress of a copy.
#[derive(Debug)]
pub enum CopyEvent<'a> {
    /// The source begins to hash its files, unless their hashes are cached.
    Hashing {
        /// Size of the model in bytes.
        total_bytes: u64,
    },
    /// The source has hashed further bytes.
    Hashed {
        /// Number of bytes.
        num_bytes: u64,
    },
    /// All files are hashed: copying begins.
    Copying,
    /// A machine holds a part of the model already.
    Held {
        /// The machine.
        host: &'a str,
        /// Number of bytes.
        num_bytes: u64,
    },
    /// Further bytes have arrived at a machine.
    Received {
        /// The machine.
        host: &'a str,
        /// Number of bytes.
        num_bytes: u64,
    },
    /// The copy to a machine has ended.
    Ended(&'a CopyEnd),
}

/// How the copy to a machine ended.
#[derive(Debug)]
pub struct CopyEnd {
    /// The machine.
    pub host: String,
    /// The first machine that was to send the model.
    pub from: String,
    /// The result.
    pub result: Result<Fetched, ExchangeError>,
}

/// A machine, and what it holds of a model.
pub type HostHolding = (String, Result<Holding, ExchangeError>);

/// The result of a copy.
#[derive(Debug)]
pub struct CopyOutcome {
    /// Name of the model.
    pub name: String,
    /// The ends of all copies, in the order of the machines. A machine whose copy was cancelled
    /// before it began is absent.
    pub ends: Vec<CopyEnd>,
}

impl CopyGroup {
    /// Ensures that an agent runs on every machine, and opens this machine's library. Machines that
    /// cannot be used are in [`CopyGroup::unreached`].
    ///
    /// # Errors
    /// If the machines cannot be determined, or this machine cannot take part.
    pub async fn reach(
        members: CopyMembers<'_>,
        context: &LocalContext,
    ) -> Result<CopyGroup, DeployError> {
        let hosts = members.hosts.to_owned();
        let (machines, _) = nodes::machines(&machines::hostfile(&hosts)?.hosts);
        let is_meant = |host: &Host| members.only.is_none_or(|it| it.contains(&host.name()));
        let remote: Vec<Host> = machines.iter().filter(|it| !it.is_local()).cloned().collect();
        let remote: Vec<Host> = remote.into_iter().filter(is_meant).collect();
        if remote.is_empty() {
            return Err(CopyError::NoOther { hosts }.into());
        }
        let config = machines::nodes_config(members.reach, context)?;
        let ours = config.ours.clone();
        let (names, observer) = (remote.clone(), Arc::clone(&context.observer));
        let reaching = move || {
            let note = |text: &str| observer.note(text);
            nodes::bring_up_each(remote, &config, &machines::log_lines, &note)
        };
        let reached = tokio::task::spawn_blocking(reaching).await?;
        let (mut group, mut connected) = (Vec::new(), Vec::new());
        let mut unreached = Vec::new();
        for (host, node) in names.into_iter().zip(reached) {
            match node {
                Ok(node) => {
                    group.push(Member::there(host, &node));
                    connected.push(node);
                }
                Err(err) => unreached.push((host.name(), err)),
            }
        }
        let here = machines.into_iter().find(Host::is_local);
        if members.from.is_none() || here.is_some() {
            group.push(Member::here(here, context, &ours, &group, members.copy_port)?);
        }
        let mut found = CopyGroup { source: 0, members: group, ours, unreached, _nodes: connected };
        // The machine of this process is the last one.
        let Some(from) = members.from else {
            found.source = found.members.len() - 1;
            return Ok(found);
        };
        if found.unreached.iter().any(|(name, _)| name == from) {
            return Ok(found.all_reached()?);
        }
        let source = found.members.iter().position(|it| it.host.name() == from);
        let unknown = || CopyError::UnknownSource { from: from.to_owned(), hosts };
        found.source = source.ok_or_else(unknown)?;
        Ok(found)
    }

    /// Returns the machines that cannot be used, with the reasons.
    pub fn unreached(&self) -> &[(String, NodeError)] {
        &self.unreached
    }

    /// Returns this group if all machines can be used.
    ///
    /// # Errors
    /// Names every machine that cannot be used.
    pub fn all_reached(mut self) -> Result<CopyGroup, NodesError> {
        let unreached = std::mem::take(&mut self.unreached);
        if unreached.is_empty() {
            return Ok(self);
        }
        Err(NodesError(unreached.into_iter().map(|(_, err)| err).collect()))
    }

    /// Returns the name or path by which the source finds a model. On this machine, the model must
    /// be complete.
    ///
    /// # Errors
    /// If there is no such model on this machine, or its path is not UTF-8.
    pub fn at_source(&self, model: &Path, context: &LocalContext) -> Result<String, DeployError> {
        let here = self.members[self.source].is_here;
        let path = if here { locate(model, context)?.dir } else { model.to_owned() };
        path.into_os_string().into_string().map_err(|_| DeployError::ModelPath)
    }

    /// Returns the names of the machines to copy to.
    pub fn targets(&self) -> impl Iterator<Item = String> {
        self.others().map(|it| it.host.name())
    }

    fn others(&self) -> impl Iterator<Item = &Member> {
        let source = self.source;
        self.members.iter().enumerate().filter(move |(at, _)| *at != source).map(|(_, it)| it)
    }

    fn dial(&self, member: &Member) -> Result<LibraryClient, ExchangeError> {
        LibraryClient::dial(&member.host.name(), &member.addrs, &self.ours)
    }

    /// Returns the size of a model in bytes, and what each of the other machines holds of it. Only
    /// names and sizes of files are compared. Copies are called `name`. Blocks.
    ///
    /// # Errors
    /// If the source does not have the model.
    pub fn holdings(
        &self,
        model: &str,
        name: &str,
    ) -> Result<(u64, Vec<HostHolding>), ExchangeError> {
        let mut found = self.dial(&self.members[self.source])?.find(model)?;
        name.clone_into(&mut found.name);
        let total_bytes = found.files.iter().map(|(_, bytes)| bytes).sum();
        Ok((total_bytes, self.holdings_of(&found)))
    }

    fn holdings_of(&self, found: &FoundFiles) -> Vec<HostHolding> {
        let ask = |member: &Member| self.dial(member)?.holding(&found.name, &found.files);
        std::thread::scope(|scope| {
            let begin = |member| (member, scope.spawn(move || ask(member)));
            let threads: Vec<_> = self.others().map(begin).collect();
            let end = |(member, it): (&Member, std::thread::ScopedJoinHandle<'_, _>)| {
                (member.host.name(), it.join().expect("it does not panic"))
            };
            threads.into_iter().map(end).collect()
        })
    }

    /// Copies a model to all other machines, and reports the progress. A machine that fails does not
    /// stop the others. Blocks.
    ///
    /// # Errors
    /// If the source does not have the model, or cannot read it.
    pub fn copy(
        &self,
        order: &CopyOrder,
        on_event: &(dyn Fn(CopyEvent<'_>) + Sync),
    ) -> Result<CopyOutcome, ExchangeError> {
        let model = order.model.as_str();
        let client = self.dial(&self.members[self.source])?;
        let mut client = client.cancelled_by(&order.is_cancelled);
        let mut found = client.find(model)?;
        order.name.iter().for_each(|name| name.clone_into(&mut found.name));
        let total_bytes = found.files.iter().map(|(_, bytes)| bytes).sum();
        on_event(CopyEvent::Hashing { total_bytes });
        let manifest =
            client.manifest(model, &|num_bytes| on_event(CopyEvent::Hashed { num_bytes }))?;
        drop(client);
        on_event(CopyEvent::Copying);
        for (host, holding) in self.holdings_of(&found) {
            // A machine that does not answer fails below.
            let num_bytes = holding.map_or(0, |it| it.num_bytes);
            on_event(CopyEvent::Held { host: &host, num_bytes });
        }
        let peers = self.peers();
        let on_bytes = |peer: usize, num_bytes: u64| {
            on_event(CopyEvent::Received { host: &peers[peer].host, num_bytes });
        };
        let FoundFiles { name, commit, .. } = found;
        let num_connections = order.num_connections;
        let fetch = FetchOrder { name, commit, manifest, sources: Vec::new(), num_connections };
        let what = SpreadOrder {
            peers: &peers,
            source: self.source,
            model,
            order: &fetch,
            ours: &self.ours,
            is_cancelled: &order.is_cancelled,
        };
        let mut ends = Vec::new();
        spread(what, &on_bytes, &mut |end| {
            let (host, from) = (peers[end.peer].host.clone(), peers[end.source].host.clone());
            let copied = CopyEnd { host, from, result: end.result };
            on_event(CopyEvent::Ended(&copied));
            ends.push((end.peer, copied));
        });
        ends.sort_by_key(|(peer, _)| *peer);
        let ends = ends.into_iter().map(|(_, end)| end).collect();
        Ok(CopyOutcome { name: fetch.name, ends })
    }

    fn peers(&self) -> Vec<CopyPeer> {
        let peer = |member: &Member| CopyPeer {
            host: member.host.name(),
            addrs: member.addrs.clone(),
            key: member.key,
            addrs_from: self.members.iter().map(|other| member.addrs_from(other)).collect(),
        };
        self.members.iter().map(peer).collect()
    }
}
