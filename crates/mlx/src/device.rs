//! The device arrays are computed on.

use crate::error::Error;
use crate::ffi::bridge;

/// Where graph nodes run. One setting per process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Device {
    /// The CPU stream.
    Cpu,
    /// Metal or CUDA.
    Gpu,
}

/// The device of nodes built from now on.
pub fn device() -> Device {
    if bridge::default_device_is_gpu() { Device::Gpu } else { Device::Cpu }
}

/// Chooses the device of nodes built from now on, for the whole process.
///
/// # Errors
/// If this machine or this libmlx has no GPU.
pub fn set_device(device: Device) -> Result<(), Error> {
    bridge::set_default_device_gpu(device == Device::Gpu)
        .map_err(|err| Error::Device { message: err.what().to_owned() })
}

/// Whether this libmlx can use a GPU of this machine.
pub fn gpu_available() -> bool {
    bridge::gpu_available()
}

/// The version of the loaded libmlx.
pub fn version() -> String {
    bridge::version()
}

/// Ends the process at once: no destructor, no exit handler, nothing that a stuck device or a thread
/// inside MLX could hold up.
pub fn exit_now(code: i32) -> ! {
    bridge::exit_now(code);
    unreachable!("_exit does not return")
}
