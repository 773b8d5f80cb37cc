//! Groups: collectives between the ranks of one model, as graph nodes.
//!
//! The native group owns a [`jackalope_transport::Group`] and runs its operations on the CPU
//! stream's worker, in graph order. An error of the transport is returned by `eval`; the group
//! stays failed, but the process continues and a new group can replace it. Stock backends (`ring`,
//! `jaccl`, `nccl`) are MLX's own: they have no deadline, so their user has to watch them from
//! outside.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cxx::UniquePtr;
use jackalope_transport as transport;

use crate::array::{Array, built};
use crate::dtype::Dtype;
use crate::error::Error;
use crate::ffi::bridge::{self, RawGroup};

/// MLX's own transports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Backend {
    /// TCP between neighbours only.
    Ring,
    /// RDMA over Thunderbolt 5, macOS 26.2 or newer.
    Jaccl,
    /// NVIDIA's NCCL on CUDA.
    Nccl,
}

impl Backend {
    /// Returns MLX's name.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Ring => "ring",
            Backend::Jaccl => "jaccl",
            Backend::Nccl => "nccl",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The ranks that compute one model together. A clone is another handle to the same group.
pub struct Group {
    rank: usize,
    size: usize,
    kind: Kind,
}

enum Kind {
    Single,
    Native { raw: UniquePtr<RawGroup>, shared: Arc<Shared> },
    Stock { raw: UniquePtr<RawGroup> },
}

impl Clone for Group {
    fn clone(&self) -> Group {
        let kind = match &self.kind {
            Kind::Single => Kind::Single,
            Kind::Native { raw, shared } => {
                Kind::Native { raw: bridge::copy_group(raw), shared: Arc::clone(shared) }
            }
            Kind::Stock { raw } => Kind::Stock { raw: bridge::copy_group(raw) },
        };
        Group { rank: self.rank, size: self.size, kind }
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Single => "single",
            Kind::Native { .. } => "native",
            Kind::Stock { .. } => "stock",
        };
        write!(f, "Group({kind}, rank {} of {})", self.rank, self.size)
    }
}

/// Creation of groups.
impl Group {
    /// Creates a group of one rank, whose collectives return their argument.
    pub fn single() -> Group {
        Group { rank: 0, size: 1, kind: Kind::Single }
    }

    /// Creates a group over our own sockets.
    pub fn native(group: transport::Group) -> Group {
        let (rank, size) = (group.rank(), group.size());
        let shared = Arc::new(Shared {
            rank,
            size,
            interrupter: group.interrupter(),
            stats: Mutex::new(group.stats()),
            failure: Mutex::new(None),
            group: Mutex::new(group),
        });
        let raw = bridge::native_group(Box::new(Link(Arc::clone(&shared))));
        Group { rank, size, kind: Kind::Native { raw, shared } }
    }

    /// Checks whether [`stock`](Group::stock) can work at all, before anything is loaded for it.
    ///
    /// # Errors
    /// [`Error::NoBackend`] if this libmlx or this machine lacks the backend.
    pub fn check_stock(backend: Backend) -> Result<(), Error> {
        let available = bridge::stock_group_available(backend.name());
        match available.map_err(|err| init_error(backend, &err))? {
            true => Ok(()),
            false => Err(Error::NoBackend { backend }),
        }
    }

    /// Creates a group over one of MLX's own transports, which read their settings from the
    /// environment. Drops an earlier group of the same backend first.
    ///
    /// # Errors
    /// Fails if this libmlx lacks the backend, if the ranks cannot connect, or if the backend
    /// reports another rank or size than the given ones (MLX would otherwise silently continue with
    /// a smaller group).
    pub fn stock(backend: Backend, rank: usize, size: usize) -> Result<Group, Error> {
        Group::check_stock(backend)?;
        let raw = bridge::stock_group(backend.name()).map_err(|err| init_error(backend, &err))?;
        let found = |count: i32| usize::try_from(count).expect("ranks are counted from zero");
        let (found_rank, found_size) =
            (found(bridge::group_rank(&raw)), found(bridge::group_size(&raw)));
        if (found_rank, found_size) != (rank, size) {
            return Err(Error::GroupMismatch { backend, rank, size, found_rank, found_size });
        }
        Ok(Group { rank, size, kind: Kind::Stock { raw } })
    }
}

