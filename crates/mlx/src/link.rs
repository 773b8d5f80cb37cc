//! The native group's operations, which MLX runs on its CPU stream's worker.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jackalope_transport as transport;

use crate::dtype::Dtype;

/// Returns the transport's name of an element type, if groups carry it.
pub(crate) fn transport_dtype(dtype: Dtype) -> Option<transport::Dtype> {
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

/// The state that the handles of a group share, in Rust and in C++. Only the stream's worker uses
/// `group`; the other locks are held only for a copy, so that counters can be read while the worker
/// waits.
struct Shared {
    rank: usize,
    size: usize,
    interrupter: transport::Interrupter,
    stats: Mutex<transport::GroupStats>,
    failure: Mutex<Option<transport::TransportError>>,
    group: Mutex<Owned>,
}

/// What only the stream's worker uses.
struct Owned {
    group: transport::Group,
    /// The elements of the last sum in f64, whose memory the next one uses again.
    packed: Vec<u8>,
}

/// A handle to a native group: the C++ side holds one, and so does every [`Group`](crate::Group).
#[derive(Clone)]
pub(crate) struct Link(Arc<Shared>);

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Link(rank {} of {})", self.0.rank, self.0.size)
    }
}

impl Link {
    pub(crate) fn new(group: transport::Group) -> Link {
        Link(Arc::new(Shared {
            rank: group.rank(),
            size: group.size(),
            interrupter: group.interrupter(),
            stats: Mutex::new(group.stats()),
            failure: Mutex::new(None),
            group: Mutex::new(Owned { group, packed: Vec::new() }),
        }))
    }

    /// Returns the counters as of the last finished operation.
    pub(crate) fn stats(&self) -> transport::GroupStats {
        *locked(&self.0.stats)
    }

    pub(crate) fn interrupter(&self) -> transport::Interrupter {
        self.0.interrupter.clone()
    }

    /// Returns the first error of the group's operations; `None` if none has failed.
    pub(crate) fn failure(&self) -> Option<transport::TransportError> {
        locked(&self.0.failure).clone()
    }

    pub(crate) fn rank(&self) -> i32 {
        i32::try_from(self.0.rank).expect("a rank is small")
    }

    pub(crate) fn size(&self) -> i32 {
        i32::try_from(self.0.size).expect("a group is small")
    }

    pub(crate) fn all_sum(&self, data: &mut [u8], dtype: u8) -> Result<(), String> {
        self.run(dtype, |Owned { group, packed }, dtype| {
            if dtype != transport::Dtype::F64 {
                return group.all_sum(data, dtype);
            }
            transport::pack(data, packed);
            group.all_sum(packed, transport::Dtype::Packed)?;
            transport::unpack(packed, data);
            Ok(())
        })
    }

    pub(crate) fn all_gather(&self, local: &[u8], out: &mut [u8], dtype: u8) -> Result<(), String> {
        self.run(dtype, |Owned { group, .. }, dtype| group.all_gather(local, out, dtype))
    }

    pub(crate) fn send(&self, data: &[u8], dtype: u8, to: i32) -> Result<(), String> {
        let to = usize::try_from(to).expect("checked when the node was built");
        self.run(dtype, |Owned { group, .. }, dtype| group.send(data, dtype, to))
    }

    pub(crate) fn recv(&self, data: &mut [u8], dtype: u8, from: i32) -> Result<(), String> {
        let from = usize::try_from(from).expect("checked when the node was built");
        self.run(dtype, |Owned { group, .. }, dtype| group.recv(data, dtype, from))
    }

    /// Runs one operation. The first error is kept; the transport itself refuses all later
    /// operations.
    fn run(
        &self,
        dtype: u8,
        operation: impl FnOnce(&mut Owned, transport::Dtype) -> Operated,
    ) -> Result<(), String> {
        let dtype = transport_dtype(Dtype::from_code(dtype)).expect("checked when it was built");
        let mut owned = self.0.group.lock().map_err(|_| "the group panicked before".to_owned())?;
        let result = operation(&mut owned, dtype);
        *locked(&self.0.stats) = owned.group.stats();
        drop(owned);
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
