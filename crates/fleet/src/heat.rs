//! Temperature, power and GPU load of this machine, and what else an agent reads regularly.
//!
//! The sensors are read by programs that may take seconds, so a thread reads them while the previous
//! values are reported. They are read only as long as someone asks.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jackalope_protocol::machine::{Heat, MachineReadings};

use crate::platform::{EnergyReading, current};

/// Least time between two readings of the sensors.
const INTERVAL: Duration = Duration::from_secs(5);

/// Age from which a reading is no longer reported: of a reading before a pause, or with sensors that
/// do not answer.
const AGE_MAX: Duration = Duration::from_secs(30);

/// The latest reading of the sensors.
#[derive(Debug)]
struct Latest {
    heat: Option<(Instant, Heat)>,
    /// The energy at this reading, if the system reports it.
    energy: Option<EnergyReading>,
    /// Whether a thread reads now.
    is_reading: bool,
}

static LATEST: Mutex<Latest> = Mutex::new(Latest { heat: None, energy: None, is_reading: false });

fn latest() -> MutexGuard<'static, Latest> {
    // All fields are valid after any panic.
    LATEST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns this machine's memory now, and its temperature, power and GPU load a few seconds ago; the
/// first call returns none of these.
pub fn readings_here() -> MachineReadings {
    MachineReadings { memory: current::pressure(), heat: heat_here() }
}

fn heat_here() -> Heat {
    let mut latest = latest();
    let age = latest.heat.as_ref().map(|(at, _)| at.elapsed());
    if !latest.is_reading && age.is_none_or(|age| INTERVAL <= age) {
        read_aside(&mut latest);
    }
    let recent = latest.heat.as_ref().filter(|(at, _)| at.elapsed() < AGE_MAX);
    recent.map(|(_, heat)| *heat).unwrap_or_default()
}

/// Reads the sensors in a thread.
fn read_aside(latest: &mut Latest) {
    let mut energy = latest.energy;
    let reading = move || {
        let heat = current::heat(&mut energy);
        *self::latest() = Latest { heat: Some((Instant::now(), heat)), energy, is_reading: false };
    };
    // Without a thread, the next call tries again.
    let thread = std::thread::Builder::new().name("heat".to_owned());
    latest.is_reading = thread.spawn(reading).is_ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sensors_are_read_aside_and_once_for_all_who_ask() {
        let first = readings_here();
        assert!(first.memory.is_some(), "{first:?}");
        let deadline = Instant::now() + Duration::from_secs(20);
        while latest().heat.is_none() {
            assert!(Instant::now() < deadline, "the sensors were not read");
            std::thread::sleep(Duration::from_millis(5));
        }
        let read_at = || latest().heat.as_ref().map(|(at, _)| *at);
        let before = read_at();
        for _ in 0..3 {
            heat_here();
            assert!(!latest().is_reading, "a recent reading is not repeated");
        }
        assert_eq!(read_at(), before);
    }
}
