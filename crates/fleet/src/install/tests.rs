//! Installs into folders of this machine that stand for the homes of other machines, through a
//! substitute for `ssh` that can interrupt, damage and count what is sent.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use jackalope_protocol::{Identity, Secret};

use super::*;
use crate::home::Home;
use crate::shell::{ShellError, ShellErrorKind, SystemShell};
use crate::trust::Expected;

/// A substitute for `ssh`, which uses another home on this machine.
const SSH: &str = r#"
while [ "$1" != -- ]; do shift; done
HOME="$ROOT/$2"; PATH="$HOME/fakes:$PATH"; export HOME PATH; unset JACKALOPE_HOME XDG_CACHE_HOME
[ -d "$HOME" ] || { echo "ssh: connect to host $2 port 22: No route to host" >&2; exit 255; }
exec /bin/sh -c "$3"
"#;

/// A substitute for our program: switches versions as ours does, and stops an agent.
const PROGRAM: &str = r#"#!/bin/sh
h="$HOME/.jackalope"
case "$1 $2" in
"--version ") echo jackalope 0;;
"agent activate") read secret; ln -sfn "versions/$3" "$h/current"; echo "$secret" >"$h/secret"
  echo "{\"current\":\"$3\",\"previous\":null,\"switched\":true,\"secret_changed\":true,\"agent_restarted\":false}";;
esac
"#;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Fault {
    CutAfter(usize),
    FlipAt(usize),
}

struct Machines {
    root: PathBuf,
    ssh: SystemShell,
    fault: Mutex<Option<Fault>>,
    sent: AtomicU64,
}

impl Shell for Machines {
    fn run(
        &self,
        host: &str,
        script: &str,
        input: &[u8],
        timeout: Duration,
    ) -> Result<Output, ShellError> {
        if !script.contains("cat >>") {
            return self.ssh.run(host, script, input, timeout);
        }
        let fault = self.fault.lock().unwrap().take();
        let mut input = input.to_vec();
        match fault {
            Some(Fault::CutAfter(bytes)) => input.truncate(bytes),
            Some(Fault::FlipAt(at)) => input[at] ^= 1,
            None => {}
        }
        self.sent.fetch_add(input.len() as u64, Ordering::SeqCst);
        let ran = self.ssh.run(host, script, &input, timeout)?;
        match fault {
            Some(Fault::CutAfter(_)) => {
                let (kind, detail) = (ShellErrorKind::Broken, None);
                Err(ShellError { host: host.to_owned(), kind, detail })
            }
            _ => Ok(ran),
        }
    }
}

impl Machines {
    fn new(hosts: &[&str]) -> Machines {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("jackalope-install-{}-{number}", std::process::id());
        let root = std::env::temp_dir().join(name);
        for host in hosts {
            fs::create_dir_all(root.join(host)).unwrap();
        }
        fs::create_dir_all(root.join("ours")).unwrap();
        let script = format!("ROOT='{}'\n{SSH}", root.display());
        let ssh = SystemShell::new(vec!["/bin/sh".into(), "-c".into(), script, "ssh".into()]);
        Machines { root, ssh, fault: Mutex::default(), sent: AtomicU64::new(0) }
    }

    fn home(&self, host: &str) -> Home {
        Home::new(self.root.join(host).join(".jackalope"))
    }

    /// Creates a bundle of two programs and a library of several pieces.
    fn bundle(&self, program: &str, seed: u8) -> Bundle {
        let write = |name: &str, content: &[u8], mode| {
            let path = self.root.join("ours").join(name);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let library: Vec<u8> =
            (0..PIECE_BYTES + 3_000_000).map(|at| (at % 251) as u8 ^ seed).collect();
        let files = vec![
            ("bin/jackalope", write("jackalope", program.as_bytes(), 0o755)),
            ("bin/jackalope-rank", write("jackalope-rank", PROGRAM.as_bytes(), 0o755)),
            ("lib/jackalope/mlx/lib/lib mlx's.so", write("libmlx.so", &library, 0o644)),
        ];
        let files = files.into_iter().map(|(place, path)| (place.parse().unwrap(), path));
        Bundle::new(&system(), files.collect()).unwrap()
    }

    fn install(&self, host: &str, bundle: &Bundle) -> Result<Installed, InstallError> {
        self.sent.store(0, Ordering::SeqCst);
        let identity = Identity::from_private(Secret([8; 32]), "here");
        let expected = Expected::TokenHolders;
        let ours = Credentials { secret: Secret([7; 32]), identity, expected };
        let progress = |_| ();
        install(host, Install { bundle, ours: Some(&ours), shell: self, progress: &progress })
    }

    fn sent(&self) -> u64 {
        self.sent.load(Ordering::SeqCst)
    }

    fn fail(&self, fault: Fault) {
        *self.fault.lock().unwrap() = Some(fault);
    }

    fn fake(&self, host: &str, name: &str, script: &str) {
        let path = self.root.join(host).join("fakes").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.root).ok();
    }
}

