//! The configuration of a link, and why one cannot be set up.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use thiserror::Error;

use super::process::RankAssignment;

/// Configuration of a link.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// Addresses to listen on for ranks, all with the port of the first; port 0 lets the system
    /// choose.
    pub listen: Vec<SocketAddr>,
    /// Addresses from which ranks are expected to connect. Their unauthenticated connections have
    /// reserved slots, which a flood from other addresses cannot take.
    pub expected: Vec<IpAddr>,
    /// Assignment of each rank to a machine, by rank.
    pub assignments: Vec<RankAssignment>,
    /// Timeouts of the link.
    pub timeouts: LinkTimeouts,
    /// Epoch of the first group. Must be greater than any epoch of an earlier coordinator if ranks
    /// can outlive one.
    pub first_epoch: u64,
}

/// Timeouts of the link.
#[derive(Clone, Copy, Debug)]
pub struct LinkTimeouts {
    /// Starting a process. A process that starts later than this is killed.
    pub spawn: Duration,
    /// From the start of a process to its hello. Applies until the group has been up once, and to
    /// ranks whose connection was lost.
    pub hello: Duration,
    /// The same for replacements. Doubles with each process in a row that sends no hello, up to
    /// `hello`.
    pub replacement_hello: Duration,
    /// Loading without progress.
    pub load_stall: Duration,
    /// Loading in total.
    pub load: Duration,
    /// Computing the first steps after loading, for which devices may compile kernels.
    pub warm_up: Duration,
    /// Forming a group, in addition to the ranks' own timeout.
    pub join_margin: Duration,
    /// A step of few tokens, without progress; see [`LinkTimeouts::step_of`].
    pub step: Duration,
    /// Number of tokens beyond which a step gets no more time: the engine plans longer steps only for ranks that have
    /// been seen to be fast ([`PROMPT_STEP_MAX`](crate::PROMPT_STEP_MAX)).
    pub timed_tokens_max: usize,
    /// Silence of a rank after its hello, in every state.
    pub heartbeat: Duration,
    /// Interval between two heartbeats to the ranks.
    pub heartbeat_interval: Duration,
    /// Writing one frame; no other rank is blocked by it.
    pub write: Duration,
    /// Stopping all ranks gracefully.
    pub stop: Duration,
}

impl Default for LinkTimeouts {
    fn default() -> LinkTimeouts {
        LinkTimeouts {
            spawn: Duration::from_secs(10),
            hello: Duration::from_secs(30),
            replacement_hello: Duration::from_secs(10),
            load_stall: Duration::from_secs(60),
            load: Duration::from_secs(1800),
            warm_up: Duration::from_secs(300),
            join_margin: Duration::from_secs(5),
            step: Duration::from_secs(10),
            timed_tokens_max: usize::MAX,
            heartbeat: Duration::from_secs(10),
            heartbeat_interval: Duration::from_secs(1),
            write: Duration::from_secs(10),
            stop: Duration::from_secs(1),
        }
    }
}

impl LinkTimeouts {
    /// Returns the timeout of a step, which grows with its tokens, because a long prompt on a slow
    /// device legitimately takes long.
    pub fn step_of(&self, num_tokens: usize) -> Duration {
        const TOKENS_INCLUDED: u32 = 64;
        let num_tokens = u32::try_from(num_tokens.min(self.timed_tokens_max)).unwrap_or(u32::MAX);
        self.step * (1 + num_tokens / TOKENS_INCLUDED)
    }
}

/// Error of setting up a link.
#[derive(Debug, Error)]
pub enum LinkError {
    /// The link cannot listen on an address.
    #[error(
        "listening for ranks on {addr} failed: {source}\n\
         hint: another program has the port, or this machine no longer has the address; \
         `--control-port` names another port"
    )]
    Listen {
        /// Address that could not be used.
        addr: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_has_time_for_its_tokens_up_to_a_limit() {
        let step = Duration::from_secs(10);
        let timeouts = LinkTimeouts { step, timed_tokens_max: 512, ..LinkTimeouts::default() };
        let found = [0, 64, 512, 2048].map(|num_tokens| timeouts.step_of(num_tokens));
        assert_eq!(found, [step, step * 2, step * 9, step * 9]);
        assert_eq!(LinkTimeouts { step, ..LinkTimeouts::default() }.step_of(2048), step * 33);
    }
}
