//! HTTPS, with certificates made for these tests.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jackalope_server::{Tls, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::support::{Server, Setup};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// A server on a port, which ends with the test's runtime.
async fn listen(tls: Tls, handshake_timeout: Duration) -> (Server, std::net::SocketAddr) {
    let setup = Setup::says("Hello").limited(|config| {
        config.tls = Some(tls);
        config.limits.handshake_timeout = handshake_timeout;
    });
    let server = setup.start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, server.state.clone(), std::future::pending()));
    (server, addr)
}

/// Asks over HTTPS, trusting one certificate and nothing else.
async fn get(addr: std::net::SocketAddr, trusted: &str) -> std::io::Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(data(trusted)).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let socket = TcpStream::connect(addr).await?;
    let name = "localhost".try_into().unwrap();
    let mut socket = TlsConnector::from(Arc::new(config)).connect(name, socket).await?;
    socket
        .write_all(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .await?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn https_is_spoken_and_plain_http_gets_an_explanation() {
    let tls = Tls::new(&data("localhost.pem"), &data("localhost.key")).unwrap();
    let (_server, addr) = listen(tls, Duration::from_secs(10)).await;
    let answer = get(addr, "localhost.pem").await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("alive"), "{answer}");
    assert!(get(addr, "other.pem").await.is_err(), "the client checks the certificate");

    let mut socket = TcpStream::connect(addr).await.unwrap();
    socket.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    socket.shutdown().await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("https://"), "{answer}");
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(body["error"]["code"], "https_needed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handshake_that_drags_on_is_cut_off() {
    let tls = Tls::new(&data("localhost.pem"), &data("localhost.key")).unwrap();
    let (_server, addr) = listen(tls, Duration::from_millis(50)).await;
    for begun in [&b""[..], &b"\x16\x03\x01"[..]] {
        let mut socket = TcpStream::connect(addr).await.unwrap();
        socket.write_all(begun).await.unwrap();
        let mut rest = Vec::new();
        // A reset is an end as well.
        let _ = socket.read_to_end(&mut rest).await;
        assert!(rest.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_certificate_is_used_for_new_connections() {
    let dir = std::env::temp_dir().join(format!("jackalope-tls-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (cert, key) = (dir.join("cert.pem"), dir.join("key.pem"));
    let put = |name: &str| {
        std::fs::copy(data(&format!("{name}.key")), &key).unwrap();
        std::fs::copy(data(&format!("{name}.pem")), &cert).unwrap();
    };
    put("localhost");
    let (_server, addr) = listen(Tls::new(&cert, &key).unwrap(), Duration::from_secs(10)).await;
    get(addr, "localhost.pem").await.unwrap();
    put("other");
    let deadline = Instant::now() + Duration::from_secs(60);
    while get(addr, "other.pem").await.is_err() {
        assert!(Instant::now() < deadline, "the new certificate is never used");
    }
    assert!(get(addr, "localhost.pem").await.is_err());
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn files_that_are_no_certificate_are_named() {
    let fails = |cert: &str, key: &str| Tls::new(&data(cert), &data(key)).unwrap_err().to_string();
    assert!(fails("nowhere.pem", "localhost.key").contains("nowhere.pem"));
    assert!(fails("localhost.key", "localhost.key").contains("localhost.key"));
    assert!(fails("localhost.pem", "localhost.pem").contains("localhost.pem"));
    assert!(fails("localhost.pem", "other.key").contains("cannot be used"));
}
