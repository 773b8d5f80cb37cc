//! An agent and its clients, over loopback, with the system's own programs.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use jackalope_fleet::agent::{
    Agent, AgentConfig, AgentRefusal, AgentState, EnvFile, OnLine, Order, OrderedProgram, Program,
    Revive, Stream, Trust, no_library, serve,
};
use jackalope_fleet::home::Home;
use jackalope_fleet::trust::{Credentials, Expected, Role, TrustStore};
use jackalope_protocol::secure::Peer;
use jackalope_protocol::{Identity, Secret};

const LONG: Duration = Duration::from_secs(30);
const SECRET: Secret = Secret([5; 32]);

struct Fixture {
    addr: SocketAddr,
    store: TrustStore,
    thread: JoinHandle<()>,
}

/// Credentials of the coordinator that all agents here trust.
fn ours() -> Credentials {
    let identity = Identity::from_private(Secret([1; 32]), "coordinator");
    Credentials { secret: SECRET, identity, expected: Expected::TokenHolders }
}

/// Credentials of another machine that holds the secret.
fn another(name: &str) -> Credentials {
    Credentials { identity: Identity::generate(name).unwrap(), ..ours() }
}

fn config(store: &TrustStore, linger: Option<Duration>) -> AgentConfig {
    let peer = Peer { key: ours().identity.public(), name: "coordinator".to_owned() };
    let trust = |list: &mut jackalope_fleet::trust::TrustList| {
        list.trust_coordinator(&peer);
        Ok(())
    };
    store.update(trust).unwrap();
    AgentConfig {
        secret: SECRET,
        identity: Identity::generate("agent").unwrap(),
        trust: Trust::Listed(store.clone()),
        rank_program: PathBuf::from("/bin/cat"),
        files_dir: std::env::temp_dir(),
        library: no_library(),
        linger,
        is_over: Arc::default(),
    }
}

/// Returns a trust list in a folder of its own.
fn store() -> TrustStore {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("jackalope-agents-{}-{number}", std::process::id());
    let dir = std::env::temp_dir().join(name);
    std::fs::remove_dir_all(&dir).ok();
    TrustStore::new(&Home::new(dir))
}

impl Fixture {
    fn start(linger: Option<Duration>) -> Fixture {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let store = store();
        let config = config(&store, linger);
        let thread = std::thread::spawn(move || serve(&listener, config).unwrap());
        Fixture { addr, store, thread }
    }

    /// A client, and the lines it hears.
    fn client(&self) -> (Agent, Receiver<(String, Stream, String)>) {
        self.client_of(ours())
    }

    /// Lets another coordinator command the machine.
    fn trust(&self, coordinator: &Credentials, name: &str) {
        let peer = Peer { key: coordinator.identity.public(), name: name.to_owned() };
        let trusted = self.store.update(|list| {
            list.trust_coordinator(&peer);
            Ok(())
        });
        trusted.unwrap();
    }

    fn client_of(&self, ours: Credentials) -> (Agent, Receiver<(String, Stream, String)>) {
        let (lines, heard) = channel();
        let lines = std::sync::Mutex::new(lines);
        let on_line = move |name: &str, stream: Stream, text: &str| {
            lines.lock().unwrap().send((name.to_owned(), stream, text.to_owned())).ok();
        };
        let agent = Agent::connect("here", vec![self.addr], ours, Box::new(on_line));
        agent.wait_until_up(LONG).unwrap();
        (agent, heard)
    }

    fn stop(self) {
        let (agent, _heard) = self.client();
        agent.stop();
        self.thread.join().unwrap();
        std::fs::remove_dir_all(self.store.path().parent().unwrap()).unwrap();
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
        ticket: None,
    }
}

