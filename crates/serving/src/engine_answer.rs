//! Requests to an engine's thread, with a deadline for each answer.

use std::time::Duration;

use crate::error::ApiError;

/// Time after which an engine's thread that has not answered is considered hung.
pub const ENGINE_ANSWERS: Duration = Duration::from_secs(2);

/// Waits for the answer of an engine's thread.
///
/// # Errors
/// [`ApiError::EngineSilent`] if it does not come within [`ENGINE_ANSWERS`].
pub async fn answered<T>(answer: impl Future<Output = T>) -> Result<T, ApiError> {
    let answer = tokio::time::timeout(ENGINE_ANSWERS, answer).await;
    answer.map_err(|_| ApiError::EngineSilent { timeout: ENGINE_ANSWERS })
}
