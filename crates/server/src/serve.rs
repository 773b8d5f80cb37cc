//! Sockets: accepting, deadlines for everything that a client can delay, and orderly shutdown.
//!
//! `axum::serve` sets no deadline on a connection, so a client that sends half a head, or stops
//! reading, would hold it forever. Here each of these has a deadline, and the number of connections
//! is bounded (`connections.rs`).

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Version;
use axum::http::header::HOST;
use axum::middleware::from_fn;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use hyper_util::service::TowerToHyperService;
use jackalope_serving::limits::ServerLimits;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep, timeout};
use tracing::debug;

use crate::connections::{self, Connection, Connections, WrongHosts};
use crate::half_close::{Awaited, HalfClosable, OpenCalls};
use crate::monitor::memory::sample_until;
use crate::routes::router;
use crate::state::ServerState;
use crate::tail::until_dropped;
use crate::tls::Tls;

/// Pause after an accept that failed for lack of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Time for the rest of a response on a connection that is being evicted.
const CLOSE_GRACE: Duration = Duration::from_millis(250);

/// Maximum number of concurrent calls per HTTP/2 connection.
const CALLS_PER_CONNECTION: u32 = 256;

/// Maximum size of a request's head, in bytes.
const HEAD_BYTES: usize = 64 << 10;

/// Serves HTTP on `listener` until `shutdown` completes, then gives open connections
/// [`ServerLimits::shutdown_timeout`] to end before they are closed.
pub async fn serve(
    listener: TcpListener,
    state: ServerState,
    shutdown: impl Future<Output = ()> + Send,
) {
    if let Ok(addr) = listener.local_addr() {
        state.listens_on(addr.port());
    }
    let config = ListenerConfig {
        limits: Arc::clone(state.limits()),
        tls: state.config().tls.clone(),
        router: router(state.clone()).layer(from_fn(connections::account)),
        is_http2: false,
    };
    let mut accepting = Accepting::default();
    accepting.tasks.spawn(sample_until(state, accepting.ending.subscribe()));
    accepting.run(listener, config, shutdown).await;
}

/// Like [`serve`], for the routes of another protocol on HTTP/2 without TLS.
pub async fn serve_http2(
    listener: TcpListener,
    routes: Router,
    limits: Arc<ServerLimits>,
    shutdown: impl Future<Output = ()> + Send,
) {
    let router = routes.layer(from_fn(connections::account));
    let config = ListenerConfig { limits, tls: None, router, is_http2: true };
    Accepting::default().run(listener, config, shutdown).await;
}

/// The configuration of a listener.
#[derive(Clone)]
struct ListenerConfig {
    limits: Arc<ServerLimits>,
    tls: Option<Tls>,
    router: Router,
    is_http2: bool,
}

/// Accepts connections until shutdown.
#[derive(Default)]
struct Accepting {
    /// A task for each connection, and others that end with the listener.
    tasks: JoinSet<()>,
    /// Whether shutdown has begun.
    ending: watch::Sender<bool>,
}

impl Accepting {
    async fn run(
        self,
        listener: TcpListener,
        config: ListenerConfig,
        shutdown: impl Future<Output = ()> + Send,
    ) {
        let Accepting { mut tasks, ending } = self;
        let limits = Arc::clone(&config.limits);
        let open = Connections::new(limits.connections);
        let mut shutdown = std::pin::pin!(shutdown);
        let mut logging = std::pin::pin!(Arc::clone(&open).log_refusals());
        loop {
            tokio::select! {
                (socket, from) = accept(&listener, &open) => {
                    let (place, open, config) = (open.open(from.ip()), Arc::clone(&open), config.clone());
                    let client = Client { socket, place, open, config };
                    tasks.spawn(client.run(ending.subscribe()));
                }
                Some(_) = tasks.join_next() => {}
                () = &mut logging => {}
                () = &mut shutdown => break,
            }
        }
        drop(listener);
        ending.send_replace(true);
        let all_ended = async { while tasks.join_next().await.is_some() {} };
        if timeout(limits.shutdown_timeout, all_ended).await.is_err() {
            debug!(connections = tasks.len(), "connections cut at shutdown");
        }
        tasks.shutdown().await;
    }
}

