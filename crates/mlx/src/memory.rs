//! MLX's memory: what is in use, what is cached, and their limits.

use crate::error::Error;
use crate::ffi::bridge;

/// Returns the number of bytes held by arrays.
pub fn active_bytes() -> usize {
    bridge::active_bytes()
}

/// Returns the maximum number of bytes held by arrays since the start or the last [`reset_peak`].
pub fn peak_bytes() -> usize {
    bridge::peak_bytes()
}

/// Resets the maximum that [`peak_bytes`] returns.
pub fn reset_peak() {
    bridge::reset_peak().expect("resetting a counter cannot fail");
}

/// Returns the number of bytes freed by arrays and kept for new ones.
pub fn cache_bytes() -> usize {
    bridge::cache_bytes()
}

/// Sets how many bytes arrays may hold before allocations wait or fail; returns the previous limit.
///
/// # Errors
/// Fails if the device refuses the limit.
pub fn set_limit(bytes: usize) -> Result<usize, Error> {
    device_result(bridge::set_memory_limit(bytes))
}

/// Sets how many freed bytes are kept; returns the previous limit.
///
/// # Errors
/// Fails if the device refuses the limit.
pub fn set_cache_limit(bytes: usize) -> Result<usize, Error> {
    device_result(bridge::set_cache_limit(bytes))
}

/// Sets how many bytes stay resident on a Mac; returns the previous limit.
///
/// # Errors
/// Fails if the limit exceeds what the system allows.
pub fn set_wired_limit(bytes: usize) -> Result<usize, Error> {
    device_result(bridge::set_wired_limit(bytes))
}

/// Returns the maximum number of bytes that the GPU recommends to use; 0 if it does not report one,
/// and without a GPU.
///
/// # Errors
/// Fails if the device cannot be queried.
pub fn recommended_bytes() -> Result<usize, Error> {
    device_result(bridge::recommended_bytes())
}

/// Returns cached bytes to the system, and the free bytes of the C library's allocator.
///
/// # Errors
/// Fails if the device reports a failure of earlier work.
pub fn clear_cache() -> Result<(), Error> {
    device_result(bridge::clear_cache())
}

fn device_result<T>(result: Result<T, cxx::Exception>) -> Result<T, Error> {
    result.map_err(|err| Error::Device { message: err.what().to_owned() })
}
