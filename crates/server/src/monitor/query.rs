//! Query parameters of the monitoring endpoints.

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use jackalope_serving::error::ApiError;

/// Unwraps the query parameters, or returns an error that says why they cannot be read.
pub(super) fn query<T>(found: Result<Query<T>, QueryRejection>) -> Result<T, ApiError> {
    found
        .map(|Query(query)| query)
        .map_err(|err| ApiError::WrongType { param: "query".to_owned(), reason: err.body_text() })
}
