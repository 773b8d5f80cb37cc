//! Unauthenticated peers open connections to every port as fast as they can, while a rank is
//! killed.
#![expect(clippy::print_stdout, reason = "a run says how long the rank was away")]

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use serde_json::{Value, json};

use crate::checkpoint::{Copy, exact};
use crate::http::{End, Server};
use crate::ports::free_port;
use crate::program::{Program, send, wait_for};

/// New connections per second of one peer, over all ports.
const RATE: u64 = 1000;
/// Connections that one peer holds open.
const HELD: usize = 1500;
/// Maximum duration of a flood.
const FLOOD_MAX: Duration = Duration::from_secs(90);
/// A killed rank is back within this time, even on a busy machine.
const BACK_MAX: Duration = Duration::from_secs(10);
/// `/health` answers within this time, even on a busy machine.
const HEALTH_MAX: Duration = Duration::from_secs(5);

/// Unauthenticated peers at other addresses of this machine.
struct Flood {
    is_over: Arc<AtomicBool>,
    num_opened: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Flood {
    /// Starts one peer at 127.0.0.2 and one at 127.0.0.3, on all these ports.
    fn start(ports: &[u16]) -> Flood {
        let all =
            Rlimit { current: getrlimit(Resource::Nofile).maximum, ..getrlimit(Resource::Nofile) };
        setrlimit(Resource::Nofile, all).unwrap();
        let (is_over, num_opened) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let threads = [2, 3].map(|last| {
            let (ports, is_over, num_opened) =
                (ports.to_vec(), Arc::clone(&is_over), Arc::clone(&num_opened));
            std::thread::spawn(move || flood(last, &ports, &is_over, &num_opened))
        });
        Flood { is_over, num_opened, threads: threads.into() }
    }

    /// Ends the flood and returns the number of its connections.
    fn end(self) -> u64 {
        self.is_over.store(true, Ordering::SeqCst);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        self.num_opened.load(Ordering::SeqCst)
    }
}

fn flood(last: u8, ports: &[u16], is_over: &AtomicBool, num_opened: &AtomicU64) {
    let began = Instant::now();
    let mut held: VecDeque<TcpStream> = VecDeque::new();
    let mut number = 0;
    while !is_over.load(Ordering::SeqCst) && began.elapsed() < FLOOD_MAX {
        let due = began.elapsed().as_millis() as u64 * RATE / 1000;
        while number < due {
            let port = ports[number as usize % ports.len()];
            // Each port gets the four kinds in turn.
            let kind = number as usize / ports.len() % 4;
            number += 1;
            // Local ports may run out for a moment.
            let Some(mut stream) = open(last, port) else { continue };
            num_opened.fetch_add(1, Ordering::Relaxed);
            let said: &[u8] = match kind {
                0 => b"",
                1 => b"JKLP\x09\x00\x05",
                2 => b"P",
                // This peer closes the connection at once.
                _ => continue,
            };
            let _ = stream.write(said);
            held.push_back(stream);
            if HELD < held.len() {
                held.pop_front();
            }
        }
        // Some connections send a byte now and then.
        for stream in held.iter_mut().step_by(97) {
            let _ = stream.write(b"O");
        }
        // Only the rate matters, not the exact time.
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Starts a connection from 127.0.0.`last`. Does not wait.
fn open(last: u8, port: u16) -> Option<TcpStream> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).ok()?;
    rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, last], 0))).ok()?;
    let stream = TcpStream::from(socket);
    stream.set_nonblocking(true).ok()?;
    match rustix::net::connect(stream.as_fd(), &SocketAddr::from(([127, 0, 0, 1], port))) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Some(stream),
        Err(_) => None,
    }
}

/// TCP ports on which a process listens.
fn ports_of(pid: u32) -> BTreeSet<u16> {
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let links = fds.filter_map(|fd| fs::read_link(fd.path()).ok());
    let sockets: BTreeSet<String> = links
        .filter_map(|link| {
            let link = link.to_string_lossy().into_owned();
            Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
        })
        .collect();
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let port = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // 0A means LISTEN.
        let is_ours = words[3] == "0A" && sockets.contains(words[9]);
        is_ours.then(|| u16::from_str_radix(words[1].rsplit_once(':').unwrap().1, 16).unwrap())
    };
    table.lines().skip(1).filter_map(port).collect()
}

fn parent_of(pid: u32) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn pid_of(health: &Value, rank: usize) -> u32 {
    u32::try_from(health["ranks"][rank]["pid"].as_u64().unwrap()).unwrap()
}