fn init_error(backend: Backend, err: &cxx::Exception) -> Error {
    Error::GroupInit { backend, message: err.what().to_owned() }
}

/// Properties of a group.
impl Group {
    /// Returns this process's rank, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the counters of the native group, as of its last finished operation; `None` for
    /// other groups.
    pub fn stats(&self) -> Option<transport::GroupStats> {
        self.shared().map(|shared| *locked(&shared.stats))
    }

    /// Returns a handle with which another thread, the control thread, can interrupt the native
    /// group while it waits; `None` for other groups.
    pub fn interrupter(&self) -> Option<transport::Interrupter> {
        self.shared().map(|shared| shared.interrupter.clone())
    }

    /// Returns the first error of the native group. If there is one, an evaluation failed because
    /// of the group rather than the device, and a new group is needed.
    pub fn failure(&self) -> Option<transport::TransportError> {
        self.shared().and_then(|shared| locked(&shared.failure).clone())
    }

    fn shared(&self) -> Option<&Shared> {
        match &self.kind {
            Kind::Native { shared, .. } => Some(shared),
            Kind::Single | Kind::Stock { .. } => None,
        }
    }
}

/// Collectives. Every rank must build the same ones in the same order.
impl Group {
    /// Returns the sum over all ranks. In f64, a native group treats the numbers as sums on the
    /// kernels' grid and rounds others to it; see [`transport::pack`].
    ///
    /// # Panics
    /// Panics if the element type is not f32, f64, f16, bf16, i32 or u32.
    #[track_caller]
    pub fn all_sum(&self, x: &Array) -> Array {
        self.check_dtype("all_sum", x.dtype());
        match self.raw() {
            Some(raw) => built("all_sum", bridge::group_all_sum(raw, &x.0)),
            None => x.clone(),
        }
    }

    /// Returns the arrays of all ranks, which must have equal shapes, concatenated along the first
    /// dimension.
    ///
    /// # Panics
    /// Panics if the element type is not one of `all_sum`'s.
    #[track_caller]
    pub fn all_gather(&self, x: &Array) -> Array {
        self.check_dtype("all_gather", x.dtype());
        match self.raw() {
            Some(raw) => built("all_gather", bridge::group_all_gather(raw, &x.0)),
            None => x.clone(),
        }
    }

    /// Sends `x` to another rank. Nothing is sent before the returned array, which has the values of
    /// `x`, is evaluated.
    ///
    /// # Panics
    /// Panics if `to` is not another rank of the group, or the element type is not one of
    /// `all_sum`'s.
    #[track_caller]
    pub fn send(&self, x: &Array, to: usize) -> Array {
        self.check_dtype("send", x.dtype());
        let (raw, to) = self.peer("send", to);
        built("send", bridge::group_send(raw, &x.0, to))
    }

    /// Receives an array from another rank.
    ///
    /// # Panics
    /// Panics if `from` is not another rank of the group, or the element type is not one of
    /// `all_sum`'s.
    #[track_caller]
    pub fn recv(&self, shape: &[i32], dtype: Dtype, from: usize) -> Array {
        self.check_dtype("recv", dtype);
        let (raw, from) = self.peer("recv", from);
        built("recv", bridge::group_recv(raw, shape, dtype.code(), from))
    }

    fn raw(&self) -> Option<&RawGroup> {
        match &self.kind {
            Kind::Single => None,
            // MLX returns the argument for a group of one; a native group does the same.
            Kind::Native { raw, .. } | Kind::Stock { raw } => (self.size > 1).then_some(raw),
        }
    }

