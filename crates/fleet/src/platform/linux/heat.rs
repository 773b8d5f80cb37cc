//! Temperature, power and GPU load on Linux: files under `/sys`, and `nvidia-smi`.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jackalope_protocol::machine::Heat;

use crate::platform::energy::EnergyReading;
use crate::platform::percent::percent;
use crate::process::output_of;

const NVIDIA_ARGS: [&str; 2] =
    ["--query-gpu=temperature.gpu,power.draw,utilization.gpu", "--format=csv,noheader,nounits"];
const NVIDIA_TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum plausible power of the processors or the GPUs of a machine, in watts.
const WATTS_MAX: f64 = 20_000.0;

/// Maximum age of the previous reading of the energy; its counters begin again at zero every few
/// minutes to hours.
const ENERGY_AGE_MAX: Duration = Duration::from_secs(60);

/// Maximum number of bytes that are read of a file; files of sensors have one number or name.
const FILE_BYTES_MAX: u64 = 256;

/// Maximum number of entries of a folder that are read.
const ENTRIES_MAX: usize = 256;

/// Reads this machine's temperature, power and GPU load; takes as long as `nvidia-smi`, where there is
/// one.
pub fn heat(before: &mut Option<EnergyReading>) -> Heat {
    let gpus = output_of("nvidia-smi", &NVIDIA_ARGS, NVIDIA_TIMEOUT).unwrap_or_default();
    read_from(Path::new("/sys"), &gpus, before, Instant::now())
}

/// A GPU, as `nvidia-smi` reports it: numbers, or words such as `[N/A]`.
struct GpuLine<'a> {
    celsius: &'a str,
    watts: &'a str,
    percent: &'a str,
}

impl GpuLine<'_> {
    /// Parses a line `CELSIUS, WATTS, PERCENT`.
    fn parse(line: &str) -> Option<GpuLine<'_>> {
        let mut fields = line.split(',').map(str::trim);
        let mut next = || fields.next();
        Some(GpuLine { celsius: next()?, watts: next()?, percent: next()? })
    }
}

/// Reads the files below `sys`. `gpus` has a line for each GPU.
fn read_from(sys: &Path, gpus: &str, before: &mut Option<EnergyReading>, now: Instant) -> Heat {
    let gpus: Vec<GpuLine<'_>> = gpus.lines().filter_map(GpuLine::parse).collect();
    // The power of some of the GPUs would look like the power of all.
    let gpu_watts = gpus.iter().map(|it| it.watts.parse::<f64>().ok()).sum();
    let gpu_percent = gpus.iter().filter_map(|it| percent(it.percent)).max();
    let zones = entries(&sys.join("class/thermal"), "thermal_zone").map(|it| it.join("temp"));
    // AMD's processors have no thermal zone.
    let amd = entries(&sys.join("class/hwmon"), "hwmon").filter(|it| name(it) == "k10temp");
    let files = zones.chain(amd.map(|it| it.join("temp1_input")));
    let mut milli_celsius: Vec<String> = files.filter_map(|it| content(&it)).collect();
    milli_celsius.extend(gpus.iter().map(|it| format!("{}000", it.celsius)));
    let thermal = super::hottest(&milli_celsius.join("\n"));
    let cpu_watts = cpu_watts(sys, before, now);
    Heat { thermal, cpu_watts, gpu_watts: plausible(gpu_watts), gpu_percent }
}

/// Returns the mean power of the processor packages since the previous reading. Only root may
/// read their energy (`Documentation/power/powercap/powercap.rst` of the kernel describes it).
fn cpu_watts(sys: &Path, before: &mut Option<EnergyReading>, now: Instant) -> Option<u16> {
    let zones = entries(&sys.join("class/powercap"), "intel-rapl:");
    let mut packages = zones.filter(|it| name(it).starts_with("package-")).peekable();
    packages.peek()?;
    let microjoules = packages.try_fold(0_u64, |sum, it| {
        sum.checked_add(content(&it.join("energy_uj"))?.trim().parse().ok()?)
    });
    let reading = microjoules.map(|microjoules| EnergyReading { at: now, microjoules });
    let before = std::mem::replace(before, reading)?;
    let joules = reading?.microjoules.checked_sub(before.microjoules)? as f64 / 1e6;
    let time = now.duration_since(before.at);
    plausible((time <= ENERGY_AGE_MAX).then(|| joules / time.as_secs_f64()))
}

/// Returns a power in whole watts, unless no running machine has it.
fn plausible(watts: Option<f64>) -> Option<u16> {
    let watts = watts.filter(|it| (0.5..=WATTS_MAX).contains(it))?;
    Some(watts.round() as u16)
}

/// Returns the entries of a folder whose names begin with `prefix`.
fn entries(dir: &Path, prefix: &'static str) -> impl Iterator<Item = PathBuf> + use<> {
    let all = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let matching = all.filter(move |it| it.file_name().to_string_lossy().starts_with(prefix));
    matching.map(|it| it.path()).take(ENTRIES_MAX)
}

