//! Refusals between a coordinator and an agent that have reached each other.

use jackalope_protocol::FrameError;

/// Reason why a reachable machine cannot be used; retrying does not help.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AgentRefusal {
    /// The agent does not accept orders from this machine.
    Untrusted,
    /// No key is known for the machine.
    UnknownKey,
    /// The agent proved another key than the pinned one.
    ChangedKey,
    /// The agent has another version.
    OtherVersion,
}

impl AgentRefusal {
    /// Returns true if this machine does not trust the other one.
    pub(super) fn is_distrust(self) -> bool {
        matches!(self, AgentRefusal::UnknownKey | AgentRefusal::ChangedKey)
    }

    /// Returns the refusal that a handshake's error stands for; `None` for other errors.
    pub(super) fn of(err: &FrameError) -> Option<AgentRefusal> {
        match err {
            FrameError::Untrusted { .. } => Some(AgentRefusal::Untrusted),
            FrameError::UnknownKey { .. } => Some(AgentRefusal::UnknownKey),
            FrameError::ChangedKey { .. } => Some(AgentRefusal::ChangedKey),
            FrameError::Version { .. } => Some(AgentRefusal::OtherVersion),
            _ => None,
        }
    }
}
