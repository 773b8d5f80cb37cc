//! The agent's side of discovery: answers queries and is silent otherwise.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use jackalope_protocol::Secret;
use jackalope_protocol::secure::Build;
use tracing::{debug, info};

use super::link;
use super::wire::{self, DATAGRAM_BYTES_MAX, OurAgent};

/// How long a socket waits for a query before it checks whether the responder still runs.
const WAIT: Duration = Duration::from_millis(200);

/// Pause between two checks for new networks, because cables come and go.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum number of answers per second to senders that hold the secret.
const OURS_PER_SECOND: u32 = 500;

/// Maximum number of answers per second to all other senders.
const STRANGERS_PER_SECOND: u32 = 20;

/// Answers queries until it is dropped.
#[derive(Debug)]
pub struct Responder {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Responder {
    /// Starts answering for an agent that listens on `port`. Without IPv6, only queries over IPv4
    /// are answered.
    ///
    /// # Errors
    /// If the sockets for queries cannot be opened.
    pub fn start(secret: Secret, port: u16) -> io::Result<Responder> {
        let mut sockets = vec![link::listening_v4()?];
        match link::listening_v6() {
            Ok(socket) => sockets.push(socket),
            Err(err) => info!(%err, "queries over IPv6 are not received"),
        }
        let mut id = [0; 8];
        getrandom::fill(&mut id)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let mut responder = Responder { is_over: Arc::clone(&is_over), threads: Vec::new() };
        for socket in sockets {
            socket.set_read_timeout(Some(WAIT))?;
            let id = u64::from_le_bytes(id);
            let agent = OurAgent { build: Build::ours(), port, id, addrs: Vec::new() };
            let mut answers = Answers::new(secret, agent);
            let is_over = Arc::clone(&is_over);
            let run = move || answers.give(&socket, &is_over);
            let thread = thread::Builder::new().name("discovery".to_owned()).spawn(run)?;
            responder.threads.push(thread);
        }
        info!(port, "answering discovery queries that know the cluster's secret");
        Ok(responder)
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            // A thread that panicked has reported that already.
            thread.join().ok();
        }
    }
}

/// Limits the number of answers per second.
struct Budget {
    per_second: u32,
    num_taken: u32,
    since: Instant,
}

impl Budget {
    fn new(per_second: u32, now: Instant) -> Budget {
        Budget { per_second, num_taken: 0, since: now }
    }

    fn take(&mut self, now: Instant) -> bool {
        if Duration::from_secs(1) <= now.duration_since(self.since) {
            *self = Budget::new(self.per_second, now);
        }
        self.num_taken += 1;
        self.num_taken <= self.per_second
    }
}

/// The answers, and the limits for the two kinds of senders.
struct Answers {
    secret: Secret,
    agent: OurAgent,
    ours: Budget,
    strangers: Budget,
    looked_at: Option<Instant>,
}

impl Answers {
    fn new(secret: Secret, agent: OurAgent) -> Answers {
        let now = Instant::now();
        Answers {
            secret,
            agent,
            ours: Budget::new(OURS_PER_SECOND, now),
            strangers: Budget::new(STRANGERS_PER_SECOND, now),
            looked_at: None,
        }
    }

    fn give(&mut self, socket: &UdpSocket, is_over: &AtomicBool) {
        let mut bytes = [0; DATAGRAM_BYTES_MAX];
        while !is_over.load(Ordering::SeqCst) {
            self.look_at_networks(socket);
            let (length, from) = match socket.recv_from(&mut bytes) {
                Ok(received) => received,
                Err(err) => {
                    let is_usual = [io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut];
                    if !is_usual.contains(&err.kind()) {
                        debug!(%err, "a query was not received");
                        thread::sleep(WAIT);
                    }
                    continue;
                }
            };
            if let Some(answer) = self.answer(&bytes[..length], Instant::now()) {
                // A sender that cannot be reached repeats its query, possibly over another network.
                if let Err(err) = socket.send_to(&answer, from) {
                    debug!(%from, %err, "a query was not answered");
                }
            }
        }
    }

    /// Joins the multicast group on new networks.
    fn look_at_networks(&mut self, socket: &UdpSocket) {
        let now = Instant::now();
        if self.looked_at.is_some_and(|at| now.duration_since(at) < LOOK_INTERVAL) {
            return;
        }
        self.looked_at = Some(now);
        let Ok(addrs) = link::addrs() else { return };
        let is_v4 = socket.local_addr().is_ok_and(|it| it.is_ipv4());
        for addr in addrs.iter().filter(|it| it.ip.is_ipv4() == is_v4) {
            // Joins again each time: an earlier join makes this an error without effect, and a
            // network that was gone meanwhile needs a new join.
            if let Err(err) = link::join(socket, addr)
                && err.kind() != io::ErrorKind::AddrInUse
            {
                debug!(ip = %addr.ip, %err, "queries of a network are not received");
            }
        }
        self.agent.addrs = addrs.iter().map(|it| it.ip).take(wire::ADDRS_MAX).collect();
    }

    fn answer(&mut self, query: &[u8], now: Instant) -> Option<Vec<u8>> {
        let query = wire::read_query(query, &self.secret)?;
        match query.is_ours {
            true => self.ours.take(now).then(|| self.agent.answer(&self.secret, &query.nonce)),
            false => self
                .strangers
                .take(now)
                .then(|| wire::answer_to_strangers(&self.agent.build, &query.nonce)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::Answer;
    use super::*;

    #[test]
    fn strangers_learn_the_version_and_cannot_use_up_what_is_ours() {
        const OURS: Secret = Secret([1; 32]);
        const OTHER: Secret = Secret([2; 32]);
        let addrs = vec![[10, 0, 0, 1].into()];
        let agent = OurAgent { build: Build::ours(), port: 5, id: 9, addrs };
        let mut answers = Answers::new(OURS, agent.clone());
        let (now, nonce) = (Instant::now(), [3; 16]);
        let foreign = wire::query(&OTHER, &nonce);
        let replies: Vec<Vec<u8>> =
            (0..10_000).filter_map(|_| answers.answer(&foreign, now)).collect();
        assert_eq!(replies.len(), STRANGERS_PER_SECOND as usize);
        let bare = Some(Answer::Stranger(Build::ours()));
        assert_eq!(wire::read_answer(&replies[0], &OTHER, &nonce), bare);
        let ours = answers.answer(&wire::query(&OURS, &nonce), now).unwrap();
        assert_eq!(wire::read_answer(&ours, &OURS, &nonce), Some(Answer::Ours(agent)));
        assert!(answers.answer(b"GET / HTTP/1.1", now).is_none());
        assert!(answers.answer(&foreign, now + Duration::from_secs(1)).is_some());
    }
}
