//! Number formats that existing clients expect.

/// Rounds to `digits` decimal places. Negative zero, which is the sum of no floats, becomes zero.
pub fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale + 0.0
}

/// Converts bytes to gibibytes with three decimal places.
pub fn gib(bytes: u64) -> f64 {
    rounded(bytes as f64 / f64::from(1_u32 << 30), 3)
}

/// The percentage of `part` in `whole`, with one decimal place; 0 if `whole` is 0.
pub fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { rounded(part as f64 / whole as f64 * 100.0, 1) }
}

/// The `quantile` in `[0, 1]` of sorted values, by nearest rank; 0 if there are none.
pub fn quantile(sorted: &[f64], quantile: f64) -> f64 {
    let last_idx = sorted.len().saturating_sub(1);
    let idx = (last_idx as f64 * quantile).round() as usize;
    sorted.get(idx).copied().unwrap_or(0.0)
}
