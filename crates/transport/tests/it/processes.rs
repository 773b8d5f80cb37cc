//! Ranks in separate processes: killed, frozen, or running normally.

use std::io::{BufRead, BufReader, Lines};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use jackalope_transport::{Dtype, Group, Listener, TransportError};
use rustix::process::{Pid, Signal, kill_process};

use super::{config, fails, noise};

/// Variable by which a new process of this test binary gets its rank: `rank address address …`.
const ROLE: &str = "JACKALOPE_TRANSPORT_TEST_ROLE";

/// The rank processes of these tests: started below with [`ROLE`], passing at once otherwise.
#[test]
fn the_other_rank_of_a_process_test() {
    #[expect(clippy::disallowed_methods, reason = "a test process has no command line of its own")]
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut words = role.split(' ');
    let rank: usize = words.next().unwrap().parse().unwrap();
    let addrs: Vec<SocketAddr> = words.map(|addr| addr.parse().unwrap()).collect();
    let listener = Listener::bind(addrs[rank]).unwrap();
    let mut group = Group::join(&listener, config(rank, &addrs)).unwrap();
    // Works until it is killed or the others leave.
    for step in 0.. {
        if sum_and_check(&mut group, step).is_err() {
            return;
        }
    }
}

/// Runs one round of work, with another size in every step.
fn sum_and_check(group: &mut Group, step: u64) -> Result<(), TransportError> {
    let bytes = [4096, 64, 3 << 20, 70_000][step as usize % 4];
    let (size, rank) = (group.size() as u64, group.rank() as u64);
    let mut data = noise(bytes, step * size + rank);
    group.all_sum(&mut data, Dtype::U32)?;
    let parts: Vec<Vec<u8>> = (0..size).map(|rank| noise(bytes, step * size + rank)).collect();
    let word = |part: &[u8], at: usize| u32::from_le_bytes(*part[at..].first_chunk().unwrap());
    for at in (0..bytes).step_by(4) {
        let sum = parts.iter().fold(0u32, |sum, part| sum.wrapping_add(word(part, at)));
        assert_eq!(word(&data, at), sum, "step {step}, byte {at}");
    }
    Ok(())
}

/// A rank in a separate process, which is killed when this is dropped.
struct RankProcess {
    child: Child,
    _output: Lines<BufReader<ChildStdout>>,
}

impl RankProcess {
    fn start(rank: usize, addrs: &[SocketAddr]) -> RankProcess {
        let words: Vec<String> = addrs.iter().map(SocketAddr::to_string).collect();
        let program = std::env::current_exe().unwrap();
        #[expect(clippy::disallowed_methods, reason = "this crate is below the process wrapper")]
        let mut child = Command::new(program)
            .args(["--exact", "processes::the_other_rank_of_a_process_test", "--nocapture"])
            .env(ROLE, format!("{rank} {}", words.join(" ")))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        RankProcess { child, _output: output }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for RankProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Addresses for `size` ranks; ours is bound, the others were free a moment ago.
fn addresses(size: usize) -> (Listener, Vec<SocketAddr>) {
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let own = Listener::bind(any).unwrap();
    let others: Vec<Listener> = (1..size).map(|_| Listener::bind(any).unwrap()).collect();
    let addrs = [&own].into_iter().chain(&others).map(Listener::local_addr).collect();
    (own, addrs)
}

#[test]
fn processes_add_up_the_same_numbers() {
    for size in [2, 3] {
        let (listener, addrs) = addresses(size);
        let _others: Vec<_> = (1..size).map(|rank| RankProcess::start(rank, &addrs)).collect();
        let mut group = Group::join(&listener, config(0, &addrs)).unwrap();
        for step in 0..40 {
            sum_and_check(&mut group, step).unwrap();
        }
    }
}

#[test]
fn a_killed_process_is_noticed_at_once_and_by_name() {
    for seed in 0..6 {
        let (listener, addrs) = addresses(3);
        let _one = RankProcess::start(1, &addrs);
        let two = RankProcess::start(2, &addrs);
        // The deadline is far away: the loss itself ends this.
        let mut group = Group::join(&listener, config(0, &addrs)).unwrap();
        thread::scope(|scope| {
            for step in 0.. {
                if step == seed {
                    scope.spawn(|| two.signal(Signal::KILL));
                }
                let Err(error) = sum_and_check(&mut group, step) else { continue };
                // Rank 1 may have noticed first.
                let names_two = match &error {
                    TransportError::PeerLost { rank, .. } => *rank == 2 || *rank == 1,
                    TransportError::PeerFailed { rank: 1, reason, .. } => reason.contains("rank 2"),
                    _ => false,
                };
                assert!(names_two, "{error}");
                break;
            }
        });
    }
}

#[test]
fn a_frozen_process_is_named_at_the_deadline() {
    let (listener, addrs) = addresses(2);
    let one = RankProcess::start(1, &addrs);
    let mut impatient = config(0, &addrs);
    impatient.op_timeout = Duration::from_secs(1);
    let mut group = Group::join(&listener, impatient).unwrap();
    one.signal(Signal::STOP);
    // Data that it had sent before it froze still completes a sum.
    let error = (0..).find_map(|step| sum_and_check(&mut group, step).err()).unwrap();
    assert!(matches!(error, TransportError::Deadline { .. }), "{error}");
    assert_eq!(error.ranks(), [1]);
    let later = fails(group.barrier());
    assert!(matches!(later, TransportError::Poisoned { .. }), "{later}");
}
