//! Bounds the number of open connections, and decides which ones to evict.
//!
//! ```text
//!   accepted ─▶ waiting ──(a whole request has arrived)──▶ busy ──(its answer has ended)──▶ waiting
//! ```
//!
//! A waiting connection has not sent a complete request: it is idle, silent or slow. Waiting
//! connections are bounded by the cluster's policy for unauthenticated connections ([`Admission`]):
//! a new one is accepted, and the oldest one of the address with the most connections is closed.
//! Busy connections are never closed; while their number is at its limit, only health requests and
//! requests of administrators are served.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use axum::body::HttpBody as _;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use jackalope_protocol::admission::{Admission, AdmissionId, AdmissionLimits, Admitted};
use jackalope_protocol::refusals::{REFUSALS_INTERVAL, RefusalLog};
use tokio::sync::Notify;
use tracing::warn;

use crate::tail::until_end;

/// Inverse of the maximum share of slots for one address. Expected addresses are exempt: this
/// machine, and addresses that have sent a valid key.
const SHARE_OF_ADDRESS: usize = 2;
/// Inverse of the share of slots reserved for expected addresses.
const SHARE_IN_RESERVE: usize = 8;

/// The connections of a listener.
#[derive(Debug)]
pub(crate) struct Connections {
    /// Maximum number of waiting connections, and separately of requests being answered.
    limit: usize,
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    waiting: Admission<Arc<Notify>>,
    num_busy: usize,
    refusals: RefusalLog,
}

/// One connection. Dropping the last clone frees its slot.
#[derive(Clone, Debug)]
pub(crate) struct Connection(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    connections: Arc<Connections>,
    ip: IpAddr,
    closed: Arc<Notify>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The connection's slot among the waiting connections; none while the connection is busy.
    place: Option<AdmissionId>,
    /// Number of complete requests whose responses have not ended; several are possible with
    /// HTTP/2.
    num_open: usize,
}

/// Marks a request that arrived while too many others are being answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TooBusy {
    pub(crate) limit: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connections {
    pub(crate) fn new(limit: usize) -> Arc<Connections> {
        let limit = limit.max(1);
        let limits = AdmissionLimits {
            total: limit,
            per_source: (limit / SHARE_OF_ADDRESS).max(1),
            reserve: limit / SHARE_IN_RESERVE,
        };
        let expected: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        let waiting = Admission::new(limits, expected);
        let table = Table { waiting, num_busy: 0, refusals: RefusalLog::default() };
        Arc::new(Connections { limit, table: Mutex::new(table) })
    }

    /// Registers a new connection.
    pub(crate) fn open(self: &Arc<Connections>, ip: IpAddr) -> Connection {
        let connection = Connection(Arc::new(Inner {
            connections: Arc::clone(self),
            ip,
            closed: Arc::default(),
            state: Mutex::new(State { place: None, num_open: 0 }),
        }));
        connection.wait(lock(&self.table));
        connection
    }

    /// Counts a connection that was refused or closed, and logs it at a bounded rate.
    pub(crate) fn refused(&self, ip: IpAddr, reason: &str) {
        let line = lock(&self.table).refusals.refused(ip, reason, Instant::now());
        if let Some(line) = line {
            warn!("HTTP: {line}");
        }
    }

    /// Closes the oldest waiting connection, because the system has no file descriptors left.
    pub(crate) fn close_one(&self) {
        let table = lock(&self.table);
        if let Some((_, closed)) = table.waiting.iter().next() {
            closed.notify_one();
        }
    }

    /// Periodically logs the refusals since the last log line. Never returns.
    pub(crate) async fn log_refusals(self: Arc<Connections>) {
        loop {
            tokio::time::sleep(REFUSALS_INTERVAL).await;
            let lines = lock(&self.table).refusals.due(Instant::now());
            for line in lines {
                warn!("HTTP: {line}");
            }
        }
    }
}

impl Connection {
    /// Completes when the connection is evicted.
    pub(crate) async fn closed(&self) {
        self.0.closed.notified().await;
        let reason = "it was idle or slow while others wanted its place";
        self.0.connections.refused(self.0.ip, reason);
    }

    /// The client's address.
    pub(crate) fn ip(&self) -> IpAddr {
        self.0.ip
    }

    /// Records that this address has sent a valid key, so that its connections may use the reserved
    /// slots.
    pub(crate) fn proved(&self) {
        lock(&self.0.connections.table).waiting.proved(self.0.ip);
    }

    /// Moves the connection to the waiting ones.
    fn wait(&self, mut table: MutexGuard<'_, Table>) {
        let Inner { ip, closed, state, .. } = &*self.0;
        let Admitted { id, evicted } = table.waiting.admit(*ip, Arc::clone(closed));
        drop(table);
        lock(state).place = Some(id);
        if let Some(evicted) = evicted {
            evicted.notify_one();
        }
    }

    /// Records that a complete request has arrived.
    fn busy(&self) {
        let place = {
            let mut state = lock(&self.0.state);
            state.num_open += 1;
            state.place.take()
        };
        let mut table = lock(&self.0.connections.table);
        table.num_busy += 1;
        if let Some(place) = place {
            table.waiting.remove(place);
        }
    }

    /// Records that a response has ended.
    fn done(&self) {
        let is_idle = {
            let mut state = lock(&self.0.state);
            state.num_open -= 1;
            state.num_open == 0
        };
        let mut table = lock(&self.0.connections.table);
        table.num_busy -= 1;
        if !is_idle {
            return;
        }
        // If a slot is free, the connection is kept; otherwise it is closed, rather than one that
        // has not been answered yet.
        if table.waiting.has_room(self.0.ip) {
            self.wait(table);
        } else {
            drop(table);
            self.0.closed.notify_one();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(place) = lock(&self.state).place.take() {
            lock(&self.connections.table).waiting.remove(place);
        }
    }
}

/// A request, from its head to the end of its response.
struct InFlight {
    connection: Connection,
    is_whole: AtomicBool,
}

impl InFlight {
    fn whole(&self) {
        if !self.is_whole.swap(true, Ordering::SeqCst) {
            self.connection.busy();
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if self.is_whole.load(Ordering::SeqCst) {
            self.connection.done();
        }
    }
}

/// Accounts for each request on connections from [`Connections::open`].
pub(crate) async fn account(mut request: Request, next: Next) -> Response {
    let Some(connection) = request.extensions().get::<Connection>().cloned() else {
        return next.run(request).await;
    };
    let limit = connection.0.connections.limit;
    if limit <= lock(&connection.0.connections.table).num_busy {
        request.extensions_mut().insert(TooBusy { limit });
    }
    let in_flight = Arc::new(InFlight { connection, is_whole: AtomicBool::new(false) });
    if request.body().is_end_stream() {
        in_flight.whole();
    }
    let arriving = Arriving(Arc::clone(&in_flight));
    let request = request.map(|body| until_end(body, arriving));
    let response = next.run(request).await;
    in_flight.whole();
    response.map(|body| until_end(body, in_flight))
}

/// Marks a request as completely received when this is dropped.
struct Arriving(Arc<InFlight>);

impl Drop for Arriving {
    fn drop(&mut self) {
        self.0.whole();
    }
}

/// Marks a request without the host that HTTP/1.1 requires, or with several.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WrongHosts(pub(crate) usize);
