//! Two versions side by side. The second is the first behind a proxy that changes what both ends send
//! about themselves in clear, before anything is encrypted; the programs are the real ones.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;

use jackalope_protocol::secure::Build;
use serde_json::{Value, json};

use crate::checkpoint::shipped;
use crate::http::Server;
use crate::ports::free_port;
use crate::program::{Ended, Program};

/// Preamble that both ends of the proxy receive.
const OTHER: &[u8] = b"JKLP\xff\xff\x059.9.9";

/// Checks that both versions are named, with a remedy.
fn assert_told(text: &str) {
    let wanted = format!(
        "versions differ: ours is {}, theirs is 9.9.9 (protocol 65535)\n\
         hint: bring every machine to one version with `jackalope sync --hosts FILE`",
        Build::ours()
    );
    // Logs escape line ends.
    assert!(text.replace("\\n", "\n").contains(&wanted), "{text}");
}

/// Starts a proxy to a port, so that its program appears to have another version.
fn wire_to(port: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for from in listener.incoming() {
            let from = from.unwrap();
            // The target may not listen yet; the client retries.
            let Ok(to) = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))) else {
                continue;
            };
            for (from, to) in [(&from, &to), (&to, &from)] {
                let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                std::thread::spawn(move || carry(from, to).ok());
            }
        }
    });
    ours
}

fn carry(mut from: TcpStream, mut to: TcpStream) -> std::io::Result<()> {
    let mut head = [0; 7];
    from.read_exact(&mut head)?;
    let mut version = vec![0; usize::from(head[6])];
    from.read_exact(&mut version)?;
    to.write_all(OTHER)?;
    std::io::copy(&mut from, &mut to)?;
    to.shutdown(Shutdown::Write)
}

/// Jackalope's home of one machine, with the shared secret.
struct Home(PathBuf);

impl Home {
    fn new(name: &str) -> Home {
        let path = std::env::temp_dir().join(format!("jackalope-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let secret = path.join("secret");
        std::fs::write(&secret, "5a".repeat(32)).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&secret, mode).unwrap();
        Home(path)
    }

    fn start(&self, args: &str) -> Program {
        let words: Vec<&str> = args.split_whitespace().collect();
        let home = [("JACKALOPE_HOME", self.0.to_str().unwrap())];
        Program::start_with(&words, "", &home)
    }

    fn run(&self, args: &str) -> Ended {
        self.start(args).end()
    }

    fn key(&self) -> String {
        let shown = self.run("trust list --json");
        let shown: Value = serde_json::from_str(&shown.stdout).unwrap();
        shown["this"]["key"].as_str().unwrap().to_owned()
    }

    /// Writes the trust list as if a person had accepted `other` in this role.
    fn trust(&self, other: &Home, role: &str) {
        let list = json!({role: [{"name": "127.0.0.1", "key": other.key(), "since": 0}]});
        std::fs::write(self.0.join("trust.json"), list.to_string()).unwrap();
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

#[test]
fn a_rank_of_another_version_is_refused_and_both_sides_say_what_mends_it() {
    let home = Home::new("versions-rank");
    let (port, model) = (free_port(), shipped());
    let mut coordinator = home.start(&format!(
        "serve --by-hand --hosts 127.0.0.1 --control-port {port} --port 0 --json --model {}",
        model.display()
    ));
    let other = wire_to(port);
    let refused = home.run(&format!("rank --rank 0 --control 127.0.0.1:{other} --wait 60"));
    assert!(!refused.status.success(), "{refused:?}");
    assert_told(&refused.stderr);
    // The coordinator continues to wait for a rank of its own version.
    let _rank = home.start(&format!("rank --rank 0 --control 127.0.0.1:{port}"));
    let announced: Value = serde_json::from_str(&coordinator.line()).unwrap();
    assert_eq!(announced["event"], "ready", "{announced}");
    coordinator.signal(rustix::process::Signal::INT);
    let ended = coordinator.end();
    assert!(ended.status.success(), "{ended:?}");
    assert_told(&ended.stderr);
}

#[test]
fn an_agent_of_another_version_is_refused_and_looks_after_those_of_its_own() {
    let [theirs, ours] = ["versions-agent", "versions-coordinator"].map(Home::new);
    ours.trust(&theirs, "machines");
    theirs.trust(&ours, "coordinators");
    let port = free_port();
    let _agent = theirs.start(&format!("agent --listen 127.0.0.1 --port {port}"));
    let (other, model) = (wire_to(port), shipped());
    let serve = |port: u16| {
        format!(
            "serve --hosts 127.0.0.1 --agent-port {port} --control-port 0 --port 0 --json --model {}",
            model.display()
        )
    };
    let refused = ours.run(&serve(other));
    assert!(!refused.status.success(), "{refused:?}");
    assert_told(&refused.stderr);
    let server = Server::of(ours.start(&serve(port)));
    let answer = server
        .ask("/v1/completions", &json!({"prompt": "hello", "max_tokens": 3, "ignore_eos": true}));
    assert_eq!(answer["usage"]["completion_tokens"], 3);
}
