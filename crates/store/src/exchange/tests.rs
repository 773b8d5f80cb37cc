//! Several libraries on this machine, each served by its own agent.

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use jackalope_fleet::agent::{self, AgentConfig, Trust};
use jackalope_fleet::home::Home;
use jackalope_fleet::trust::{Credentials, Expected, TrustStore};
use jackalope_protocol::grant::Granter;
use jackalope_protocol::{Identity, PublicKey, Secret};
use jackalope_testing::Scratch;

use super::*;
use crate::{Check, Manifest, ModelStore, Record, StoreKind, Stores};

const SECRET: Secret = Secret([9; 32]);

/// A machine with a folder for models.
struct Machine {
    scratch: Scratch,
    addr: SocketAddr,
    key: PublicKey,
    store: TrustStore,
}

/// Credentials of the coordinator of all machines in these tests.
fn ours() -> Credentials {
    let identity = Identity::from_private(Secret([7; 32]), "coordinator");
    Credentials { secret: SECRET, identity, expected: Expected::TokenHolders }
}

impl Machine {
    fn new() -> Machine {
        let scratch = Scratch::new();
        let models = scratch.path().join("models");
        let place = ModelStore { kind: StoreKind::Folder, root: models.clone(), origin: "test" };
        let hashes = Some(scratch.path().join("hashes.json"));
        let library = Library::new(Stores::new([place]), hashes, Some(models));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let identity = Identity::generate("machine").unwrap();
        let key = identity.public();
        let store = TrustStore::new(&Home::new(scratch.path().join("home")));
        let (coordinator, name) = (ours().identity.public(), "coordinator".to_owned());
        let peer = jackalope_protocol::secure::Peer { key: coordinator, name };
        let trust = |list: &mut jackalope_fleet::trust::TrustList| {
            list.trust_coordinator(&peer);
            Ok(())
        };
        store.update(trust).unwrap();
        let config = AgentConfig {
            secret: SECRET,
            identity,
            trust: Trust::Listed(store.clone()),
            rank_program: PathBuf::from("/bin/cat"),
            files_dir: scratch.path().to_owned(),
            library: library.service(),
            linger: None,
            is_over: std::sync::Arc::default(),
        };
        // The thread ends with the test process.
        std::thread::spawn(move || agent::serve(&listener, config).unwrap());
        Machine { scratch, addr, key, store }
    }

    fn client(&self) -> LibraryClient {
        LibraryClient::dial("machine", &[self.addr], &ours()).unwrap()
    }

    /// Creates a model with two large files, one of which is not a whole number of ranges.
    fn model(&self) -> PathBuf {
        let dir = self.scratch.model("models/org/big");
        for (name, num_bytes) in [("model-1.safetensors", 20_000_001), ("sub/x.bin", 9 << 20)] {
            let content: Vec<u8> = (0..num_bytes).map(|at: u32| (at % 253) as u8).collect();
            self.scratch.write(&format!("models/org/big/{name}"), &content);
        }
        self.scratch.write("models/org/big/empty.txt", b"");
        dir
    }

    fn copy(&self) -> PathBuf {
        self.scratch.path().join("models/org/big")
    }

    fn source(&self, host: &str) -> Source {
        let grant = Granter::new(&ours(), self.key, "org/big").grant();
        let (host, model) = (host.to_owned(), "org/big".to_owned());
        Source { host, addrs: vec![self.addr], model, grant }
    }
}

fn order(manifest: Manifest, sources: Vec<Source>) -> FetchOrder {
    let commit = Some("abc".to_owned());
    FetchOrder { name: "org/big".to_owned(), commit, manifest, sources, num_connections: 3 }
}

fn contents(dir: &std::path::Path) -> BTreeMap<String, Vec<u8>> {
    let files = crate::files::list(dir).unwrap();
    files
        .into_iter()
        .map(|it| (it.path.as_str().to_owned(), fs::read(it.target).unwrap()))
        .collect()
}

