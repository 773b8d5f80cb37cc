//! A server over three hosts, and the faults that can be inflicted on the hosts and their network.

use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;

use crate::http::Server;
use crate::lab::Lab;
use crate::machine::Harm;
use crate::plan::{ABSENT_AFTER, Fault, Kind, STALL};
use crate::program::send;

/// The coordinator's machine, and two workers.
const NUM_HOSTS: usize = 3;

/// Hosts in network namespaces, with a server over all of them.
pub(crate) struct Network {
    /// The server ends before its hosts do.
    pub(crate) server: Server,
    lab: Lab,
}

impl Network {
    pub(crate) fn start(model: &Path) -> Network {
        let lab = Lab::new(NUM_HOSTS);
        let (stall, absent) = (STALL.as_secs(), ABSENT_AFTER.as_secs());
        let args = format!("--stall-timeout {stall} --absent-after {absent}");
        let server = lab.serve(model, &args);
        Network { server, lab }
    }

    /// Returns the worker that a random number selects; never the coordinator's machine.
    fn worker(choice: usize) -> usize {
        1 + choice % (NUM_HOSTS - 1)
    }

    fn signal(&self, at: usize, text: &str, signal: Signal) -> Vec<u32> {
        let pids = self.lab.hosts[at].pids_of(text);
        pids.iter().for_each(|pid| send(*pid, signal));
        pids
    }

    /// Inflicts a planned fault and mends what can be mended. Returns the harm, and when it was
    /// mended.
    pub(crate) fn inflict(
        &mut self,
        fault: &Fault,
        now_s: impl Fn() -> f64,
    ) -> (Harm, Option<f64>) {
        let first = fault.victims[0];
        let mut harm = Harm { at_s: now_s(), ..Harm::default() };
        let worker = Network::worker(first);
        match fault.kind {
            Kind::Kill | Kind::Burst => {
                for (idx, (victim, gap)) in fault.victims.iter().zip(&fault.gaps).enumerate() {
                    if idx != 0 {
                        std::thread::sleep(*gap);
                    }
                    let at = victim % NUM_HOSTS;
                    harm.at_s = now_s();
                    harm.victims.extend(self.signal(at, "jackalope-rank", Signal::KILL));
                    harm.words += &format!(" host {at}");
                }
            }
            Kind::Freeze => {
                let at = first % NUM_HOSTS;
                harm.victims = self.signal(at, "jackalope-rank", Signal::STOP);
                harm.words = format!(" host {at}");
            }
            Kind::HungAgent => {
                harm.victims = self.signal(worker, "jackalope agent", Signal::STOP);
                harm.words = format!(" host {worker}");
            }
            Kind::KilledAgent => {
                harm.victims = self.signal(worker, "jackalope agent", Signal::KILL);
                harm.words = format!(" host {worker}");
            }
            Kind::MachineAway => {
                self.lab.switch_off(worker);
                harm.words = format!(" host {worker}");
                std::thread::sleep(fault.length);
                self.lab.switch_on(worker);
                return (harm, Some(now_s()));
            }
            Kind::LinkToCoordinator | Kind::LinkBetweenWorkers | Kind::OneWay => {
                return self.cut(fault, harm, now_s);
            }
            _ => unreachable!("this is not done on hosts"),
        }
        (harm, None)
    }

    fn cut(&self, fault: &Fault, mut harm: Harm, now_s: impl Fn() -> f64) -> (Harm, Option<f64>) {
        let choice = fault.victims[0];
        let worker = Network::worker(choice);
        let (from, to) = match fault.kind {
            Kind::LinkToCoordinator => (0, worker),
            Kind::LinkBetweenWorkers => (1, 2),
            // One direction of a worker's link: from the coordinator, or to another host.
            _ if choice.is_multiple_of(4) => (0, worker),
            _ => (worker, (worker + 1 + choice / 4 % 2) % NUM_HOSTS),
        };
        harm.words = format!(" hosts {from} and {to}");
        let (one, other) = (&self.lab.hosts[from], &self.lab.hosts[to]);
        let is_both_ways = fault.kind != Kind::OneWay;
        one.lose(other, true);
        if is_both_ways {
            other.lose(one, true);
        }
        std::thread::sleep(fault.length);
        one.lose(other, false);
        other.lose(one, false);
        (harm, Some(now_s()))
    }

    /// How long it may take until all hosts compute again.
    pub(crate) fn return_timeout() -> Duration {
        Duration::from_secs(60)
    }

    /// Whether all machines compute.
    pub(crate) fn is_whole(&self, health: &serde_json::Value) -> bool {
        health["world_size"] == NUM_HOSTS
    }
}
