//! What only one operating system can tell. Both modules compile and are tested everywhere: they
//! run commands and read text. One line here picks one of them.

pub mod linux;
pub mod macos;

#[cfg(not(target_os = "macos"))]
pub use linux as current;
#[cfg(target_os = "macos")]
pub use macos as current;

/// A machine's memory, in bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MachineMemory {
    /// Installed.
    pub total_bytes: u64,
    /// What a program can get now without pushing others out.
    pub free_bytes: u64,
}
