//! Groups: collectives between the ranks of one model, as graph nodes.
//!
//! The native group owns a [`jackalope_transport::Group`] and runs its operations on the CPU
//! stream's worker, in graph order. An error of the transport is returned by `eval`; the group
//! stays failed, but the process continues and a new group can replace it. Stock backends (`ring`,
//! `jaccl`, `nccl`) are MLX's own: they have no deadline, so their user has to watch them from
//! outside.

use std::fmt;

use cxx::UniquePtr;
use jackalope_transport as transport;

use crate::array::{Array, built};
use crate::backend::Backend;
use crate::dtype::Dtype;
use crate::error::Error;
use crate::ffi::bridge::{self, RawGroup};
use crate::kernel_sums::KernelSums;
use crate::link::{Link, transport_dtype};

/// The ranks that compute one model together. A clone is another handle to the same group.
pub struct Group {
    rank: usize,
    size: usize,
    kind: Kind,
}

enum Kind {
    Single,
    Rehearsal,
    Native { raw: UniquePtr<RawGroup>, link: Link },
    Stock { raw: UniquePtr<RawGroup> },
}

impl Clone for Group {
    fn clone(&self) -> Group {
        let kind = match &self.kind {
            Kind::Single => Kind::Single,
            Kind::Rehearsal => Kind::Rehearsal,
            Kind::Native { raw, link } => {
                Kind::Native { raw: bridge::copy_group(raw), link: link.clone() }
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
            Kind::Rehearsal => "rehearsal",
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

    /// Creates a group whose other ranks are absent: collectives return arrays of the right shape at once,
    /// as if the others had this rank's values and sent zeros. With it a step computes what one with the
    /// other ranks does, though not the same values.
    pub fn rehearsal(rank: usize, size: usize) -> Group {
        Group { rank, size, kind: Kind::Rehearsal }
    }

    /// Creates a group over our own sockets.
    pub fn native(group: transport::Group) -> Group {
        let (rank, size) = (group.rank(), group.size());
        let link = Link::new(group);
        let raw = bridge::native_group(Box::new(link.clone()));
        Group { rank, size, kind: Kind::Native { raw, link } }
    }

    /// Checks whether [`stock`](Group::stock) can work at all, before anything is loaded for it.
    ///
    /// # Errors
    /// [`Error::NoBackend`] if this libmlx or this machine lacks the backend.
    pub fn check_stock(backend: Backend) -> Result<(), Error> {
        let available = bridge::stock_group_available(backend.name());
        if available.map_err(|err| init_error(backend, &err))? {
            Ok(())
        } else {
            Err(Error::NoBackend { backend })
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
        self.link().map(Link::stats)
    }

    /// Returns a handle with which another thread, the control thread, can interrupt the native
    /// group while it waits; `None` for other groups.
    pub fn interrupter(&self) -> Option<transport::Interrupter> {
        self.link().map(Link::interrupter)
    }

    /// Returns the first error of the native group; `None` if there is none, and for other groups.
    /// If there is one, an evaluation failed because of the group rather than the device, and a new
    /// group is needed.
    pub fn failure(&self) -> Option<transport::TransportError> {
        self.link().and_then(Link::failure)
    }

    /// Returns this group's sums for custom kernels; `None` for stock groups, whose sums are only
    /// nodes of the graph.
    pub fn kernel_sums(&self) -> Option<KernelSums> {
        match &self.kind {
            Kind::Single | Kind::Rehearsal => Some(KernelSums::none()),
            Kind::Native { link, .. } => Some(KernelSums::of(link.clone())),
            Kind::Stock { .. } => None,
        }
    }

    fn link(&self) -> Option<&Link> {
        match &self.kind {
            Kind::Native { link, .. } => Some(link),
            Kind::Single | Kind::Rehearsal | Kind::Stock { .. } => None,
        }
    }
}

/// Collectives. Every rank must build the same ones in the same order.
impl Group {
    /// Returns the sum over all ranks. In f64, a native group sends the numbers in the format of
    /// [`transport::pack`]: exactly if they are sums on the kernels' grid, otherwise rounded.
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
            None if self.size == 1 => x.clone(),
            None => Array::concatenate(&vec![x; self.size], 0),
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
        let to = self.peer("send", to);
        match self.raw() {
            Some(raw) => built("send", bridge::group_send(raw, &x.0, to)),
            None => x.clone(),
        }
    }

    /// Receives an array from another rank.
    ///
    /// # Panics
    /// Panics if `from` is not another rank of the group, or the element type is not one of
    /// `all_sum`'s.
    #[track_caller]
    pub fn recv(&self, shape: &[i32], dtype: Dtype, from: usize) -> Array {
        self.check_dtype("recv", dtype);
        let from = self.peer("recv", from);
        match self.raw() {
            Some(raw) => built("recv", bridge::group_recv(raw, shape, dtype.code(), from)),
            None => Array::zeros(shape, dtype),
        }
    }

    fn raw(&self) -> Option<&RawGroup> {
        match &self.kind {
            Kind::Single | Kind::Rehearsal => None,
            // MLX returns the argument for a group of one; a native group does the same.
            Kind::Native { raw, .. } | Kind::Stock { raw } => (self.size > 1).then_some(raw),
        }
    }

    #[track_caller]
    fn peer(&self, operation: &str, peer: usize) -> i32 {
        let is_peer = peer < self.size && peer != self.rank;
        assert!(is_peer, "{operation}: rank {peer} is not a peer in {self:?}");
        i32::try_from(peer).expect("a rank is small")
    }

    #[track_caller]
    fn check_dtype(&self, operation: &str, dtype: Dtype) {
        assert!(transport_dtype(dtype).is_some(), "{operation}: groups do not carry {dtype:?}");
    }
}
