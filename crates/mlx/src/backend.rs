//! The transports that MLX has itself.

use std::fmt;

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
    /// Returns the name that MLX gives the transport.
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
