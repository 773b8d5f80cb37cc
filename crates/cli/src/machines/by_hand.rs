//! Ranks that a person, or somebody else's launcher, starts.

use std::net::SocketAddr;

use jackalope_engine::link::{LaunchError, LaunchOrder, Launcher, RankProcess};

use crate::output;

/// Tells what to type, and waits.
pub(crate) struct ByHand {
    /// By rank: the machine.
    pub(crate) hosts: Vec<String>,
    /// Where the brain is, as the others see it.
    pub(crate) control: SocketAddr,
}

impl Launcher for ByHand {
    fn launch(&mut self, order: &LaunchOrder) -> Result<Box<dyn RankProcess>, LaunchError> {
        let (rank, host) = (order.rank, &self.hosts[order.rank]);
        output::note(&format!(
            "waiting for rank {rank}; on {host} type: jackalope rank --rank {rank} --control {}",
            self.control
        ));
        Ok(Box::new(Elsewhere))
    }
}

/// A process of which only its connection is known. It ends with that.
struct Elsewhere;

impl RankProcess for Elsewhere {
    fn pid(&self) -> Option<u32> {
        None
    }

    fn try_wait(&mut self) -> Option<String> {
        None
    }

    fn kill(&mut self) {}

    fn last_words(&self) -> String {
        String::new()
    }
}
