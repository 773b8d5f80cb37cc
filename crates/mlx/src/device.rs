//! The device on which arrays are computed.

use crate::error::Error;
use crate::ffi::bridge;

/// The device on which graph nodes run. One setting per process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Device {
    /// The CPU stream.
    Cpu,
    /// Metal or CUDA.
    Gpu,
}

/// Returns the device of nodes built from now on.
pub fn device() -> Device {
    if bridge::default_device_is_gpu() { Device::Gpu } else { Device::Cpu }
}

/// Sets the device of nodes built from now on, for the whole process.
///
/// # Errors
/// Fails if this machine or this libmlx has no GPU.
pub fn set_device(device: Device) -> Result<(), Error> {
    bridge::set_default_device_gpu(device == Device::Gpu)
        .map_err(|err| Error::Device { message: err.what().to_owned() })
}

/// Whether this libmlx can use a GPU of this machine.
pub fn gpu_available() -> bool {
    bridge::gpu_available()
}

/// Returns the version of the loaded libmlx.
pub fn version() -> String {
    bridge::version()
}

/// Ends the process at once, without destructors and exit handlers, so that a stuck device or a
/// thread inside MLX cannot delay the exit.
pub fn exit_now(code: i32) -> ! {
    bridge::exit_now(code);
    unreachable!("_exit does not return")
}

/// The kind of a GPU.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GpuKind {
    /// A GPU of a Mac.
    Metal,
    /// A GPU of Nvidia.
    Cuda,
}

/// Returns the kind of GPU that MLX computes on by default; `None` for a CPU.
pub fn gpu_kind() -> Option<GpuKind> {
    match device() {
        Device::Cpu => None,
        Device::Gpu if bridge::metal_available() => Some(GpuKind::Metal),
        Device::Gpu => Some(GpuKind::Cuda),
    }
}
