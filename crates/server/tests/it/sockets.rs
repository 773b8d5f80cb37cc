//! Real connections: clients that leave, stop, or send too much, and the end of the server.

use std::net::SocketAddr;
use std::time::Duration;

use jackalope_engine::testing::FakeOrder;
use jackalope_server::serve;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::support::{Server, Setup, chat_body, completion_body};

/// A server that listens.
struct Listening {
    addr: SocketAddr,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

async fn listen(server: &Server) -> Listening {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let shutdown = async { stopped.await.unwrap_or_default() };
    let serving = tokio::spawn(serve(listener, server.state.clone(), shutdown));
    Listening { addr, stop, serving }
}

impl Listening {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.addr).await.unwrap()
    }

    async fn send(&self, path: &str, body: &str) -> TcpStream {
        let mut socket = self.connect().await;
        socket.write_all(head(path, body.len()).as_bytes()).await.unwrap();
        socket.write_all(body.as_bytes()).await.unwrap();
        socket
    }
}

fn head(path: &str, len: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n\
         content-length: {len}\r\n\r\n"
    )
}

async fn read_until(socket: &mut TcpStream, text: &str) -> String {
    let mut seen = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let len = socket.read(&mut buffer).await.unwrap();
        seen.extend_from_slice(&buffer[..len]);
        let seen = String::from_utf8_lossy(&seen);
        assert!(len > 0 || seen.contains(text), "no {text:?} in {seen}");
        if seen.contains(text) {
            return seen.into_owned();
        }
    }
}