/// Polls `/health`; returns the number of answers and the longest wait for one.
fn watch_health(url: &str, is_over: Arc<AtomicBool>) -> JoinHandle<(u64, Duration)> {
    let addr = url.strip_prefix("http://").unwrap().to_owned();
    std::thread::spawn(move || {
        let (mut num_answers, mut longest) = (0, Duration::ZERO);
        while !is_over.load(Ordering::SeqCst) {
            let began = Instant::now();
            let mut stream = TcpStream::connect(&addr).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            let said = "GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
            stream.write_all(said.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            longest = longest.max(began.elapsed());
            num_answers += 1;
            std::thread::sleep(Duration::from_millis(50));
        }
        (num_answers, longest)
    })
}

/// Two unauthenticated peers open two thousand connections a second over all ports, while rank 1 is
/// killed. No stream ends, no token changes, the rank is back soon, and `/health` keeps answering.
fn check(server: &Server, more_ports: &[u16]) {
    let request = |idx: u64| {
        let prompt: Vec<u64> =
            (0..4 + idx * 9).map(|at| (at * 53 + idx * 307) % 1900 + 20).collect();
        json!({
            "prompt": prompt, "max_tokens": 400, "ignore_eos": true, "temperature": 0,
            "return_token_ids": true,
        })
    };
    let requests: Vec<Value> = (0..4).map(request).collect();
    let expected: Vec<_> = requests.iter().map(|it| server.complete(it)).collect();
    let health = server.health();
    let (first, victim) = (pid_of(&health, 0), pid_of(&health, 1));
    let mut ports: BTreeSet<u16> = more_ports.iter().copied().collect();
    for pid in [server.program.pid(), first, victim] {
        ports.extend(ports_of(pid));
    }
    let ports: Vec<u16> = ports.into_iter().collect();
    assert!(4 <= ports.len(), "HTTP, control and a data port each: {ports:?}");

    let began = Instant::now();
    let flood = Flood::start(&ports);
    let health_is_over = Arc::<AtomicBool>::default();
    let watching = watch_health(&server.url, Arc::clone(&health_is_over));
    // By then the peers exceed their share of every port.
    wait_for("the flood", || (3000 < flood.num_opened.load(Ordering::SeqCst)).then_some(()));
    let mut streams: Vec<_> = requests.iter().map(|it| server.stream(it)).collect();
    streams.iter_mut().for_each(|stream| stream.read_tokens(5));
    send(victim, Signal::KILL);
    let killed = Instant::now();
    wait_for("the rank", || {
        let health = server.health();
        let has_pid =
            health["ranks"][1]["pid"].as_u64().is_some_and(|pid| pid != u64::from(victim));
        let is_back =
            has_pid && health["counters"]["recoveries"] == 1 && health["status"] == "healthy";
        is_back.then_some(())
    });
    let back = killed.elapsed();
    for (idx, (stream, expected)) in streams.into_iter().zip(expected).enumerate() {
        let (answer, end) = stream.read_all();
        assert_eq!(end, End::Done, "stream {idx}");
        assert_eq!(answer, expected, "stream {idx}");
    }
    health_is_over.store(true, Ordering::SeqCst);
    let (num_answers, longest) = watching.join().unwrap();
    let num_opened = flood.end();
    println!(
        "{num_opened} connections in {:.1} s to {} ports; rank back after {:.2} s; {num_answers} \
         answers of /health, the slowest after {:.2} s",
        began.elapsed().as_secs_f32(),
        ports.len(),
        back.as_secs_f32(),
        longest.as_secs_f32()
    );
    assert_eq!(server.health()["ranks"][0]["pid"], first, "the other rank keeps its weights");
    assert!(back < BACK_MAX, "the rank was back after {back:?}");
    assert!(0 < num_answers && longest < HEALTH_MAX, "/health took {longest:?}");
}

#[test]
fn a_flood_of_strangers_on_every_port_does_not_keep_a_replacement_out() {
    let server = Server::start(exact(), "--ranks 2");
    check(&server, &[]);
    server.program.signal(Signal::INT);
    let stderr = server.program.end().stderr;
    // At most one line for each of two peers on each of two ports in each log interval, plus the
    // lines of the ranks.
    let refusals = stderr.lines().filter(|line| line.contains("refused")).count();
    assert!((1..100).contains(&refusals), "{refusals} lines:\n{stderr}");
}

#[test]
fn a_flood_of_strangers_on_an_agents_port_too_does_not_keep_a_replacement_out() {
    let home = Copy::new();
    let free = free_port();
    let (model, port) = (exact().to_str().unwrap(), free.to_string());
    let words = ["serve", "--model", model, "--port", "0", "--json", "--control-port", "0"];
    let hosts = ["--hosts", "127.0.0.1,127.0.0.1", "--agent-port", &port];
    let words = [&words[..], &hosts].concat();
    let env = [("JACKALOPE_HOME", home.path().to_str().unwrap())];
    let server = Server::of(Program::start_with(&words, "", &env));
    let agent = parent_of(pid_of(&server.health(), 0));
    assert!(ports_of(agent).contains(&free), "ranks are children of their agent");
    check(&server, &[free]);
    server.program.signal(Signal::INT);
    assert!(server.program.end().status.success());
    let stop = Program::start_with(&["agent", "stop"], "", &env).end();
    assert!(stop.status.success(), "{stop:?}");
}