/// Accepts the next connection.
async fn accept(listener: &TcpListener, open: &Connections) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(err) if is_peers_fault(&err) => debug!(%err, "connection lost before it began"),
            Err(err) => {
                open.refused(Ipv4Addr::UNSPECIFIED.into(), &format!("accepting failed: {err}"));
                open.close_one();
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn is_peers_fault(err: &io::Error) -> bool {
    matches!(
        err.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
    )
}

/// One accepted connection.
struct Client {
    socket: TcpStream,
    place: Connection,
    open: Arc<Connections>,
    config: ListenerConfig,
}

impl Client {
    /// Serves the connection until either side closes it, or it is evicted.
    async fn run(self, ended: watch::Receiver<bool>) {
        let Client { socket, place, open, config } = self;
        let from = place.ip();
        if let Some(reason) = serve_client(socket, place, config, ended).await {
            open.refused(from, &reason);
        }
    }
}

/// Serves a connection. Returns the reason if it could not be served.
async fn serve_client(
    socket: TcpStream,
    place: Connection,
    config: ListenerConfig,
    mut ended: watch::Receiver<bool>,
) -> Option<String> {
    let ListenerConfig { limits, tls, router, is_http2 } = config;
    // A token is a small write that must not be delayed by Nagle's algorithm.
    if let Err(err) = socket.set_nodelay(true) {
        debug!(%err, "setting TCP_NODELAY failed");
    }
    let router = Counted { router: TowerToHyperService::new(router), place };
    if is_http2 {
        answer_http2(socket, router, &limits, ended).await;
        return None;
    }
    let Some(tls) = tls else {
        answer(socket, router, &limits, ended).await;
        return None;
    };
    // Shutdown does not wait for a TLS handshake.
    let handshake = tokio::select! {
        handshake = timeout(limits.handshake_timeout, tls.accept(socket)) => handshake,
        _ = ended.wait_for(|&ended| ended) => return None,
        () = router.place.closed() => return None,
    };
    match handshake {
        Ok(Ok(socket)) => {
            answer(socket, router, &limits, ended).await;
            None
        }
        Ok(Err(err)) => Some(format!("TLS: {err}")),
        Err(_) => Some("it took too long over the TLS handshake".to_owned()),
    }
}

/// The router, with the connection that its requests arrive on.
#[derive(Clone)]
struct Counted {
    router: TowerToHyperService<Router>,
    place: Connection,
}

impl Counted {
    async fn call(self, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(self.place);
        let num_hosts = request.headers().get_all(HOST).iter().count();
        // HTTP/2 sends the host in a field of its own.
        if num_hosts > 1 || num_hosts == 0 && request.version() == Version::HTTP_11 {
            request.extensions_mut().insert(WrongHosts(num_hosts));
        }
        self.router.call(request).await
    }
}

/// Serves HTTP/1.1 on a connection until either side ends it.
async fn answer<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    socket: S,
    router: Counted,
    limits: &ServerLimits,
    ended: watch::Receiver<bool>,
) {
    let awaited = Awaited::default();
    let socket = WriteTimeout::new(socket, limits.write_timeout);
    let socket = TokioIo::new(HalfClosable::http1(socket, awaited.clone()));
    let place = router.place.clone();
    let serving = http1::Builder::new()
        .half_close(true)
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(
            socket,
            service_fn(move |request: Request<Incoming>| {
                let (router, head) = (router.clone(), awaited.begin(request.version()));
                async move {
                    let response = router.call(request).await;
                    drop(head);
                    response
                }
            }),
        );
    until_over(serving, &place, ended).await;
}

/// Serves HTTP/2 on a connection until either side ends it.
async fn answer_http2(
    socket: TcpStream,
    router: Counted,
    limits: &ServerLimits,
    ended: watch::Receiver<bool>,
) {
    let calls = OpenCalls::default();
    let socket = WriteTimeout::new(socket, limits.write_timeout);
    let socket = TokioIo::new(HalfClosable::http2(socket, calls.clone()));
    let place = router.place.clone();
    let serving = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(CALLS_PER_CONNECTION)
        .max_header_list_size(HEAD_BYTES as u32)
        // A client that does not answer pings is considered gone.
        .keep_alive_interval(limits.head_timeout)
        .keep_alive_timeout(limits.handshake_timeout)
        .serve_connection(
            socket,
            service_fn(move |request| {
                let (router, call) = (router.clone(), calls.begin());
                async move {
                    let response = router.call(request).await?;
                    Ok::<_, Infallible>(response.map(|body| until_dropped(body, call)))
                }
            }),
        );
    until_over(serving, &place, ended).await;
}

/// Drives a connection until either side ends it. At shutdown, requests in progress are answered
/// first.
async fn until_over<C: GracefulConnection<Error = hyper::Error>>(
    connection: C,
    place: &Connection,
    mut ended: watch::Receiver<bool>,
) {
    let mut connection = std::pin::pin!(connection);
    let ending = async { ended.wait_for(|&ended| ended).await.is_ok() };
    let outcome = tokio::select! {
        outcome = &mut connection => outcome,
        _ = ending => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
        () = place.closed() => {
            // The rest of a response may still be sent.
            connection.as_mut().graceful_shutdown();
            timeout(CLOSE_GRACE, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(err) = outcome {
        debug!(%err, "connection ended early");
    }
}

/// A socket whose writes fail if the client does not read for too long.
struct WriteTimeout<S> {
    socket: S,
    timeout_after: Duration,
    /// Timer that runs while a write is blocked.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteTimeout<S> {
    fn new(socket: S, timeout_after: Duration) -> WriteTimeout<S> {
        WriteTimeout { socket, timeout_after, stalled: None }
    }

    /// Passes on a finished write, and fails a blocked one at its deadline.
    fn bound<T>(
        &mut self,
        context: &mut Context<'_>,
        write: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if write.is_ready() {
            self.stalled = None;
            return write;
        }
        let timeout_after = self.timeout_after;
        let deadline = self.stalled.get_or_insert_with(|| Box::pin(sleep(timeout_after)));
        ready!(deadline.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client stopped reading")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let write = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.bound(context, write)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let write = Pin::new(&mut self.socket).poll_write_vectored(context, slices);
        self.bound(context, write)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flush = Pin::new(&mut self.socket).poll_flush(context);
        self.bound(context, flush)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shutdown = Pin::new(&mut self.socket).poll_shutdown(context);
        self.bound(context, shutdown)
    }
}
