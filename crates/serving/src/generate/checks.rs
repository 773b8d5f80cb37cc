//! Checks of counts and ranges.

use crate::error::ApiError;

/// Rejects a list with more than `limit` elements.
pub fn check_count(param: &'static str, found: usize, limit: usize) -> Result<(), ApiError> {
    match found <= limit {
        true => Ok(()),
        false => Err(ApiError::TooMany { param, found, limit }),
    }
}

/// Rejects a number outside `low..=high`.
pub fn check_range(param: &'static str, found: u32, low: u32, high: u32) -> Result<(), ApiError> {
    match (low..=high).contains(&found) {
        true => Ok(()),
        false => Err(ApiError::out_of_range(param, &found, format!("from {low} to {high}"))),
    }
}