/// Returns the beginning of a file, if it can be read and is text.
fn content(file: &Path) -> Option<String> {
    let mut text = String::new();
    let file = std::fs::File::open(file).ok()?;
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Returns the content of an entry's file `name`.
fn name(entry: &Path) -> String {
    content(&entry.join("name")).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use jackalope_protocol::machine::Thermal;

    use super::*;

    /// A folder like `/sys`, removed at the end.
    struct Sys(PathBuf);

    impl Sys {
        fn new(test: &str) -> Sys {
            let name = format!("jackalope-heat-{test}-{}", std::process::id());
            let sys = Sys(std::env::temp_dir().join(name));
            std::fs::remove_dir_all(&sys.0).ok();
            sys
        }

        fn write(&self, file: &str, text: impl AsRef<[u8]>) {
            let path = self.0.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }

        fn energy(&self, zone: &str, name: &str, energy: &str) {
            self.write(&format!("class/powercap/{zone}/name"), name);
            self.write(&format!("class/powercap/{zone}/energy_uj"), energy);
        }
    }

    impl Drop for Sys {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).ok();
        }
    }

    #[test]
    fn the_hottest_sensor_and_the_power_since_the_previous_reading_are_reported() {
        let sys = Sys::new("hottest");
        let (begin, mut before) = (Instant::now(), None);
        let mut read = |gpus: &str, seconds| {
            read_from(&sys.0, gpus, &mut before, begin + Duration::from_secs(seconds))
        };
        assert_eq!(read("", 0), Heat::default(), "nothing is invented");
        sys.write("class/thermal/thermal_zone0/temp", "41000\n");
        sys.write("class/thermal/cooling_device0/temp", "99000\n");
        sys.write("class/hwmon/hwmon0/name", "nct6775\n");
        sys.write("class/hwmon/hwmon0/temp1_input", "127000\n");
        sys.write("class/hwmon/hwmon1/name", "k10temp\n");
        sys.write("class/hwmon/hwmon1/temp1_input", "63875\n");
        sys.energy("intel-rapl:0", "package-0", "5000000");
        sys.energy("intel-rapl:0:0", "core", "9000000");
        sys.energy("intel-rapl:1", "package-1", "7000000");
        sys.energy("intel-rapl:2", "psys", "90000000");
        let celsius = |it| Some(Thermal::Celsius(it));
        let hot = Heat { thermal: celsius(71), ..Heat::default() };
        let first = read("71, 302.61, 35\n68, 287.90, 98\n", 1);
        assert_eq!(first, Heat { gpu_watts: Some(591), gpu_percent: Some(98), ..hot });
        sys.energy("intel-rapl:1", "package-1", "607000000");
        let later = read("71, 302.61, 0\n68, [N/A], [N/A]\n", 6);
        assert_eq!(later, Heat { cpu_watts: Some(120), gpu_percent: Some(0), ..hot });
        sys.energy("intel-rapl:1", "package-1", "8000000");
        let wrapped = read("", 11);
        assert_eq!(wrapped, Heat { thermal: celsius(63), ..Heat::default() });
        sys.energy("intel-rapl:1", "package-1", "9000000");
        assert_eq!(read("", 400).cpu_watts, None, "the counters may have begun again");
        sys.energy("intel-rapl:1", "package-1", "609000000");
        assert_eq!(read("", 405).cpu_watts, Some(120));
    }

    #[test]
    fn sensors_that_are_broken_are_left_out() {
        let sys = Sys::new("broken");
        let (begin, mut before) = (Instant::now(), None);
        let mut read = |gpus: &str, seconds| {
            read_from(&sys.0, gpus, &mut before, begin + Duration::from_secs(seconds))
        };
        sys.write("class/thermal/thermal_zone0/temp", b"\xff\xfe");
        sys.write("class/thermal/thermal_zone1/temp", "");
        sys.write("class/thermal/thermal_zone2/temp/temp", "a folder");
        sys.write("class/thermal/thermal_zone3/temp", "0\n");
        sys.write("class/thermal/thermal_zone4/temp", "1".repeat(10_000));
        sys.write("class/thermal/thermal_zone5/type", "a zone that reports nothing");
        sys.write("class/powercap/intel-rapl:0/name", "package-0");
        for gpus in [
            "nan, nan, nan\n",
            "inf, inf, inf\n",
            "0, 0.00, \n",
            "-40, -3, -1\n",
            "1, 1e300, 101\n",
            "1, [N/A], [N/A]\n",
            "1, [Unknown Error], 99999999999999999999\n",
            "71, 302.61\n",
            "NVIDIA-SMI has failed because it couldn't communicate with the driver.\n",
            ", , \n",
        ] {
            let thermal = gpus.starts_with("1,").then_some(Thermal::Celsius(1));
            assert_eq!(read(gpus, 0), Heat { thermal, ..Heat::default() }, "{gpus}");
        }
        for (seconds, energy) in [(1, "7"), (2, "-1"), (3, "7"), (4, "7"), (4, "900000000")] {
            sys.energy("intel-rapl:0", "package-0", energy);
            assert_eq!(read("", seconds), Heat::default(), "{energy}");
        }
        sys.energy("intel-rapl:0", "package-0", &u64::MAX.to_string());
        sys.energy("intel-rapl:1", "package-1", "7");
        assert_eq!(read("", 5), Heat::default(), "the sum is too large");
    }
}
