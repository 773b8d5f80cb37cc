//! Versions of systems.

use serde::Serialize;

/// A dotted version.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Version {
    /// First number.
    pub major: u32,
    /// Second number.
    pub minor: u32,
    /// Third number.
    pub patch: u32,
}

impl Version {
    /// Parses one to three dotted numbers; missing ones are 0, further ones are ignored.
    pub fn parse(text: &str) -> Option<Version> {
        let mut numbers = text.trim().split('.').map(|part| part.parse().ok());
        let major = numbers.next()??;
        let minor = numbers.next().unwrap_or(Some(0))?;
        let patch = numbers.next().unwrap_or(Some(0))?;
        Some(Version { major, minor, patch })
    }

    /// Returns true if the version is `major.minor` or later.
    pub fn is_at_least(self, major: u32, minor: u32) -> bool {
        (self.major, self.minor) >= (major, minor)
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)?;
        if self.patch != 0 { write!(f, ".{}", self.patch) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        let version = |text| Version::parse(text).unwrap();
        assert!(version("26.10") > version("26.2.1"));
        assert!(version("26.2").is_at_least(26, 2));
        assert!(!version("15.7.3").is_at_least(26, 2));
        assert_eq!(version("26.3").to_string(), "26.3");
        assert_eq!(Version::parse("x"), None);
    }
}
