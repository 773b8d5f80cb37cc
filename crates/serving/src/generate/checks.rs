//! Checks of counts and ranges.

use std::fmt::Display;

use crate::error::ApiError;

/// Rejects a list with more than `limit` elements.
pub fn check_count(param: &'static str, found: usize, limit: usize) -> Result<(), ApiError> {
    if found <= limit { Ok(()) } else { Err(ApiError::TooMany { param, found, limit }) }
}

/// Rejects a number outside `low..=high`.
pub fn check_range<T: Copy + PartialOrd + Display>(
    param: &'static str,
    found: T,
    low: T,
    high: T,
) -> Result<(), ApiError> {
    if low <= found && found <= high {
        return Ok(());
    }
    Err(ApiError::out_of_range(param, &found, format!("from {low} to {high}")))
}
