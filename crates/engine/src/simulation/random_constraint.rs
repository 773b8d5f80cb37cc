//! A random constraint for each request.

use jackalope_protocol::TokenId;

use super::{Rng, VOCAB_SIZE};
use crate::constraint::{
    AllowedTokens, ConstraintError, ConstraintFault, TokenConstraint, TokenMask,
};

/// Depending on the tokens so far: allows everything, allows some tokens or one, ends the output,
/// or fails.
#[derive(Clone, Debug)]
pub(super) struct RandomConstraint {
    state: u64,
    num_tokens: usize,
    /// Inverse probability that a token is constrained.
    bound_odds: u64,
    /// Inverse probability that a token ends the output.
    end_odds: u64,
    /// Inverse probability that the constraint fails on a token.
    fail_odds: u64,
}

impl RandomConstraint {
    pub(super) fn new(rng: &mut Rng) -> RandomConstraint {
        RandomConstraint {
            state: rng.below(1000) as u64,
            num_tokens: 0,
            bound_odds: [1, 2, 4][rng.below(3)],
            end_odds: [6, 1000][rng.below(2)],
            fail_odds: [12, 1000][rng.below(2)],
        }
    }

    fn one_in(&self, odds: u64, salt: u64) -> bool {
        let hash = (self.state ^ salt).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        (hash >> 32).is_multiple_of(odds)
    }
}

fn too_much() -> ConstraintError {
    ConstraintError { message: "it is too much".to_owned(), fault: ConstraintFault::Internal }
}

impl TokenConstraint for RandomConstraint {
    fn allowed(&mut self, mask: &mut TokenMask) -> Result<AllowedTokens, ConstraintError> {
        if 0 < self.num_tokens && self.one_in(self.fail_odds, 1) {
            return Err(too_much());
        }
        if 0 < self.num_tokens && self.one_in(self.end_odds, 2) {
            *mask = TokenMask::only(&[], VOCAB_SIZE);
            return Ok(AllowedTokens::Masked);
        }
        if !self.one_in(self.bound_odds, 3) {
            let is_thought = self.one_in(2, 5);
            return Ok(if is_thought { AllowedTokens::NotEnd } else { AllowedTokens::All });
        }
        (0..VOCAB_SIZE)
            .filter(|it| *it != 7 && self.one_in(2, 9 + u64::from(*it)))
            .for_each(|it| mask.ban(it));
        Ok(AllowedTokens::Masked)
    }

    fn accept(&mut self, token: TokenId) -> Result<(), ConstraintError> {
        self.num_tokens += 1;
        self.state = (self.state ^ u64::from(token)).wrapping_mul(0x0100_0000_01B3).rotate_left(17);
        if self.one_in(self.fail_odds, 4) { Err(too_much()) } else { Ok(()) }
    }

    fn clone_boxed(&self) -> Box<dyn TokenConstraint> {
        Box::new(self.clone())
    }
}
