//! TLS: the certificate, which is reloaded when its files change, and handshakes.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use thiserror::Error;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::server::TlsStream;
use tracing::{info, warn};

/// Minimum time between two checks of the files.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The first byte of a TLS connection: a record of a handshake (RFC 8446, section 5.1).
const HANDSHAKE_RECORD: u8 = 22;

/// Head of the response to a client that speaks plain HTTP.
const PLAIN_HTTP: &str = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n\
    connection: close\r\ncontent-length: ";

const PLAIN_HTTP_BODY: &str = "{\"error\":{\"message\":\"this port speaks HTTPS, and the request \
    came as plain HTTP\\nhint: use https:// in place of http://\",\"type\":\"invalid_request_error\",\
    \"param\":null,\"code\":\"https_needed\"},\"detail\":\"this port speaks HTTPS\"}";

/// An error in a certificate or its key.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file is missing or invalid.
    #[error("{what} {}: {reason}\nhint: name a readable file in PEM form", path.display())]
    File {
        /// Whether it is the certificate's file or the key's, for the message.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Reason of the error.
        reason: String,
    },
    /// The certificate and the key do not belong together, or are not supported.
    #[error("the certificate and its key cannot be used: {0}")]
    Unusable(#[from] tokio_rustls::rustls::Error),
}

/// A certificate and its key, in files that may be replaced while the server runs.
#[derive(Clone)]
pub struct Tls {
    shared: Arc<Shared>,
}

struct Shared {
    cert: PathBuf,
    key: PathBuf,
    current: Mutex<Current>,
}

struct Current {
    config: Arc<ServerConfig>,
    stamps: Stamps,
    looked: Instant,
}

type Stamps = [Option<(SystemTime, u64)>; 2];

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("cert", &self.shared.cert).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads a certificate chain, which begins with the server's certificate, and its key.
    ///
    /// # Errors
    /// Returns an error if either file cannot be used. If the files become invalid later, a warning
    /// is logged and the certificate that was read last stays in use.
    pub fn new(cert: &Path, key: &Path) -> Result<Tls, TlsError> {
        let stamps = stamps(cert, key);
        let current = Current { config: read(cert, key)?, stamps, looked: Instant::now() };
        let current = Mutex::new(current);
        let shared = Shared { cert: cert.to_owned(), key: key.to_owned(), current };
        Ok(Tls { shared: Arc::new(shared) })
    }

    /// Performs the handshake on a new connection. A client that speaks plain HTTP gets an error
    /// that says so.
    pub(crate) async fn accept(&self, mut socket: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let mut first = [0];
        if socket.peek(&mut first).await? == 1 && first[0] != HANDSHAKE_RECORD {
            let answer = format!("{PLAIN_HTTP}{}\r\n\r\n{PLAIN_HTTP_BODY}", PLAIN_HTTP_BODY.len());
            socket.write_all(answer.as_bytes()).await?;
            socket.shutdown().await?;
            // The client's data must be read; otherwise the connection is reset before the client
            // reads the answer.
            let mut rest = tokio::io::AsyncReadExt::take(&mut socket, 1 << 16);
            tokio::io::copy(&mut rest, &mut tokio::io::sink()).await?;
            return Err(io::Error::other("plain HTTP on a port for HTTPS"));
        }
        TlsAcceptor::from(self.config()).accept(socket).await
    }

    /// The configuration for new connections, reloaded if the files have changed. Open connections
    /// keep theirs.
    fn config(&self) -> Arc<ServerConfig> {
        let Shared { cert, key, current } = &*self.shared;
        let mut current = current.lock().unwrap_or_else(PoisonError::into_inner);
        if LOOK_INTERVAL <= current.looked.elapsed() {
            current.looked = Instant::now();
            let found = stamps(cert, key);
            if found != current.stamps {
                match read(cert, key) {
                    Ok(config) => {
                        info!(cert = %cert.display(), "the certificate was read again");
                        (current.config, current.stamps) = (config, found);
                    }
                    // The stamps are not updated, so that the files are read again: the other file
                    // may still be missing.
                    Err(err) => warn!(%err, "the certificate stays as it was"),
                }
            }
        }
        Arc::clone(&current.config)
    }
}

fn stamps(cert: &Path, key: &Path) -> Stamps {
    [cert, key].map(|path| {
        let metadata = std::fs::metadata(path).ok()?;
        Some((metadata.modified().ok()?, metadata.len()))
    })
}

fn read(cert: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let broken =
        |what, path: &Path, reason: String| TlsError::File { what, path: path.to_owned(), reason };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(cert)
        .and_then(Iterator::collect)
        .map_err(|err| broken("the certificate", cert, err.to_string()))?;
    if chain.is_empty() {
        return Err(broken("the certificate", cert, "there is none in it".to_owned()));
    }
    let key =
        PrivateKeyDer::from_pem_file(key).map_err(|err| broken("the key", key, err.to_string()))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
