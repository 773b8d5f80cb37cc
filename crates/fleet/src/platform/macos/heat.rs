//! Temperature on macOS. Only root may read a Mac's power (`powermetrics`).

use std::time::Duration;

use jackalope_protocol::machine::Heat;

use crate::platform::energy::EnergyReading;
use crate::process::output_of;

const TIMEOUT: Duration = Duration::from_secs(3);

/// Reads this machine's thermal state. The system reports no energy.
pub fn heat(_: &mut Option<EnergyReading>) -> Heat {
    let text = output_of("pmset", &["-g", "therm"], TIMEOUT).unwrap_or_default();
    Heat { thermal: super::thermal(&text), ..Heat::default() }
}
