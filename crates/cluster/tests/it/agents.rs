//! An agent and its clients, over loopback, with the system's own programs.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use jackalope_cluster::agent::{
    Agent, AgentConfig, AgentState, EnvFile, Order, OrderedProgram, Program, Stream, serve,
};
use jackalope_cluster::exchange::Library;
use jackalope_protocol::Secret;

const LONG: Duration = Duration::from_secs(30);
const SECRET: Secret = Secret([5; 32]);

struct Fixture {
    addr: SocketAddr,
    thread: JoinHandle<()>,
}

impl Fixture {
    fn start(linger: Option<Duration>) -> Fixture {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let config = AgentConfig {
            secret: SECRET,
            rank_program: PathBuf::from("/bin/cat"),
            files_dir: std::env::temp_dir(),
            library: Library::default(),
            linger,
            is_over: Arc::default(),
        };
        let thread = std::thread::spawn(move || serve(&listener, config).unwrap());
        Fixture { addr, thread }
    }

    /// A client, and the lines it hears.
    fn client(&self) -> (Agent, Receiver<(String, Stream, String)>) {
        let (lines, heard) = channel();
        let lines = std::sync::Mutex::new(lines);
        let on_line = move |name: &str, stream: Stream, text: &str| {
            lines.lock().unwrap().send((name.to_owned(), stream, text.to_owned())).ok();
        };
        let agent = Agent::connect("here", vec![self.addr], SECRET, Box::new(on_line));
        agent.wait_until_up(LONG).unwrap();
        (agent, heard)
    }

    fn stop(self) {
        let (agent, _heard) = self.client();
        agent.stop();
        self.thread.join().unwrap();
    }
}

fn shell(name: &str, script: &str) -> Order {
    Order {
        name: name.to_owned(),
        program: OrderedProgram::Other("/bin/sh".to_owned()),
        args: vec!["-c".to_owned(), script.to_owned()],
        env: vec![("GREETING".to_owned(), "hello".to_owned())],
        files: Vec::new(),
        cwd: None,
        lease_ms: 0,
    }
}

