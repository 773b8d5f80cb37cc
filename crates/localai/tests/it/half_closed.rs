//! gRPC clients that send no more, on real connections: the end of a request, and of the connection.

use std::net::SocketAddr;
use std::time::Duration;

use jackalope_engine::testing::FakeOrder;
use jackalope_localai::{LocalAi, serve};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::calls::prompt;
use crate::support::{Server, Setup};
use crate::wire::{Ask, Reply, framed, unframed};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// A frame of HTTP/2 (RFC 9113, section 4.1).
struct Frame {
    kind: u8,
    flags: u8,
    payload: Vec<u8>,
}

impl Frame {
    fn bytes(&self, stream: u32) -> Vec<u8> {
        let length = u32::try_from(self.payload.len()).unwrap().to_be_bytes();
        let mut bytes = length[1..].to_vec();
        bytes.extend([self.kind, self.flags]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend(&self.payload);
        bytes
    }

    /// Reads the next frame; `None` at the end of the connection.
    async fn read(socket: &mut TcpStream) -> Option<Frame> {
        let mut head = [0; 9];
        socket.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        socket.read_exact(&mut payload).await.ok()?;
        Some(Frame { kind: head[3], flags: head[4], payload })
    }
}

/// Returns what a client sends to call something once.
fn call(name: &str, message: &impl Message) -> Vec<u8> {
    let path = format!("/backend.Backend/{name}");
    let mut headers = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", &path),
        (":authority", "test"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ] {
        // A literal field without indexing (RFC 7541, section 6.2.2).
        headers.push(0);
        for text in [name, value] {
            headers.push(u8::try_from(text.len()).unwrap());
            headers.extend(text.as_bytes());
        }
    }
    let settings = Frame { kind: SETTINGS, flags: 0, payload: Vec::new() };
    let head = Frame { kind: HEADERS, flags: END_HEADERS, payload: headers };
    let body = Frame { kind: DATA, flags: END_STREAM, payload: framed(message) };
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    [preface, settings.bytes(0), head.bytes(1), body.bytes(1)].concat()
}

/// Reads a response up to its trailers; returns its text.
async fn answer(socket: &mut TcpStream) -> String {
    let mut body = Vec::new();
    loop {
        let frame = Frame::read(socket).await.expect("the answer is complete");
        match frame.kind {
            DATA => body.extend(frame.payload),
            HEADERS if frame.flags & END_STREAM != 0 => break,
            _ => {}
        }
    }
    let replies = unframed::<Reply>(&body);
    replies.iter().map(|reply| String::from_utf8(reply.message.clone()).unwrap()).collect()
}

/// A server whose model needs a millisecond for a token.
async fn listen() -> (Server, SocketAddr) {
    let mut setup = Setup::answers(|_| vec![33; 1_000_000]);
    setup.context_tokens = 200_000;
    let server = setup.start().await;
    server.control.order(FakeOrder::Pace(Duration::from_millis(1)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, LocalAi::new(server.state.clone()), std::future::pending()));
    (server, addr)
}

fn ask(num_tokens: i32) -> Ask {
    Ask { tokens: num_tokens, ..prompt("Hello") }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_sends_no_more_gets_its_answer() {
    let (server, addr) = listen().await;
    for name in ["Predict", "PredictStream"] {
        for is_closed in [false, true] {
            let mut socket = TcpStream::connect(addr).await.unwrap();
            socket.write_all(&call(name, &ask(300))).await.unwrap();
            if is_closed {
                socket.shutdown().await.unwrap();
            }
            let said = answer(&mut socket).await;
            assert_eq!(said, "!".repeat(300), "{name}, closed: {is_closed}");
            if is_closed {
                while Frame::read(&mut socket).await.is_some() {}
            }
        }
    }
    assert_eq!(server.engine.status().counters.cancelled, 0);
}

/// A client that has left looks the same until something is written to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_has_left_frees_its_place() {
    let (server, addr) = listen().await;
    for (name, num_cancelled) in [("Predict", 1), ("PredictStream", 2)] {
        let mut socket = TcpStream::connect(addr).await.unwrap();
        socket.write_all(&call(name, &ask(100_000))).await.unwrap();
        server.until("it runs", |status| status.running == 1).await;
        drop(socket);
        let is_cancelled = |counters: u64| counters == num_cancelled;
        server.until("it is cancelled", |it| is_cancelled(it.counters.cancelled)).await;
        server.until("nothing runs", |status| status.running == 0).await;
    }
}
