//! The parts that depend on the operating system. Both modules compile and are tested everywhere:
//! they run commands and parse text. `current` is the one of this system; facts from another
//! machine are parsed by the module of the system that it names.

mod chips;
mod energy;
pub mod linux;
pub mod macos;
mod percent;
mod routing;
mod version;

#[cfg(not(target_os = "macos"))]
pub use linux as current;
#[cfg(target_os = "macos")]
pub use macos as current;

pub use chips::memory_bytes_per_s;
pub use energy::EnergyReading;
pub use routing::{Network, Route};
pub use version::Version;

use jackalope_protocol::machine::NodeFacts;

use crate::facts::Sections;

/// Parses the first number of a load average, and returns it in percent of the cores.
fn load_percent(text: &str, cores: u32) -> Option<u32> {
    let load: f64 = text.split_whitespace().next()?.replace(',', ".").parse().ok()?;
    (0 < cores).then(|| (load * 100.0 / f64::from(cores)).round() as u32)
}

/// Parses a machine's facts, whatever its system.
pub fn facts_of(sections: &Sections) -> NodeFacts {
    let facts = if sections.text("uname").starts_with("Darwin") {
        macos::facts_of(sections)
    } else {
        linux::facts_of(sections)
    };
    let hostname = sections.text("hostname").trim();
    NodeFacts { hostname: hostname.to_owned(), ..facts }
}
