//! Temperature and GPU load on macOS. Only root may read a Mac's power (`powermetrics`).

use std::time::Duration;

use jackalope_protocol::machine::Heat;

use crate::platform::energy::EnergyReading;
use crate::platform::percent::percent;
use crate::process::output_of;

const TIMEOUT: Duration = Duration::from_secs(3);

const GPU_ARGS: [&str; 5] = ["-r", "-c", "IOAccelerator", "-d", "1"];

/// Reads this machine's thermal state and the load of its GPU. The system reports no energy.
pub fn heat(_: &mut Option<EnergyReading>) -> Heat {
    let therm = output_of("pmset", &["-g", "therm"], TIMEOUT).unwrap_or_default();
    let gpus = output_of("ioreg", &GPU_ARGS, TIMEOUT).unwrap_or_default();
    Heat { thermal: super::thermal(&therm), gpu_percent: gpu_percent(&gpus), ..Heat::default() }
}

/// Returns the load of the busiest GPU from the entries that `ioreg` prints. Each has a line
/// `"PerformanceStatistics" = {"NAME"=NUMBER,...}`.
fn gpu_percent(ioreg: &str) -> Option<u8> {
    let statistics = |line: &'_ str| -> Option<u8> {
        let line = line.trim_start_matches([' ', '|']);
        let numbers =
            line.strip_prefix("\"PerformanceStatistics\" = {")?.trim_end().strip_suffix('}')?;
        let load =
            numbers.split(',').find_map(|it| it.strip_prefix("\"Device Utilization %\"="))?;
        percent(load)
    };
    ioreg.lines().filter_map(statistics).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part of what `ioreg` prints on a Mac with one GPU.
    const GPU: &str = r#"+-o AGXAcceleratorG16X  <class AGXAcceleratorG16X, id 0x1000004f2, registered, matched, active, busy 0 (5 ms), retain 107>
    {
      "IOClass" = "AGXAcceleratorG16X"
      "model" = "Apple M4 Max"
      "PerformanceStatistics" = {"In use system memory (driver)"=0,"Alloc system memory"=4308320256,"Tiler Utilization %"=7,"recoveryCount"=0,"Renderer Utilization %"=11,"Device Utilization %"=12,"SplitSceneCount"=0,"In use system memory"=725893120}
      "gpu-core-count" = 40
    }

"#;

    #[test]
    fn the_load_of_the_busiest_gpu_is_read() {
        assert_eq!(gpu_percent(GPU), Some(12));
        let busy = GPU.replace("Utilization %\"=12", "Utilization %\"=100");
        assert_eq!(gpu_percent(&format!("{busy}{GPU}")), Some(100));
        assert_eq!(gpu_percent(&GPU.replace("      \"P", "    |   \"P")), Some(12));
        assert_eq!(gpu_percent(&GPU.replace('\n', "\r\n")), Some(12));
    }

    #[test]
    fn a_load_that_is_missing_or_makes_no_sense_is_left_out() {
        let with = |load: &str| GPU.replace("\"Device Utilization %\"=12", load);
        for load in ["\"other\"=1", "\"Device Utilization %\"=", "\"Device Utilization %\"=101"] {
            assert_eq!(gpu_percent(&with(load)), None, "{load}");
        }
        for number in ["-1", "1e1", "nan", "(12)", "99999999999999999999"] {
            let load = format!("\"Device Utilization %\"={number}");
            assert_eq!(gpu_percent(&with(&load)), None, "{number}");
            let both = format!("{}{GPU}", with(&load));
            assert_eq!(gpu_percent(&both), Some(12), "the other GPU reports its load: {number}");
        }
        let cut = &GPU[..GPU.find("12,").unwrap()];
        for text in ["", cut, "ioreg: error", "\"Device Utilization %\"=50\n"] {
            assert_eq!(gpu_percent(text), None, "{text}");
        }
    }
}