#[test]
fn a_library_serves_models_and_nothing_else() {
    let machine = Machine::new();
    let dir = machine.model();
    machine.scratch.write("secret.txt", b"secret");
    machine.scratch.write("models/org/big/.hidden", b"secret");
    let mut client = machine.client();
    let found = client.find("org/big").unwrap();
    assert_eq!((found.name.as_str(), found.files.len()), ("org/big", 6));
    assert_eq!(client.find(dir.to_str().unwrap()).unwrap().dir, dir.to_str().unwrap());
    for other in ["org/none", "/etc", "../x", machine.scratch.path().to_str().unwrap()] {
        let err = client.find(other).unwrap_err().to_string();
        assert!(err.starts_with("machine: "), "{err}");
    }
    let mut bytes = [0; 6];
    let six = |offset| FilePieces::run(offset, 6);
    let hidden = ".hidden".parse().unwrap();
    let err = client.read("org/big", &hidden, six(0), &mut bytes).unwrap_err().to_string();
    assert!(err.contains("has no file .hidden"), "{err}");
    let weights = "model-1.safetensors".parse().unwrap();
    client.read("org/big", &weights, six(252), &mut bytes).unwrap();
    assert_eq!(bytes, [252, 0, 1, 2, 3, 4]);
    let err =
        client.read("org/big", &weights, six(20_000_000), &mut bytes).unwrap_err().to_string();
    assert!(err.contains("model-1.safetensors has 20000001 bytes"), "{err}");
    let stranger = Credentials { secret: Secret([1; 32]), ..ours() };
    assert!(LibraryClient::dial("x", &[machine.addr], &stranger).is_err());
}

#[test]
fn pieces_of_a_file_come_one_after_another_and_none_from_beyond_its_end() {
    let machine = Machine::new();
    machine.model();
    let path = "model-1.safetensors".parse().unwrap();
    let mut client = machine.client();
    let mut read = |pieces: FilePieces| {
        let mut bytes = vec![255; usize::try_from(pieces.num_bytes()).unwrap()];
        client.read("org/big", &path, pieces, &mut bytes).map(|()| bytes)
    };
    let content = |at: u64| (at % 253) as u8;
    // Longer than what is sent at once, and in pieces whose length does not divide that.
    for (piece_bytes, stride_bytes, num_pieces) in [(7, 9, 300_000), (1, 1, 5), (300, 1000, 20_000)]
    {
        let pieces = FilePieces { offset: 11, piece_bytes, stride_bytes, num_pieces };
        let wanted: Vec<u8> = (0..u64::from(num_pieces))
            .flat_map(|piece| {
                (0..u64::from(piece_bytes)).map(move |at| 11 + piece * stride_bytes + at)
            })
            .map(content)
            .collect();
        assert!(read(pieces).unwrap() == wanted, "{pieces:?}");
    }
    let last = FilePieces { offset: 1, piece_bytes: 1000, stride_bytes: 20_000, num_pieces: 1000 };
    assert!(read(last).is_ok());
    assert!(read(FilePieces { num_pieces: 0, ..last }).unwrap().is_empty());
    assert!(read(FilePieces { piece_bytes: 0, ..last }).unwrap().is_empty());
    for beyond in [
        FilePieces { num_pieces: 1002, ..last },
        FilePieces { offset: u64::MAX, ..last },
        FilePieces { stride_bytes: u64::MAX / 2, ..last },
        FilePieces { stride_bytes: 0, num_pieces: READ_BYTES_MAX, ..last },
    ] {
        let mut client = machine.client();
        let mut target = vec![0; usize::try_from(beyond.num_bytes()).unwrap_or(0)];
        let err = client.read("org/big", &path, beyond, &mut target).unwrap_err();
        assert!(err.to_string().contains("has 20000001 bytes"), "{beyond:?}: {err}");
    }
}