/// The rank program, which in these tests echoes its standard input.
fn rank(name: &str, ticket: Secret) -> Order {
    let program = OrderedProgram::Rank;
    Order { program, args: Vec::new(), ticket: Some(ticket), ..shell(name, "") }
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
fn a_program_gets_its_environment_and_its_lines_and_end_are_reported() {
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
fn the_rank_program_gets_its_ticket_and_input_reaches_it() {
    let fixture = Fixture::start(None);
    let (agent, heard) = fixture.client();
    let ticket = Secret([77; 32]);
    let program = agent.start(rank("rank 0", ticket));
    assert_eq!(heard.recv_timeout(LONG).unwrap().2, ticket.to_hex());
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
        // Orphans are reaped by the system's first process; a zombie does not run.
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
fn unclaimed_programs_are_killed_in_time() {
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

/// Forwards bytes in both directions, until the test holds back those from the agent.
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
            // The agent still receives heartbeats on this connection, whatever the client does.
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
    let agent = Agent::connect("here", vec![wire], ours(), Box::new(|_, _, _| {}));
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

/// A TCP proxy whose target can be changed.
#[derive(Clone)]
struct Wire {
    to: Arc<Mutex<SocketAddr>>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Wire {
    fn to(addr: SocketAddr) -> (Wire, SocketAddr) {
        let wire = Wire { to: Arc::new(Mutex::new(addr)), open: Arc::default() };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let accepting = wire.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                let Ok(agent) = TcpStream::connect(*accepting.to.lock().unwrap()) else { continue };
                for (from, to) in [(&client, &agent), (&agent, &client)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    accepting.open.lock().unwrap().push(from.try_clone().unwrap());
                    std::thread::spawn(move || {
                        std::io::copy(&mut from, &mut to).ok();
                        to.shutdown(std::net::Shutdown::Both).ok();
                    });
                }
            }
        });
        (wire, addr)
    }

    fn point_at(&self, addr: SocketAddr) {
        *self.to.lock().unwrap() = addr;
        for stream in self.open.lock().unwrap().drain(..) {
            stream.shutdown(std::net::Shutdown::Both).ok();
        }
    }
}

#[test]
fn a_hung_agent_is_replaced_and_the_next_one_adopts_its_programs() {
    let (hung, next) = (Fixture::start(None), Fixture::start(None));
    let (wire, addr) = Wire::to(hung.addr);
    let num_revived = Arc::new(AtomicUsize::new(0));
    let (revives, revived_wire, next_addr) = (Arc::clone(&num_revived), wire.clone(), next.addr);
    let revive = move || {
        revives.fetch_add(1, Ordering::SeqCst);
        revived_wire.point_at(next_addr);
        Ok(())
    };
    let (on_line, revive): (OnLine, Revive) = (Box::new(|_, _, _| {}), Box::new(revive));
    let agent = Agent::connect_or_revive("here", vec![addr], ours(), on_line, Some(revive));
    let order = Order { lease_ms: 600_000, ..shell("rank 0", "exec sleep 600") };
    let program = agent.start(order.clone());
    let kept = pid(&program);
    // A listener that accepts connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    wire.point_at(silent.local_addr().unwrap());
    wait(|| (0 < num_revived.load(Ordering::SeqCst)).then_some(()));
    wait(|| matches!(agent.state(), AgentState::Up).then_some(()));
    let status = wait(|| agent.status(LONG).ok().filter(|it| !it.is_empty()));
    assert_eq!((status[0].name.as_str(), status[0].pid), ("rank 0", kept));
    assert_eq!((program.ended(), program.pid()), (None, Some(kept)));
    assert_eq!(pid(&agent.start(order)), kept, "the same again is what runs");
    program.kill();
    let ended = wait(|| program.ended());
    assert!(ended.exit.contains("its agent was replaced"), "{}", ended.exit);
    assert!(!runs(kept) || is_zombie(kept));
    assert_eq!(num_revived.load(Ordering::SeqCst), 1);
    drop(agent);
    hung.stop();
    next.stop();
}

fn is_zombie(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    status.is_ok_and(|it| it.contains(") Z "))
}

#[test]
fn an_agent_tries_addresses_for_its_client() {
    let fixture = Fixture::start(None);
    let (agent, _heard) = fixture.client();
    let deadline = Duration::from_secs(2);
    let probe = agent.probe(vec![fixture.addr], deadline).unwrap();
    assert_eq!(wait(|| probe.result()), Ok(()));
    let probe = agent.probe(Vec::new(), Duration::from_millis(100)).unwrap();
    assert!(wait(|| probe.result()).is_err(), "nothing was reached");
    drop(agent);
    fixture.stop();
}

#[test]
fn strangers_change_nothing() {
    let fixture = Fixture::start(None);
    let (agent, heard) = fixture.client();
    let program = agent.start(rank("cat", Secret([77; 32])));
    heard.recv_timeout(LONG).unwrap();
    let outsider = Credentials { secret: Secret([6; 32]), ..ours() };
    let wrong = Agent::connect("x", vec![fixture.addr], outsider, Box::new(|_, _, _| {}));
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
fn an_unused_agent_ends() {
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
    let agent = Agent::connect("later", vec![addr], ours(), Box::new(|_, _, _| {}));
    let program = agent.start(shell("late", "exit 3"));
    let trouble = wait(|| program.trouble().filter(|it| it.contains("refused")));
    assert!(trouble.contains(&addr.to_string()), "{trouble}");
    let listener = TcpListener::bind(addr).unwrap();
    let config = config(&store(), None);
    let thread = std::thread::spawn(move || serve(&listener, config).unwrap());
    assert_eq!(wait(|| program.ended()).code, 3);
    agent.stop();
    thread.join().unwrap();
}

#[test]
fn the_secret_alone_commands_nothing_and_a_person_may_change_that() {
    let fixture = Fixture::start(None);
    let (agent, heard) = fixture.client();
    let program = agent.start(shell("kept", "echo up; exec sleep 600"));
    let kept = pid(&program);
    assert_eq!(heard.recv_timeout(LONG).unwrap().2, "up");
    let marker = fixture.store.path().with_file_name("touched");
    let theirs = another("hostile");
    let nobody = Agent::connect("here", vec![fixture.addr], theirs.clone(), Box::new(|_, _, _| {}));
    let touch = format!("touch {}", marker.display());
    nobody.start(shell("touch", &touch));
    let err = nobody.knock(LONG).unwrap_err();
    assert!(err.contains("does not trust this machine"), "{err}");
    let key = theirs.identity.public();
    assert!(err.contains(&format!("hint: on that machine run `jackalope trust accept {key}`")));
    assert_eq!(nobody.refusal(), Some(AgentRefusal::Untrusted));
    assert!(nobody.facts(Duration::ZERO).is_err() && nobody.status(Duration::ZERO).is_err());
    assert!(nobody.readings(Duration::ZERO).is_err());
    let status = agent.status(LONG).unwrap();
    assert_eq!(status.iter().map(|it| it.pid).collect::<Vec<_>>(), [kept]);
    assert!(!marker.exists());
    let pending = fixture.store.load().unwrap().pending;
    let seen = (pending[0].role, pending[0].name.as_str(), pending[0].addr.as_str());
    assert_eq!((pending.len(), seen), (1, (Role::Coordinator, "hostile", "127.0.0.1")));
    // The machine is accepted, and its pending order is carried out.
    fixture.store.update(|list| list.accept(&key.fingerprint())).unwrap();
    nobody.wait_until_up(LONG).unwrap();
    wait(|| marker.exists().then_some(()));
    drop((agent, nobody));
    fixture.stop();
}

#[test]
fn a_revoked_coordinator_loses_its_session_and_its_programs() {
    let fixture = Fixture::start(None);
    let (agent, _heard) = fixture.client();
    let second = another("second");
    fixture.trust(&second, "second");
    let (revoked, _heard) = fixture.client_of(second);
    let ours = pid(&agent.start(shell("ours", "exec sleep 600")));
    let theirs = Order { lease_ms: 600_000, ..shell("theirs", "exec sleep 600") };
    let theirs = pid(&revoked.start(theirs));
    let began = Instant::now();
    fixture.store.update(|list| list.revoke("second")).unwrap();
    wait(|| (!runs(theirs)).then_some(()));
    wait(|| (revoked.refusal() == Some(AgentRefusal::Untrusted)).then_some(()));
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert!(runs(ours) && matches!(agent.state(), AgentState::Up));
    drop((agent, revoked));
    fixture.stop();
}

#[test]
fn a_client_of_another_coordinator_cannot_pose_as_one_of_ours() {
    let fixture = Fixture::start(None);
    let (agent, _heard) = fixture.client();
    let kept = pid(&agent.start(shell("rank 0", "exec sleep 600")));
    let second = another("second");
    fixture.trust(&second, "second");
    let (other, _heard) = fixture.client_of(second);
    let program = other.start(shell("rank 0", "exec sleep 600"));
    assert!(wait(|| program.ended()).exit.contains("another session runs `rank 0`"));
    assert!(runs(kept));
    drop((agent, other));
    fixture.stop();
}

#[test]
fn an_agent_that_is_another_machine_than_before_is_given_nothing() {
    let fixture = Fixture::start(None);
    let known = store();
    let before = Identity::generate("before").unwrap().public();
    known.update(|list| list.pin("here", before)).unwrap();
    let ours = Credentials { expected: Expected::Pinned(known.clone()), ..ours() };
    let agent = Agent::connect("here", vec![fixture.addr], ours, Box::new(|_, _, _| {}));
    let program = agent.start(shell("never", "exec sleep 600"));
    let err = agent.knock(LONG).unwrap_err();
    assert!(err.contains("the key of here has changed from"), "{err}");
    assert!(err.contains("`jackalope trust accept here`"), "{err}");
    assert_eq!((agent.refusal(), program.pid()), (Some(AgentRefusal::ChangedKey), None));
    // The client did not reveal its identity to the agent.
    assert_eq!(fixture.store.load().unwrap().pending, []);
    known.update(|list| list.accept("here")).unwrap();
    agent.wait_until_up(LONG).unwrap();
    pid(&program);
    drop(agent);
    fixture.stop();
}

#[test]
fn a_machine_whose_key_is_revoked_loses_its_open_session_and_what_it_runs_for_us() {
    let fixture = Fixture::start(None);
    let known = store();
    let ours = Credentials { expected: Expected::Pinned(known.clone()), ..ours() };
    let agent = Agent::connect("here", vec![fixture.addr], ours, Box::new(|_, _, _| {}));
    assert!(agent.knock(LONG).is_err(), "nothing is known of it yet");
    known.update(|list| list.accept("here")).unwrap();
    agent.wait_until_up(LONG).unwrap();
    let lasting = Order { lease_ms: 600_000, ..shell("lasting", "exec sleep 600") };
    let program = agent.start(lasting);
    let pid = pid(&program);
    assert_eq!(program.distrust(), None);
    known.update(|list| list.revoke("here")).unwrap();
    let reason = wait(|| program.distrust());
    assert!(
        reason.contains("the key of here, ") && reason.contains("is not known here"),
        "{reason}"
    );
    assert!(agent.is_distrusted() && matches!(agent.state(), AgentState::Down { .. }));
    wait(|| (!runs(pid)).then_some(()));
    drop(agent);
    fixture.stop();
}
