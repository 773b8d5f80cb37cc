//! What a check has found.

/// Result of a check.
pub(super) enum Outcome {
    Passed(String),
    /// A table of measurements.
    Measured {
        summary: String,
        table: String,
    },
    Failed(String),
    /// It was not begun, for this reason.
    NotRun(&'static str),
}

impl Outcome {
    pub(super) fn failed(err: &anyhow::Error) -> Outcome {
        Outcome::Failed(format!("{err:#}").replace('\n', " "))
    }

    pub(super) fn word(&self) -> &'static str {
        match self {
            Outcome::Passed(_) => "passed",
            Outcome::Measured { .. } => "measured",
            Outcome::Failed(_) => "**failed**",
            Outcome::NotRun(_) => "not run",
        }
    }

    pub(super) fn found(&self) -> &str {
        match self {
            Outcome::Passed(text) | Outcome::Failed(text) => text,
            Outcome::Measured { summary, .. } => summary,
            Outcome::NotRun(reason) => reason,
        }
    }
}