/// A model that talks to the end of its long context.
async fn talker() -> Server {
    let mut setup = Setup::answers(|_| vec![33; 1_000_000]);
    setup.context_tokens = 200_000;
    let server = setup.start().await;
    server.control.order(FakeOrder::Pace(Duration::from_millis(1)));
    server
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_a_stream_frees_its_place() {
    let server = talker().await;
    let listening = listen(&server).await;
    let body = chat_body(json!({"stream": true, "n": 2})).to_string();
    let mut socket = listening.send("/v1/chat/completions", &body).await;
    read_until(&mut socket, "\"content\":\"!\"").await;
    server.until("it runs", |status| status.running == 2).await;
    drop(socket);
    server.until("it is cancelled", |status| status.counters.cancelled == 2).await;
    server.until("nothing runs", |status| status.running == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_wait_for_a_whole_answer_frees_its_place() {
    let server = talker().await;
    let listening = listen(&server).await;
    let body = completion_body(json!({"max_tokens": 100_000})).to_string();
    let socket = listening.send("/v1/completions", &body).await;
    server.until("it runs", |status| status.running == 1).await;
    drop(socket);
    server.until("it is cancelled", |status| status.counters.cancelled == 1).await;
    server.until("nothing runs", |status| status.running == 0).await;
}

/// Only writing tells a client that sends no more from one that has left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_sends_no_more_gets_its_answer() {
    let server = talker().await;
    let listening = listen(&server).await;
    for (path, body, end) in [
        ("/v1/completions", completion_body(json!({"max_tokens": 500})), "\"usage\""),
        ("/v1/chat/completions", chat_body(json!({"max_tokens": 500, "stream": true})), "[DONE]"),
    ] {
        let mut socket = listening.send(path, &body.to_string()).await;
        socket.shutdown().await.unwrap();
        server.until("it runs", |status| status.running == 1).await;
        let mut said = String::new();
        socket.read_to_string(&mut said).await.unwrap();
        let (interim, answer) = said.split_at(said.find("HTTP/1.1 200 OK\r\n").expect(&said));
        assert!(answer.contains(end), "{said}");
        let interim = interim.replace("HTTP/1.1 100 Continue\r\n\r\n", "");
        assert!(interim.is_empty(), "{said}");
    }
    assert_eq!(server.engine.status().counters.cancelled, 0);
}

/// HTTP/1.0 has no interim responses, so that nothing tells the two apart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_http_1_0_that_sends_no_more_has_left() {
    let server = talker().await;
    let listening = listen(&server).await;
    let body = completion_body(json!({"max_tokens": 100_000})).to_string();
    let mut socket = listening.connect().await;
    let head = head("/v1/completions", body.len()).replace("HTTP/1.1", "HTTP/1.0");
    socket.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    server.until("it runs", |status| status.running == 1).await;
    socket.shutdown().await.unwrap();
    server.until("it is cancelled", |status| status.counters.cancelled == 1).await;
    let mut said = String::new();
    socket.read_to_string(&mut said).await.unwrap();
    assert_eq!(said, "");
}

/// The next request waits while the first one is answered, and is not read as its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_comes_before_the_answer_of_another_is_answered_after_it() {
    let server = talker().await;
    let listening = listen(&server).await;
    let body = completion_body(json!({"max_tokens": 200})).to_string();
    let mut socket = listening.send("/v1/completions", &body).await;
    server.until("it runs", |status| status.running == 1).await;
    socket.write_all(b"GET /health HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
    socket.shutdown().await.unwrap();
    let mut said = String::new();
    socket.read_to_string(&mut said).await.unwrap();
    assert_eq!(said.matches("HTTP/1.1 200 OK\r\n").count(), 2, "{said}");
    assert!(said.find("\"usage\"") < said.find("healthy").or(said.find("ok")), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_while_its_prompt_computes_frees_its_place() {
    let server = talker().await;
    let listening = listen(&server).await;
    server.control.order(FakeOrder::Hold);
    let body = chat_body(json!({"stream": true})).to_string();
    let socket = listening.send("/v1/chat/completions", &body).await;
    server.until("it runs", |status| status.running == 1).await;
    drop(socket);
    server.control.order(FakeOrder::Resume);
    server.until("it is cancelled", |status| status.counters.cancelled == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_of_100_mb_is_refused_and_not_kept() {
    let server = Setup::says("Hello").start().await;
    let listening = listen(&server).await;
    let total = 100 << 20;
    for is_chunked in [false, true] {
        let before = peak_bytes();
        let socket = listening.connect().await;
        let (mut reader, mut writer) = socket.into_split();
        let sending = tokio::spawn(async move {
            let head = match is_chunked {
                false => head("/v1/completions", total),
                true => head("/v1/completions", 0)
                    .replace("content-length: 0", "transfer-encoding: chunked"),
            };
            writer.write_all(head.as_bytes()).await?;
            let block = vec![b' '; 1 << 20];
            for _ in 0..total / block.len() {
                if is_chunked {
                    writer.write_all(b"100000\r\n").await?;
                }
                writer.write_all(&block).await?;
                if is_chunked {
                    writer.write_all(b"\r\n").await?;
                }
            }
            if is_chunked {
                writer.write_all(b"0\r\n\r\n").await?;
            }
            std::io::Result::Ok(writer)
        });
        let mut answer = vec![0; 1024];
        let len = reader.read(&mut answer).await.unwrap();
        let answer = String::from_utf8_lossy(&answer[..len]);
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
        assert!(answer.contains("body_too_large"), "{answer}");
        // The client could send all of it, so it was there to read the answer.
        drop(sending.await.unwrap().unwrap());
        if let (Some(before), Some(after)) = (before, peak_bytes()) {
            assert!(after < before + (50 << 20), "{before} bytes grew to {after}");
        }
    }
    server.chat(json!({})).await.ok();
}

/// The most memory this process ever had, where the system tells it in a file.
fn peak_bytes() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: usize = peak.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib << 10)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_asks_before_it_sends_too_much_need_not_send_it() {
    let server = Setup::says("Hello").start().await;
    let listening = listen(&server).await;
    let mut socket = listening.connect().await;
    let head = head("/v1/completions", 100 << 20);
    let head = head.replace("\r\n\r\n", "\r\nexpect: 100-continue\r\n\r\n");
    socket.write_all(head.as_bytes()).await.unwrap();
    let answer = read_until(&mut socket, "body_too_large").await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_drags_its_request_out_is_sent_away() {
    let setup = Setup::says("Hello").limited(|config| {
        config.limits.head_timeout = Duration::from_millis(50);
        config.limits.body_timeout = Duration::from_millis(50);
        config.limits.connections = 1;
    });
    let server = setup.start().await;
    let listening = listen(&server).await;
    let mut socket = listening.connect().await;
    socket.write_all(b"POST /v1/completions HTTP/1.1\r\nhost:").await.unwrap();
    let mut rest = Vec::new();
    socket.read_to_end(&mut rest).await.unwrap();
    let mut socket = listening.connect().await;
    socket.write_all(head("/v1/completions", 1000).as_bytes()).await.unwrap();
    socket.write_all(b"{").await.unwrap();
    let answer = read_until(&mut socket, "body_late").await;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    // Both places are free again: there is only one.
    let body = completion_body(json!({})).to_string();
    drop(socket);
    let mut socket = listening.send("/v1/completions", &body).await;
    read_until(&mut socket, "Hello").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_stops_reading_is_cut_off() {
    let mut setup = Setup::answers(|_| vec![33; 1_000_000]).limited(|config| {
        config.limits.write_timeout = Duration::from_millis(50);
    });
    setup.context_tokens = 200_000;
    let server = setup.start().await;
    let listening = listen(&server).await;
    // Sixteen choices of a thousand tokens each are more than the buffers on the way hold.
    let body = chat_body(json!({"stream": true, "n": 16, "logprobs": true, "top_logprobs": 20}));
    let socket = listening.send("/v1/chat/completions", &body.to_string()).await;
    server.until("it is cut off", |status| status.counters.cancelled > 0).await;
    drop(socket);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_the_server_ends_its_connections() {
    let server = talker().await;
    let listening = listen(&server).await;
    let idle = listening.connect().await;
    let body = chat_body(json!({"stream": true})).to_string();
    let mut busy = listening.send("/v1/chat/completions", &body).await;
    read_until(&mut busy, "\"content\":\"!\"").await;
    listening.stop.send(()).unwrap();
    listening.serving.await.unwrap();
    for mut socket in [idle, busy] {
        let mut rest = Vec::new();
        // A reset is an end as well.
        let _ = socket.read_to_end(&mut rest).await;
    }
    assert!(TcpStream::connect(listening.addr).await.is_err());
    server.until("its requests are cancelled", |status| status.running == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_used_again_and_many_at_once() {
    let server = Setup::says("Hello world").start().await;
    let listening = listen(&server).await;
    let body = completion_body(json!({})).to_string();
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let mut socket = listening.connect().await;
        let body = body.clone();
        clients.spawn(async move {
            for _ in 0..5 {
                socket.write_all(head("/v1/completions", body.len()).as_bytes()).await.unwrap();
                socket.write_all(body.as_bytes()).await.unwrap();
                let answer = read_until(&mut socket, "\"usage\":{").await;
                assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            }
        });
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
}

fn get(path: &str, key: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {key}\r\n\r\n")
}

/// A connection from another address of this machine.
#[cfg(target_os = "linux")]
async fn connect_from(last: u8, addr: SocketAddr) -> TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, last], 0))).unwrap();
    socket.connect(addr).await.unwrap()
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_and_slow_connections_block_no_others() {
    let mut setup = Setup::answers(|_| vec![33; 1_000_000]);
    setup.context_tokens = 200_000;
    let server = setup.limited(|config| config.limits.connections = 16).start().await;
    server.control.order(FakeOrder::Pace(Duration::from_millis(1)));
    let listening = listen(&server).await;
    let body = chat_body(json!({"stream": true})).to_string();
    let mut stream = listening.send("/v1/chat/completions", &body).await;
    read_until(&mut stream, "\"content\":\"!\"").await;
    // No data, half a head, half a body, and a complete request, from three addresses, one of which
    // the later clients use too.
    let mut crowd = Vec::new();
    for number in 0..300_u32 {
        let mut socket = connect_from(1 + (number % 3) as u8, listening.addr).await;
        let said = match number % 4 {
            0 => String::new(),
            1 => "POST /v1/completions HTTP/1.1\r\nhost:".to_owned(),
            2 => head("/v1/completions", 1000) + "{",
            _ => get("/health", "none"),
        };
        // It may have been evicted already.
        let _ = socket.write_all(said.as_bytes()).await;
        crowd.push(socket);
    }
    for last in [1, 4] {
        let mut socket = connect_from(last, listening.addr).await;
        socket.write_all(get("/health", "none").as_bytes()).await.unwrap();
        let answer = read_until(&mut socket, "\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        // While others compete for its slot, a connection is closed once it has its response.
        let mut socket = connect_from(last, listening.addr).await;
        let body = completion_body(json!({"max_tokens": 3})).to_string();
        socket.write_all((head("/v1/completions", body.len()) + &body).as_bytes()).await.unwrap();
        read_until(&mut socket, "completion_tokens").await;
    }
    // The oldest of the crowd was closed, the stream was not.
    let mut rest = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(20), crowd[0].read_to_end(&mut rest))
        .await
        .unwrap();
    read_until(&mut stream, "\"content\":\"!\"").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_and_administrators_get_in_while_all_places_are_busy() {
    let mut setup = Setup::answers(|_| vec![33; 1_000_000]);
    setup.context_tokens = 200_000;
    let setup = setup.limited(|config| {
        config.limits.connections = 2;
        config.api_keys = jackalope_server::ApiKeys::new(["user"]).with_admins(["root"]);
    });
    let server = setup.start().await;
    server.control.order(FakeOrder::Pace(Duration::from_millis(1)));
    let listening = listen(&server).await;
    let body = chat_body(json!({"stream": true})).to_string();
    let ask = |key: &str| {
        let key = format!("\r\nauthorization: Bearer {key}\r\n\r\n");
        head("/v1/chat/completions", body.len()).replace("\r\n\r\n", &key) + &body
    };
    let mut streams = Vec::new();
    for _ in 0..2 {
        let mut socket = listening.connect().await;
        socket.write_all(ask("user").as_bytes()).await.unwrap();
        read_until(&mut socket, "\"content\":\"!\"").await;
        streams.push(socket);
    }
    let cases = [
        (ask("user"), "HTTP/1.1 429 "),
        (get("/v1/models", "user"), "HTTP/1.1 429 "),
        (get("/health", "user"), "HTTP/1.1 200 "),
        (get("/health/live", ""), "HTTP/1.1 200 "),
        (get("/metrics", "user"), "HTTP/1.1 200 "),
        (get("/v1/models", "root"), "HTTP/1.1 200 "),
    ];
    for (said, wanted) in cases {
        let mut socket = listening.connect().await;
        socket.write_all(said.as_bytes()).await.unwrap();
        let answer = read_until(&mut socket, "\r\n\r\n").await;
        assert!(answer.starts_with(wanted), "{said}\n{answer}");
    }
    // Closing a stream frees its slot.
    drop(streams.pop());
    server.until("one has left", |status| status.running == 1).await;
    let mut socket = listening.connect().await;
    loop {
        socket.write_all(get("/v1/models", "user").as_bytes()).await.unwrap();
        if read_until(&mut socket, "\r\n\r\n").await.starts_with("HTTP/1.1 200 ") {
            break;
        }
        socket = listening.connect().await;
    }
}