fn system() -> String {
    let said = crate::process::output_of("uname", &["-sm"], Duration::from_secs(20)).unwrap();
    said.trim().to_owned()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_machine_with_nothing_gets_everything_and_the_second_time_nothing() {
    let machines = Machines::new(&["mac2"]);
    let bundle = machines.bundle(PROGRAM, 0);
    let installed = machines.install("mac2", &bundle).unwrap();
    assert_eq!(installed.id, bundle.id());
    assert_eq!(installed.bytes_sent, bundle.num_bytes());
    let home = machines.home("mac2");
    assert_eq!(versions::current(&home).as_deref(), Some(bundle.id()));
    assert_eq!(fs::read_to_string(home.join("secret")).unwrap().trim(), Secret([7; 32]).to_hex());
    for file in bundle.files() {
        let path = file.place.below(&home.join("current"));
        assert_eq!(ContentHash::of_file(&path, &|_| ()).unwrap(), file.sha256);
        assert_eq!(mode(&path), file.mode);
    }
    assert_eq!(mode(home.path()), 0o700);
    machines.install("mac2", &bundle).unwrap();
    assert_eq!(machines.sent(), 0, "everything was there");
    // One byte on the disk changes.
    let library = home.join("current/lib/jackalope/mlx/lib/lib mlx's.so");
    let mut content = fs::read(&library).unwrap();
    content[5] ^= 1;
    fs::write(&library, content).unwrap();
    machines.install("mac2", &bundle).unwrap();
    assert_eq!(machines.sent(), bundle.files()[2].bytes, "only that file is sent");
}

#[test]
fn what_was_cut_off_goes_on_where_it_stands() {
    let machines = Machines::new(&["mac2"]);
    let bundle = machines.bundle(PROGRAM, 0);
    machines.fail(Fault::CutAfter(100));
    machines.install("mac2", &bundle).unwrap();
    assert_eq!(machines.sent(), bundle.num_bytes(), "no byte was sent twice");
    // The state that a killed run leaves.
    let machines = Machines::new(&["mac3"]);
    let bundle = machines.bundle(PROGRAM, 0);
    let part = machines.home("mac3").join(&format!("versions/.{}.part", bundle.id()));
    let library = &bundle.files()[2];
    let begun = library.place.below(&part);
    fs::create_dir_all(begun.parent().unwrap()).unwrap();
    fs::write(&begun, &fs::read(&library.path).unwrap()[..1_000_001]).unwrap();
    machines.install("mac3", &bundle).unwrap();
    assert_eq!(machines.sent(), bundle.num_bytes() - 1_000_001);
    assert!(!part.exists());
}

#[test]
fn a_beginning_of_something_else_is_sent_anew() {
    let machines = Machines::new(&["mac2"]);
    let bundle = machines.bundle(PROGRAM, 0);
    let part = machines.home("mac2").join(&format!("versions/.{}.part", bundle.id()));
    let begun = bundle.files()[2].place.below(&part);
    fs::create_dir_all(begun.parent().unwrap()).unwrap();
    fs::write(&begun, [9; 1000]).unwrap();
    machines.install("mac2", &bundle).unwrap();
    assert_eq!(machines.sent(), bundle.num_bytes());
}

#[test]
fn a_version_that_arrives_damaged_or_does_not_start_is_never_used() {
    let machines = Machines::new(&["mac2"]);
    let first = machines.bundle(PROGRAM, 0);
    machines.install("mac2", &first).unwrap();
    let home = machines.home("mac2");
    let second = machines.bundle(PROGRAM, 1);
    machines.fail(Fault::FlipAt(11));
    let err = machines.install("mac2", &second).unwrap_err().to_string();
    assert!(err.starts_with("lib/jackalope/mlx/lib/lib mlx's.so arrived damaged on mac2"), "{err}");
    assert_eq!(versions::current(&home).as_deref(), Some(first.id()));
    machines.install("mac2", &second).unwrap();
    assert_eq!(machines.sent(), second.files()[2].bytes, "what both have is copied there");
    let third = machines.bundle("#!/bin/sh\necho no such libc; exit 1\n", 1);
    let err = machines.install("mac2", &third).unwrap_err().to_string();
    assert!(err.contains("do not start on mac2") && err.contains("no such libc"), "{err}");
    assert_eq!(versions::current(&home).as_deref(), Some(second.id()));
}

#[test]
fn machines_of_another_kind_or_without_room_or_tools_are_refused() {
    let machines = Machines::new(&["other", "full", "bare"]);
    let bundle = machines.bundle(PROGRAM, 0);
    machines.fake("other", "uname", "echo Darwin arm64");
    machines.fake("full", "df", "echo Filesystem; echo /dev/disk 100 90 1000 99% /");
    machines.fake("bare", "sha256sum", "exit 1");
    let refused = |host: &str| {
        let err = machines.install(host, &bundle).unwrap_err().to_string();
        assert_eq!(machines.sent(), 0);
        assert!(!machines.home(host).path().exists(), "{host}");
        err
    };
    let other = refused("other");
    assert!(other.contains("other is `Darwin arm64`, these programs are for `"), "{other}");
    assert!(refused("full").starts_with("full has 0 MiB free at "));
    assert!(refused("bare").contains("neither `sha256sum` nor `shasum`"));
    assert!(refused("nobody").contains("nobody: there is no route to it"));
}

#[test]
fn nothing_is_left_but_what_was_never_ours() {
    let machines = Machines::new(&["mac2"]);
    let bundle = machines.bundle(PROGRAM, 0);
    machines.install("mac2", &bundle).unwrap();
    let host = machines.root.join("mac2");
    fs::create_dir_all(host.join(".cache/jackalope")).unwrap();
    fs::create_dir_all(host.join("models_mlx/m")).unwrap();
    let Removed::Gone { home } = uninstall("mac2", &machines).unwrap() else {
        panic!("it was there");
    };
    assert!(home.ends_with("/mac2/.jackalope"), "{home}");
    assert!(!host.join(".jackalope").exists() && !host.join(".cache/jackalope").exists());
    assert!(host.join("models_mlx/m").is_dir());
    assert_eq!(uninstall("mac2", &machines).unwrap(), Removed::WasAbsent);
    // A folder that has only the name of our folder.
    fs::create_dir_all(host.join(".jackalope/photos")).unwrap();
    let err = uninstall("mac2", &machines).unwrap_err().to_string();
    assert!(err.contains("does not look like jackalope's folder"), "{err}");
    assert!(host.join(".jackalope/photos").is_dir());
}