#[test]
fn a_model_reaches_all_machines_and_the_second_time_nothing_is_copied() {
    let machines: Vec<Machine> = (0..4).map(|_| Machine::new()).collect();
    let dir = machines[2].model();
    let hashed = AtomicU64::new(0);
    let count = |more| {
        hashed.fetch_add(more, Ordering::Relaxed);
    };
    let manifest = machines[2].client().manifest("org/big", &count).unwrap();
    assert_eq!(hashed.into_inner(), manifest.num_bytes());
    let addrs: Vec<Vec<SocketAddr>> = machines.iter().map(|it| vec![it.addr]).collect();
    let peers: Vec<CopyPeer> = (0..4)
        .map(|it| CopyPeer {
            host: format!("mac{it}"),
            addrs: addrs[it].clone(),
            key: machines[it].key,
            addrs_from: vec![addrs[it].clone(); 4],
        })
        .collect();
    let order = order(manifest.clone(), Vec::new());
    for wanted in [manifest.num_bytes(), 0] {
        let received = Mutex::new([0; 4]);
        let mut ends = Vec::new();
        let on_bytes = |peer: usize, more: u64| received.lock().unwrap()[peer] += more;
        let ours = ours();
        let (model, is_cancelled) = ("org/big", &Arc::default());
        let what = SpreadOrder {
            peers: &peers,
            source: 2,
            model,
            order: &order,
            ours: &ours,
            is_cancelled,
        };
        spread(what, &on_bytes, &mut |it| ends.push(it));
        ends.sort_by_key(|it| it.peer);
        assert_eq!(ends.iter().map(|it| it.peer).collect::<Vec<_>>(), [0, 1, 3]);
        for end in ends {
            assert_eq!(end.result.unwrap().bytes_copied, wanted, "{}", end.peer);
        }
        assert_eq!(received.into_inner().unwrap(), [wanted, wanted, 0, wanted]);
    }
    for at in [0, 1, 3] {
        assert_eq!(contents(&machines[at].copy()), contents(&dir));
        assert!(!machines[at].copy().join(".jackalope/parts").exists());
        let record = Record::read(&machines[at].copy()).unwrap();
        assert_eq!((record.repo.as_str(), record.commit.as_str()), ("org/big", "abc"));
        assert_eq!(record.manifest, manifest);
    }
}

#[test]
fn a_copy_goes_on_where_it_stood_and_is_never_taken_for_whole_before() {
    let (from, to) = (Machine::new(), Machine::new());
    let dir = from.model();
    let manifest = from.client().manifest("org/big", &|_| ()).unwrap();
    let order = order(manifest.clone(), vec![from.source("from")]);
    // The state that a process leaves when it is killed after one range of three and the tokenizer.
    let parts = to.copy().join(".jackalope/parts");
    fs::create_dir_all(&parts).unwrap();
    fs::copy(dir.join("tokenizer.json"), to.copy().join("tokenizer.json")).unwrap();
    Record { repo: "org/big".into(), commit: "abc".into(), manifest: manifest.clone() }
        .write(&to.copy())
        .unwrap();
    let large = manifest.file(&"model-1.safetensors".parse().unwrap()).unwrap();
    let part = ranges::Part::open(&parts, large).unwrap();
    let content = fs::read(dir.join("model-1.safetensors")).unwrap();
    let range = usize::try_from(ranges::RANGE_BYTES).unwrap();
    part.write(1, &content[range..2 * range]).unwrap();
    drop(part);
    assert!(to.client().find("org/big").is_err(), "it has no config.json yet");
    let copied = to.client().fetch(order.clone(), &|_| ()).unwrap().bytes_copied;
    assert_eq!(copied, manifest.num_bytes() - ranges::RANGE_BYTES - 2);
    assert_eq!(contents(&to.copy()), contents(&dir));
    // The part that had arrived was damaged: that file is fetched again.
    fs::remove_file(to.copy().join("model-1.safetensors")).unwrap();
    fs::create_dir_all(&parts).unwrap();
    ranges::Part::open(&parts, large).unwrap().write(0, &vec![1; range]).unwrap();
    to.client().fetch(order, &|_| ()).unwrap();
    assert_eq!(contents(&to.copy()), contents(&dir));
}