fn wait<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LONG;
    loop {
        if let Some(found) = ask() {
            return found;
        }
        assert!(Instant::now() < deadline, "nothing happened");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn pid(program: &Program) -> u32 {
    program.wait_until_started(LONG).unwrap();
    program.pid().expect("it runs")
}

fn runs(pid: u32) -> bool {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    rustix::process::test_kill_process(pid).is_ok()
}

#[test]
fn a_program_gets_its_environment_and_its_lines_and_end_are_told() {
    let fixture = Fixture::start(None);
    let (agent, heard) = fixture.client();
    let file = EnvFile { variable: "HOSTS".to_owned(), content: "[1]".to_owned() };
    let script =
        "echo $GREETING; cat $HOSTS; echo; ls -l $HOSTS | cut -c1-10; pwd; echo oops >&2; exit 7";
    let cwd = Some("/".to_owned());
    let order = Order { files: vec![file], cwd, ..shell("talker", script) };
    let program = agent.start(order);
    let ended = wait(|| program.ended());
    assert_eq!(
        (ended.code, ended.exit.as_str(), ended.last_words.as_str()),
        (7, "exit status 7", "oops")
    );
    let lines: Vec<_> = heard.try_iter().collect();
    let said = |which: Stream| -> Vec<String> {
        lines.iter().filter(|it| it.1 == which).map(|it| it.2.clone()).collect()
    };
    assert_eq!(said(Stream::Out), ["hello", "[1]", "-rw-------", "/"]);
    assert_eq!(said(Stream::Err), ["oops"]);
    fixture.stop();
}

#[test]
fn a_program_that_cannot_be_started_says_why() {
    let fixture = Fixture::start(None);
    let (agent, _heard) = fixture.client();
    let program = OrderedProgram::Other("no-such-program".to_owned());
    let ended = agent.start(Order { program, ..shell("missing", "") });
    let ended = wait(|| ended.ended());
    assert_eq!(ended.code, 127);
    assert!(ended.exit.contains("starting `missing` failed"), "{}", ended.exit);
    fixture.stop();
}

#[test]
fn the_rank_program_gets_the_secret_and_input_reaches_it() {
    let fixture = Fixture::start(None);
    let (agent, heard) = fixture.client();
    let order = Order { program: OrderedProgram::Rank, args: Vec::new(), ..shell("rank 0", "") };
    let program = agent.start(order);
    assert_eq!(heard.recv_timeout(LONG).unwrap().2, SECRET.to_hex());
    program.input(b"more\n".to_vec());
    assert_eq!(heard.recv_timeout(LONG).unwrap().2, "more");
    program.input(Vec::new());
    assert_eq!(wait(|| program.ended()).code, 0);
    fixture.stop();
}

#[test]
fn signals_reach_the_children_of_a_program_too() {
    let fixture = Fixture::start(None);
    let (agent, heard) = fixture.client();
    for (name, end) in [("term", 15), ("kill", 9)] {
        let program = agent.start(shell(name, "sleep 600 & echo $!; wait"));
        let child: u32 = heard.recv_timeout(LONG).unwrap().2.parse().unwrap();
        assert!(runs(child));
        match end {
            9 => program.kill(),
            signal => program.signal(signal),
        }
        assert_eq!(wait(|| program.ended()).code, 128 + end);
        // Orphans are reaped by whoever is the system's first process; a zombie does not run.
        wait(|| {
            let status = std::fs::read_to_string(format!("/proc/{child}/stat"));
            (!runs(child) || status.is_ok_and(|it| it.contains(") Z "))).then_some(())
        });
    }
    fixture.stop();
}

#[test]
fn programs_end_with_a_session_that_ends_on_purpose() {
    let fixture = Fixture::start(None);
    let (agent, _heard) = fixture.client();
    let order = Order { lease_ms: 600_000, ..shell("long", "exec sleep 600") };
    let pid = pid(&agent.start(order));
    drop(agent);
    wait(|| (!runs(pid)).then_some(()));
    fixture.stop();
}

#[test]
fn a_program_outlives_a_lost_session_for_its_lease_and_is_taken_over() {
    let fixture = Fixture::start(None);
    let order = Order { lease_ms: 600_000, ..shell("long", "echo up; exec sleep 600") };
    let (agent, _heard) = fixture.client();
    let first = pid(&agent.start(order.clone()));
    agent.abandon();
    let (agent, _heard) = fixture.client();
    wait(|| {
        let status = agent.status(LONG).unwrap();
        (status.len() == 1 && !status[0].is_owned && status[0].pid == first).then_some(())
    });
    assert_eq!(pid(&agent.start(order.clone())), first, "the same again is taken over");
    // Something else of that name takes its place.
    let other = Order { args: vec!["-c".to_owned(), "sleep 500".to_owned()], ..order };
    let second = pid(&agent.start(other));
    assert_ne!(second, first);
    assert!(!runs(first));
    fixture.stop();
    wait(|| (!runs(second)).then_some(()));
}

#[test]
fn what_nobody_claims_in_time_is_killed() {
    let fixture = Fixture::start(None);
    let (agent, _heard) = fixture.client();
    let pid = pid(&agent.start(Order { lease_ms: 50, ..shell("long", "exec sleep 600") }));
    agent.abandon();
    wait(|| (!runs(pid)).then_some(()));
    fixture.stop();
}

#[test]
fn what_another_session_runs_is_left_to_it() {
    let fixture = Fixture::start(None);
    let (first, _heard) = fixture.client();
    let order = shell("rank 0", "exec sleep 600");
    let kept = pid(&first.start(order.clone()));
    let (second, _heard) = fixture.client();
    let program = second.start(order);
    let ended = wait(|| program.ended());
    assert!(ended.exit.contains("another session runs `rank 0`"), "{}", ended.exit);
    assert!(ended.exit.contains("hint:"), "{}", ended.exit);
    assert!(runs(kept));
    drop(first);
    fixture.stop();
}

/// Passes bytes on in both directions, until told to hold back what comes from the agent.
fn half_open_wire(to: SocketAddr) -> (SocketAddr, std::sync::Arc<std::sync::atomic::AtomicBool>) {
    use std::sync::atomic::{AtomicBool, Ordering};
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let is_deaf = std::sync::Arc::new(AtomicBool::new(false));
    let deaf = std::sync::Arc::clone(&is_deaf);
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (client, agent) = (client.unwrap(), TcpStream::connect(to).unwrap());
            let (mut a, mut b) = (client.try_clone().unwrap(), agent.try_clone().unwrap());
            // The agent goes on hearing beats of this connection, whatever the client does.
            std::thread::spawn(move || std::io::copy(&mut a, &mut b).map(|_| std::thread::park()));
            let (mut a, mut b) = (client, agent);
            let (deaf, was_deaf) = (std::sync::Arc::clone(&deaf), deaf.load(Ordering::SeqCst));
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(length @ 1..) = b.read(&mut bytes) {
                    let is_held = deaf.load(Ordering::SeqCst) && !was_deaf;
                    if !is_held && a.write_all(&bytes[..length]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (addr, is_deaf)
}

#[test]
fn a_client_that_connects_again_owns_what_it_owned() {
    let fixture = Fixture::start(None);
    let (wire, is_deaf) = half_open_wire(fixture.addr);
    let agent = Agent::connect("here", vec![wire], SECRET, Box::new(|_, _, _| {}));
    let order = shell("rank 0", "exec sleep 600");
    let first = agent.start(order.clone());
    let kept = pid(&first);
    // The connection is silent for us and alive for the agent; new ones work.
    is_deaf.store(true, std::sync::atomic::Ordering::SeqCst);
    wait(|| matches!(agent.state(), AgentState::Down { .. }).then_some(()));
    wait(|| matches!(agent.state(), AgentState::Up).then_some(()));
    // An answer after the one to our claim.
    agent.status(LONG).unwrap();
    assert_eq!((first.ended(), first.pid()), (None, Some(kept)));
    first.kill();
    assert_eq!(
        wait(|| first.ended()).exit,
        "killed by signal 9 (SIGKILL, often the system out of memory)"
    );
    assert_ne!(pid(&agent.start(order)), kept);
    drop(agent);
    fixture.stop();
}

#[test]
fn strangers_change_nothing() {
    let fixture = Fixture::start(None);
    let (agent, heard) = fixture.client();
    let order = Order { program: OrderedProgram::Rank, args: Vec::new(), ..shell("cat", "") };
    let program = agent.start(order);
    heard.recv_timeout(LONG).unwrap();
    let wrong = Agent::connect("x", vec![fixture.addr], Secret([6; 32]), Box::new(|_, _, _| {}));
    let err = wrong.wait_until_up(Duration::from_secs(1)).unwrap_err();
    assert!(err.contains("another secret"), "{err}");
    let mut quiet = Vec::new();
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"JKLP\xff\xff\x00", &[0xff; 9000]] {
        let mut stream = TcpStream::connect(fixture.addr).unwrap();
        stream.write_all(bytes).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        // Told who we are, and no more.
        let mut told = Vec::new();
        stream.read_to_end(&mut told).ok();
        assert!(told.len() < 80, "{} bytes", told.len());
        quiet.push(TcpStream::connect(fixture.addr).unwrap());
    }
    program.input(b"still here\n".to_vec());
    assert_eq!(heard.recv_timeout(LONG).unwrap().2, "still here");
    assert!(matches!(agent.state(), AgentState::Up));
    drop(agent);
    fixture.stop();
}

#[test]
fn an_agent_nobody_needs_ends() {
    let fixture = Fixture::start(Some(Duration::from_millis(100)));
    let (agent, _heard) = fixture.client();
    pid(&agent.start(shell("long", "exec sleep 600")));
    drop(agent);
    fixture.thread.join().unwrap();
}

#[test]
fn an_order_stands_until_the_machine_can_be_reached() {
    // The address is known before anybody listens there.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    drop(listener);
    let agent = Agent::connect("later", vec![addr], SECRET, Box::new(|_, _, _| {}));
    let program = agent.start(shell("late", "exit 3"));
    let trouble = wait(|| program.trouble().filter(|it| it.contains("refused")));
    assert!(trouble.contains(&addr.to_string()), "{trouble}");
    let listener = TcpListener::bind(addr).unwrap();
    let config = AgentConfig {
        secret: SECRET,
        rank_program: PathBuf::from("/bin/cat"),
        files_dir: std::env::temp_dir(),
        library: Library::default(),
        linger: None,
        is_over: Arc::default(),
    };
    let thread = std::thread::spawn(move || serve(&listener, config).unwrap());
    assert_eq!(wait(|| program.ended()).code, 3);
    agent.stop();
    thread.join().unwrap();
}
