//! A hub on this machine: enough of Hugging Face's API to pull a model from, and ways to misbehave.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use jackalope_protocol::ContentHash;
use jackalope_store::BlobId;
use serde_json::{Value, json};

use crate::checkpoint::shipped;

/// The commit of the only revision, which is called `main`.
pub(crate) const COMMIT: &str = "5a17ab1e5a17ab1e5a17ab1e5a17ab1e5a17ab1e";

/// The only repository.
pub(crate) const REPO: &str = "jack/mini";

/// End of the paths under which [`Hub::seen`] and [`Hub::fail`] know requests for the beginning of a
/// weight file alone, where its header is.
pub(crate) const HEADER: &str = "#header";

/// Misbehaviour of the hub.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// Closes the connection after this number of bytes of the content.
    Cut(usize),
    /// Sends nothing more after this number of bytes, until the client is gone.
    Stall(usize),
    /// Changes a byte.
    WrongByte,
    /// Sends an additional byte, and announces it.
    Longer,
    /// Sends the whole file, ignoring the requested range.
    IgnoreRange,
    /// Redirects to another host.
    Redirect,
    /// Answers with this status and these header lines.
    Status(u16, &'static str),
    /// Lists a file as larger than any disk.
    Huge,
}

/// A received request.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) host: String,
    pub(crate) range: Option<String>,
    pub(crate) authorization: Option<String>,
}

pub(crate) struct Hub {
    pub(crate) url: String,
    shared: Arc<Shared>,
}

struct Shared {
    port: u16,
    files: Vec<(String, Vec<u8>)>,
    /// Faults: suffix of the path, fault, and number of requests that it affects.
    faults: Mutex<Vec<(&'static str, Fault, u32)>>,
    seen: Mutex<Vec<Seen>>,
}

impl Hub {
    /// Creates a hub with the shipped model and a superfluous file.
    pub(crate) fn start() -> Hub {
        Hub::with(&shipped())
    }

    /// Creates a hub with the model in a directory and a superfluous file.
    pub(crate) fn with(model_dir: &Path) -> Hub {
        let read = |entry: std::io::Result<std::fs::DirEntry>| {
            let path = entry.unwrap().path();
            (path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read(path).unwrap())
        };
        let mut files: Vec<_> = std::fs::read_dir(model_dir).unwrap().map(read).collect();
        files.push(("README.md".to_owned(), b"not needed".to_vec()));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared =
            Arc::new(Shared { port, files, faults: Mutex::default(), seen: Mutex::default() });
        let server = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let server = Arc::clone(&server);
                // The client may disconnect.
                thread::spawn(move || server.answer(stream.unwrap()).ok());
            }
        });
        Hub { url: format!("http://127.0.0.1:{port}"), shared }
    }

    /// Applies a fault to the next `times` requests for a path that ends with `path_end`.
    pub(crate) fn fail(&self, path_end: &'static str, fault: Fault, times: u32) {
        self.shared.faults.lock().unwrap().push((path_end, fault, times));
    }

    /// Returns the requests for paths that end with `path_end`, in order of arrival.
    pub(crate) fn seen(&self, path_end: &str) -> Vec<Seen> {
        let seen = self.shared.seen.lock().unwrap();
        seen.iter().filter(|it| it.path.ends_with(path_end)).cloned().collect()
    }

    /// Returns the requested ranges of a file.
    pub(crate) fn ranges(&self, path_end: &str) -> Vec<Option<String>> {
        self.seen(path_end).into_iter().map(|it| it.range).collect()
    }
}

