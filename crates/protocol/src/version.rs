//! The version with which both ends of a connection begin, in clear.

use std::fmt;

/// Version of the protocol; increased with every change of a message.
pub const PROTOCOL_VERSION: u16 = 16;

/// First bytes of every connection.
pub(crate) const MAGIC: [u8; 4] = *b"JKLP";

/// Maximum length of the version of a program.
pub(crate) const VERSION_BYTES_MAX: usize = 64;

/// Version of a program that speaks the protocol.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Build {
    /// Version of the protocol.
    pub protocol: u16,
    /// Version of the program.
    pub version: String,
}

impl Build {
    /// Returns the version of this program.
    pub fn ours() -> Build {
        Build { protocol: PROTOCOL_VERSION, version: env!("CARGO_PKG_VERSION").to_owned() }
    }

    pub(crate) fn preamble(&self) -> Vec<u8> {
        let version = self.version.as_bytes();
        let version = &version[..version.len().min(VERSION_BYTES_MAX)];
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.protocol.to_le_bytes());
        bytes.push(version.len() as u8);
        bytes.extend(version);
        bytes
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (protocol {})", self.version, self.protocol)
    }
}
