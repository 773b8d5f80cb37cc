//! Random ids and seeds, and the current time.

use std::hash::{BuildHasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

/// Returns 64 bits that differ between calls and processes. They need not be secret, so the keys of
/// the standard library's hasher, which come from the system's random source, are sufficient.
pub fn random_u64() -> u64 {
    RandomState::new().hash_one(0_u64)
}

/// Creates an id: `prefix` and 24 hexadecimal digits.
pub fn new_id(prefix: &str) -> String {
    let low = random_u64() as u32;
    format!("{prefix}{:016x}{low:08x}", random_u64())
}

/// Creates a random UUID (RFC 9562, version 4).
pub fn new_uuid() -> String {
    let (high, low) = (random_u64(), random_u64());
    let version = 0x4000 | (high & 0x0fff);
    let variant = 0x8000 | (low >> 48 & 0x3fff);
    let (start, middle, node) = (high >> 32, high >> 16 & 0xffff, low & 0xffff_ffff_ffff);
    format!("{start:08x}-{middle:04x}-{version:04x}-{variant:04x}-{node:012x}")
}

/// Formats bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Seconds since 1970, as in the API's `created`.
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}

/// Seconds since 1970, with fractions.
pub fn unix_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |elapsed| elapsed.as_secs_f64())
}

/// Formats a time as in RFC 3339, in UTC, with microseconds.
pub fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = civil_date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let micros = since.subsec_micros();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// Year, month and day of a day number since 1970 (Hinnant, "chrono-compatible low-level date
/// algorithms", `civil_from_days`).
fn civil_date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn uuids_say_that_they_are_random() {
        for _ in 0..100 {
            let uuid = new_uuid();
            let parts: Vec<&str> = uuid.split('-').collect();
            assert_eq!(parts.iter().map(|it| it.len()).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
            assert!(uuid.chars().all(|c| c == '-' || c.is_ascii_hexdigit()), "{uuid}");
            assert!(
                parts[2].starts_with('4') && parts[3].starts_with(['8', '9', 'a', 'b']),
                "{uuid}"
            );
            assert_ne!(uuid, new_uuid());
        }
    }

    #[test]
    fn times_are_written_as_the_calendar_has_them() {
        for (seconds, written) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399, "2000-02-28T23:59:59.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000000Z"),
            (1_735_689_600, "2025-01-01T00:00:00.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)), written);
        }
        assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_micros(7)), "1970-01-01T00:00:00.000007Z");
    }
}