#[test]
fn what_changed_or_shrank_at_its_source_is_named_with_its_host() {
    let (from, to) = (Machine::new(), Machine::new());
    let dir = from.model();
    let manifest = from.client().manifest("org/big", &|_| ()).unwrap();
    let order = order(manifest, vec![from.source("from")]);
    let whole = fs::read(dir.join("sub/x.bin")).unwrap();
    let mut changed = whole.clone();
    changed[77] ^= 1;
    fs::write(dir.join("sub/x.bin"), &changed).unwrap();
    let err = to.client().fetch(order.clone(), &|_| ()).unwrap_err().to_string();
    assert!(err.contains("sub/x.bin came from from with other content"), "{err}");
    fs::write(dir.join("sub/x.bin"), &whole[..100]).unwrap();
    let err = to.client().fetch(order.clone(), &|_| ()).unwrap_err().to_string();
    assert!(err.contains("sub/x.bin has 100 bytes"), "{err}");
    assert!(!Check::of_dir(&to.copy()).is_whole());
    fs::write(dir.join("sub/x.bin"), &whole).unwrap();
    to.client().fetch(order.clone(), &|_| ()).unwrap();
    assert_eq!(contents(&to.copy()), contents(&dir));
    // Another model with this name is not touched.
    let other = Machine::new();
    other.scratch.model("models/org/big");
    let before = contents(&other.copy());
    let err = other.client().fetch(order, &|_| ()).unwrap_err().to_string();
    assert!(err.contains("holds another org/big: empty.txt is missing"), "{err}");
    assert_eq!(contents(&other.copy()), before);
}

#[test]
fn a_source_that_is_gone_is_replaced_by_another_one() {
    let (from, to) = (Machine::new(), Machine::new());
    from.model();
    let manifest = from.client().manifest("org/big", &|_| ()).unwrap();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let gone = Source { addrs: vec![nobody], ..from.source("gone") };
    let alone = order(manifest.clone(), vec![gone.clone()]);
    let err = to.client().fetch(alone, &|_| ()).unwrap_err().to_string();
    assert!(err.contains("the agent of gone cannot be reached"), "{err}");
    let both = order(manifest, vec![gone, from.source("from")]);
    to.client().fetch(both, &|_| ()).unwrap();
    assert_eq!(contents(&to.copy()), contents(&from.copy()));
}