    #[track_caller]
    fn peer(&self, operation: &str, peer: usize) -> (&RawGroup, i32) {
        let is_peer = peer < self.size && peer != self.rank;
        assert!(is_peer, "{operation}: rank {peer} is not a peer in {self:?}");
        let raw = self.raw().expect("a group with a peer is not single");
        (raw, i32::try_from(peer).expect("a rank is small"))
    }

    #[track_caller]
    fn check_dtype(&self, operation: &str, dtype: Dtype) {
        assert!(transport_dtype(dtype).is_some(), "{operation}: groups do not carry {dtype:?}");
    }
}

fn transport_dtype(dtype: Dtype) -> Option<transport::Dtype> {
    match dtype {
        Dtype::F32 => Some(transport::Dtype::F32),
        Dtype::F64 => Some(transport::Dtype::F64),
        Dtype::F16 => Some(transport::Dtype::F16),
        Dtype::Bf16 => Some(transport::Dtype::Bf16),
        Dtype::I32 => Some(transport::Dtype::I32),
        Dtype::U32 => Some(transport::Dtype::U32),
        Dtype::Bool | Dtype::U8 | Dtype::U16 | Dtype::I64 => None,
    }
}

/// The state that the handles in Rust and the group in C++ share. Only the stream's worker uses
/// `group`; the other locks are held only for a copy, so that counters can be read while the worker
/// waits.
struct Shared {
    rank: usize,
    size: usize,
    interrupter: transport::Interrupter,
    stats: Mutex<transport::GroupStats>,
    failure: Mutex<Option<transport::TransportError>>,
    group: Mutex<transport::Group>,
}

/// The reference of the C++ side to a native group.
pub(crate) struct Link(Arc<Shared>);

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Link(rank {} of {})", self.0.rank, self.0.size)
    }
}

impl Link {
    pub(crate) fn rank(&self) -> i32 {
        i32::try_from(self.0.rank).expect("a rank is small")
    }

    pub(crate) fn size(&self) -> i32 {
        i32::try_from(self.0.size).expect("a group is small")
    }

    pub(crate) fn all_sum(&self, data: &mut [u8], dtype: u8) -> Result<(), String> {
        self.run(dtype, |group, dtype| {
            if dtype != transport::Dtype::F64 {
                return group.all_sum(data, dtype);
            }
            let mut packed = transport::pack(data);
            group.all_sum(&mut packed, transport::Dtype::Packed)?;
            transport::unpack(&packed, data);
            Ok(())
        })
    }

    pub(crate) fn all_gather(&self, local: &[u8], out: &mut [u8], dtype: u8) -> Result<(), String> {
        self.run(dtype, |group, dtype| group.all_gather(local, out, dtype))
    }

    pub(crate) fn send(&self, data: &[u8], dtype: u8, to: i32) -> Result<(), String> {
        let to = usize::try_from(to).expect("checked when the node was built");
        self.run(dtype, |group, dtype| group.send(data, dtype, to))
    }

    pub(crate) fn recv(&self, data: &mut [u8], dtype: u8, from: i32) -> Result<(), String> {
        let from = usize::try_from(from).expect("checked when the node was built");
        self.run(dtype, |group, dtype| group.recv(data, dtype, from))
    }

    /// Runs one operation. The first error is kept; the transport itself refuses all later
    /// operations.
    fn run(
        &self,
        dtype: u8,
        operation: impl FnOnce(&mut transport::Group, transport::Dtype) -> Operated,
    ) -> Result<(), String> {
        let dtype = transport_dtype(Dtype::from_code(dtype)).expect("checked when it was built");
        let mut group = self.0.group.lock().map_err(|_| "the group panicked before".to_owned())?;
        let result = operation(&mut group, dtype);
        *locked(&self.0.stats) = group.stats();
        drop(group);
        result.map_err(|err| {
            let text = err.to_string();
            locked(&self.0.failure).get_or_insert(err);
            text
        })
    }
}

type Operated = Result<(), transport::TransportError>;

/// Locks a value that is only ever replaced as a whole, so that a panic elsewhere cannot have left
/// it inconsistent.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
