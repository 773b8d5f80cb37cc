//! RDMA devices of this machine. A killed program can leave them in a state in which the next one
//! fails, so commands that end a server wait until the devices are usable again.

use std::io;
use std::time::{Duration, Instant};

use crate::platform;
use crate::report::RdmaDevice;

/// Maximum time in which devices must be free again.
const FREE_MAX: Duration = Duration::from_secs(30);

/// Interval of polling the devices.
const POLL: Duration = Duration::from_millis(250);

/// Timeout for the list of devices from the system.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the devices that can be used now; none on a machine without RDMA.
pub fn usable() -> Vec<String> {
    names(&platform::rdma_devices(ASK_TIMEOUT).unwrap_or_default())
}

/// Waits until these devices can be used again, and returns those that cannot in time. Returns at
/// once if there are none.
pub fn wait_until_free(wanted: &[String]) -> Vec<String> {
    wait(wanted, FREE_MAX, POLL, || platform::rdma_devices(ASK_TIMEOUT))
}

/// Formats a message for people if devices are not free.
pub fn busy_message(busy: &[String]) -> Option<String> {
    let names = busy.join(", ");
    (!busy.is_empty()).then(|| {
        format!(
            "RDMA devices that are not free after {} s: {names}\n\
             hint: `jackalope doctor` shows details; unplugging the cable for a moment frees them",
            FREE_MAX.as_secs()
        )
    })
}

fn names(devices: &[RdmaDevice]) -> Vec<String> {
    devices.iter().filter(|it| it.is_active()).map(|it| it.name.clone()).collect()
}

fn wait(
    wanted: &[String],
    most: Duration,
    poll: Duration,
    mut ask: impl FnMut() -> io::Result<Vec<RdmaDevice>>,
) -> Vec<String> {
    if wanted.is_empty() {
        return Vec::new();
    }
    let deadline = Instant::now() + most;
    loop {
        // If the system returns no list, the devices count as busy.
        let free = ask().map(|devices| names(&devices)).unwrap_or_default();
        let busy: Vec<String> = wanted.iter().filter(|it| !free.contains(it)).cloned().collect();
        if busy.is_empty() || deadline <= Instant::now() {
            return busy;
        }
        std::thread::sleep(poll);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVINFO: &str = include_str!("../tests/recorded/ibv-devinfo-verbose.txt");

    fn devices(text: &str) -> Vec<RdmaDevice> {
        platform::parse_rdma_devices(text)
    }

    #[test]
    fn a_device_is_waited_for_until_it_is_as_it_was() {
        let wanted = names(&devices(DEVINFO));
        assert_eq!(wanted, ["rdma_en6"]);
        let down = DEVINFO.replace("PORT_ACTIVE (4)", "PORT_INIT (2)");
        let mut answers = vec![
            Ok(devices(DEVINFO)),
            Ok(devices(&down)),
            Err(io::Error::other("stuck")),
            Ok(Vec::new()),
        ];
        let busy = wait(&wanted, FREE_MAX, Duration::ZERO, || answers.pop().unwrap());
        assert!(busy.is_empty() && answers.is_empty(), "{busy:?}");
        assert_eq!(busy_message(&busy), None);
    }

    #[test]
    fn the_wait_is_bounded_and_there_is_none_without_devices() {
        let wanted = ["rdma_en6".to_owned()];
        let busy = wait(&wanted, Duration::ZERO, Duration::ZERO, || Ok(Vec::new()));
        assert_eq!(busy, wanted);
        let said = busy_message(&busy).unwrap();
        assert!(said.contains("rdma_en6") && said.contains("hint:"), "{said}");
        let never = || -> io::Result<Vec<RdmaDevice>> { panic!("nobody is asked") };
        assert!(wait(&[], FREE_MAX, POLL, never).is_empty());
    }
}