/// What a grant allows a rank or another machine, and which misuse of it fails.
#[test]
fn a_grant_reads_one_model_and_ends_with_the_trust_in_who_made_it() {
    let machine = Machine::new();
    machine.model();
    machine.scratch.model("models/org/other");
    let grant = Granter::new(&ours(), machine.key, "org/big").grant();
    let dial = |grant: &_| LibraryClient::dial_with_grant("machine", &[machine.addr], grant);
    let mut client = dial(&grant).unwrap();
    assert_eq!(client.find("org/big").unwrap().name, "org/big");
    let manifest = client.manifest("org/big", &|_| ()).unwrap();
    let mut bytes = [0; 4];
    let weights = "model-1.safetensors".parse().unwrap();
    client.read("org/big", &weights, FilePieces::run(0, 4), &mut bytes).unwrap();
    let refused = |err: ExchangeError| {
        let text = err.to_string();
        assert!(text.contains("may read one model and nothing else"), "{text}");
    };
    refused(client.find("org/other").unwrap_err());
    refused(client.manifest("org/other", &|_| ()).unwrap_err());
    refused(client.read("org/other", &weights, FilePieces::run(0, 4), &mut bytes).unwrap_err());
    let fetch = FetchOrder { name: "org/new".to_owned(), ..order(manifest, Vec::new()) };
    refused(client.fetch(fetch, &|_| ()).unwrap_err());
    assert!(!machine.scratch.path().join("models/org/new").exists());
    // A forged grant: the library does not trust the key that made it.
    let identity = Identity::generate("hostile").unwrap();
    let hostile = Credentials { identity, ..ours() };
    let forged = Granter::new(&hostile, machine.key, "org/big").grant();
    assert!(matches!(dial(&forged), Err(ExchangeError::Unreachable { .. })));
    // The cluster's secret alone does not allow reading.
    let by_secret = LibraryClient::dial("machine", &[machine.addr], &hostile).unwrap_err();
    assert!(by_secret.to_string().contains("does not trust this machine"), "{by_secret}");
    // Revoking ends open connections and refuses new ones.
    machine.store.update(|list| list.revoke("coordinator")).unwrap();
    let began = std::time::Instant::now();
    while client.find("org/big").is_ok() {
        assert!(began.elapsed() < std::time::Duration::from_secs(20), "it still reads");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(dial(&grant).is_err());
}

/// The model's files with their sizes.
fn sizes(manifest: &Manifest) -> Vec<(jackalope_protocol::FilePath, u64)> {
    manifest.files().iter().map(|it| (it.path.clone(), it.bytes)).collect()
}

#[test]
fn a_cancelled_copy_leaves_what_arrived_and_the_next_one_takes_it_over() {
    let (source, target) = (Machine::new(), Machine::new());
    source.model();
    let manifest = source.client().manifest("org/big", &|_| ()).unwrap();
    let files = sizes(&manifest);
    let held = || target.client().holding("org/big", &files).unwrap();
    assert_eq!(held(), Holding::default());
    let whole = source.client().holding("org/big", &files).unwrap();
    assert_eq!((whole.num_bytes, whole.is_complete), (manifest.num_bytes(), true));
    let is_cancelled: Arc<AtomicBool> = Arc::default();
    let mut order = order(manifest.clone(), vec![source.source("source")]);
    // One connection, so that the copy lasts beyond the first report of its progress.
    order.num_connections = 1;
    is_cancelled.store(true, Ordering::Relaxed);
    let mut client = target.client().cancelled_by(&is_cancelled);
    let err = client.fetch(order.clone(), &|_| ()).unwrap_err();
    assert!(matches!(err, ExchangeError::Cancelled { .. }), "{err}");
    drop(client);
    // The next one waits until the cancelled one has let go of the directory.
    let fetched = target.client().fetch(order, &|_| ()).unwrap();
    assert!(fetched.bytes_copied <= manifest.num_bytes());
    let whole = held();
    assert_eq!((whole.num_bytes, whole.is_complete), (manifest.num_bytes(), true));
    assert_eq!(whole.dir.as_deref(), target.copy().to_str());
    // A file that is missing is not held; as a copy made here, it can be completed.
    fs::remove_file(target.copy().join("sub/x.bin")).unwrap();
    let partial = held();
    assert_eq!(partial.num_bytes, manifest.num_bytes() - (9 << 20));
    assert_eq!((partial.is_complete, partial.obstacle), (false, None));
    // A model that somebody else put there is not overwritten.
    fs::remove_dir_all(target.copy().join(".jackalope")).unwrap();
    let obstacle = held().obstacle.unwrap();
    assert!(obstacle.contains("sub/x.bin is missing") && obstacle.contains("hint:"), "{obstacle}");
}

#[test]
fn nothing_is_copied_once_all_is_cancelled() {
    let machines = [Machine::new(), Machine::new()];
    machines[0].model();
    let peers: Vec<CopyPeer> = machines
        .iter()
        .map(|it| CopyPeer {
            host: "machine".to_owned(),
            addrs: vec![it.addr],
            key: it.key,
            addrs_from: vec![vec![it.addr]; 2],
        })
        .collect();
    let manifest = machines[0].client().manifest("org/big", &|_| ()).unwrap();
    let (order, is_cancelled) = (order(manifest, Vec::new()), Arc::new(AtomicBool::new(true)));
    let what = SpreadOrder {
        peers: &peers,
        source: 0,
        model: "org/big",
        order: &order,
        ours: &ours(),
        is_cancelled: &is_cancelled,
    };
    spread(what, &|_, _| (), &mut |end| panic!("{end:?}"));
    assert!(!machines[1].copy().exists());
}