impl Shared {
    fn answer(&self, stream: TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream);
        let mut request = String::new();
        reader.read_line(&mut request)?;
        let target = request.split(' ').nth(1).unwrap_or_default();
        let path = target.split('?').next().unwrap_or_default().to_owned();
        let mut seen = Seen { path: path.clone(), ..Seen::default() };
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            let value = value.to_owned();
            match name.to_ascii_lowercase().as_str() {
                "host" => seen.host = value,
                "range" => seen.range = Some(value),
                "authorization" => seen.authorization = Some(value),
                _ => {}
            }
        }
        let range = seen.range.clone();
        let is_header = range.as_ref().is_some_and(|it| !it.ends_with('-'));
        let known_path = if is_header { format!("{path}{HEADER}") } else { path.clone() };
        seen.path.clone_from(&known_path);
        self.seen.lock().unwrap().push(seen);
        let stream = reader.get_mut();
        let fault = self.fault(&known_path);
        match fault {
            Some(Fault::Status(status, head)) => respond(stream, status, head, b"refused"),
            Some(Fault::Redirect) => {
                let location = format!("Location: http://localhost:{}/cdn{path}", self.port);
                respond(stream, 307, &location, b"")
            }
            fault if path == format!("/api/models/{REPO}/revision/main") => {
                let is_huge = matches!(fault, Some(Fault::Huge));
                respond(stream, 200, "", self.listing(is_huge).to_string().as_bytes())
            }
            _ if path.starts_with(&format!("/api/models/{REPO}/revision/")) => {
                respond(stream, 404, "X-Error-Code: RevisionNotFound", b"no such revision")
            }
            fault => match self.file(&path) {
                Some(content) => send(stream, content, range.as_deref(), fault.as_ref()),
                None => respond(stream, 404, "X-Error-Code: RepoNotFound", b"no such thing"),
            },
        }
    }

    fn fault(&self, path: &str) -> Option<Fault> {
        let mut faults = self.faults.lock().unwrap();
        let (.., fault, times) =
            faults.iter_mut().find(|(end, _, times)| 0 < *times && path.ends_with(end))?;
        *times -= 1;
        Some(fault.clone())
    }

    fn file(&self, path: &str) -> Option<&[u8]> {
        let path = path.strip_prefix("/cdn").unwrap_or(path);
        let name = path.strip_prefix(&format!("/{REPO}/resolve/{COMMIT}/"))?;
        let (_, content) = self.files.iter().find(|(it, _)| it == name)?;
        Some(content)
    }

    fn listing(&self, is_huge: bool) -> Value {
        let sibling = |(name, content): &(String, Vec<u8>)| {
            let id = blob_id(name, content).to_string();
            let size = if is_huge { 1 << 60 } else { content.len() };
            match name.ends_with(".safetensors") {
                true => json!({"rfilename": name, "size": size, "blobId": "a pointer",
                               "lfs": {"sha256": id, "size": size, "pointerSize": 1}}),
                false => json!({"rfilename": name, "size": size, "blobId": id}),
            }
        };
        let siblings: Vec<Value> = self.files.iter().map(sibling).collect();
        json!({"id": REPO, "sha": COMMIT, "siblings": siblings})
    }
}

/// Returns the hash by which the hub identifies a file's content.
fn blob_id(name: &str, content: &[u8]) -> BlobId {
    if name.ends_with(".safetensors") {
        return BlobId::Content(ContentHash::of(content));
    }
    let mut hasher = BlobId::Git([0; 20]).hasher(content.len() as u64);
    hasher.update(content);
    hasher.finish()
}

/// Returns the name of the blob of a shipped file.
pub(crate) fn blob_of(name: &str) -> String {
    let content = std::fs::read(Path::new(&shipped()).join(name)).unwrap();
    blob_id(name, &content).to_string()
}

fn respond(stream: &mut TcpStream, status: u16, head: &str, body: &[u8]) -> std::io::Result<()> {
    let head = if head.is_empty() { String::new() } else { format!("{head}\r\n") };
    let len = body.len();
    write!(
        stream,
        "HTTP/1.1 {status} Said\r\n{head}Content-Length: {len}\r\nConnection: close\r\n\r\n"
    )?;
    stream.write_all(body)
}

fn send(
    stream: &mut TcpStream,
    content: &[u8],
    range: Option<&str>,
    fault: Option<&Fault>,
) -> std::io::Result<()> {
    let mut content = content.to_vec();
    match fault {
        Some(Fault::WrongByte) => *content.last_mut().unwrap() ^= 1,
        Some(Fault::Longer) => content.push(0),
        _ => {}
    }
    let range = range.filter(|_| !matches!(fault, Some(Fault::IgnoreRange)));
    let total = content.len();
    let range = range.and_then(|it| {
        let (from, last) = it.strip_prefix("bytes=")?.split_once('-')?;
        let end = last.parse().map_or(total, |last: usize| total.min(last + 1));
        Some(from.parse().ok()?..end)
    });
    let (status, range) = range.map_or((200, 0..total), |range| (206, range));
    let (from, last) = (range.start, range.end - 1);
    let part = &content[range];
    write!(
        stream,
        "HTTP/1.1 {status} Said\r\nContent-Length: {}\r\nContent-Range: bytes {from}-{last}/{total}\r\n\
         Connection: close\r\n\r\n",
        part.len(),
    )?;
    match fault {
        Some(Fault::Cut(num_bytes)) => stream.write_all(&part[..*num_bytes]),
        Some(Fault::Stall(num_bytes)) => {
            stream.write_all(&part[..*num_bytes])?;
            stream.read_to_end(&mut Vec::new()).map(|_| ())
        }
        _ => stream.write_all(part),
    }
}
