//! Questions to the constraints of requests, and their answers. The scheduler produces the
//! questions and acts on the answers; it does not know which thread computes them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use jackalope_protocol::TokenId;

use crate::RequestId;
use crate::constraint::{
    AllowedTokens, ConstraintError, ConstraintFault, TokenConstraint, TokenMask,
};
use crate::cost_history::CostHistory;

/// A constraint to be asked for the tokens that may come next.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) id: RequestId,
    pub(crate) constraint: Box<dyn TokenConstraint>,
    /// Tokens that the constraint has to accept first.
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) vocab_size: u32,
    /// CPU time of the constraint's earlier answers.
    pub(crate) costs: CostHistory,
}

/// A constraint and its answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) id: RequestId,
    pub(crate) constraint: Box<dyn TokenConstraint>,
    pub(crate) allowed: Result<AllowedTokens, ConstraintError>,
    pub(crate) mask: TokenMask,
    pub(crate) costs: CostHistory,
}

impl Question {
    /// Asks the constraint, on this thread. One that panics ends its request, and nothing else.
    pub(crate) fn ask(mut self) -> Answer {
        let mut mask = TokenMask::all(self.vocab_size);
        let (tokens, constraint) = (&self.tokens, &mut self.constraint);
        let asked = catch_unwind(AssertUnwindSafe(|| {
            tokens.iter().try_for_each(|token| constraint.accept(*token))?;
            constraint.allowed(&mut mask)
        }));
        // The request ends with this error, so the constraint that panicked is not asked again.
        let allowed = asked.unwrap_or_else(|_| {
            let message = "the checker of the requested structure failed; this is a bug".to_owned();
            Err(ConstraintError { message, fault: ConstraintFault::Internal })
        });
        let Question { id, constraint, costs, .. } = self;
        Answer { id, constraint, allowed, mask, costs }
    }
}
