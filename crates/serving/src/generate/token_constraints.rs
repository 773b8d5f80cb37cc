//! Token constraints of one choice: a grammar, reasoning before it, forbidden words.

use jackalope_engine::{
    AllowedTokens, ConstraintError, ConstraintFault, TokenConstraint, TokenMask,
};
use jackalope_protocol::TokenId;
use jackalope_text::grammar::{GrammarError, Matcher};

/// Constrains a choice to a grammar from its first token to its last.
#[derive(Clone, Debug)]
pub(super) struct GrammarConstraint {
    matcher: Matcher,
}

impl GrammarConstraint {
    pub(super) fn new(matcher: Matcher) -> GrammarConstraint {
        GrammarConstraint { matcher }
    }
}

fn refused(err: &GrammarError) -> ConstraintError {
    let fault = match err {
        GrammarError::TooSlow { .. } => ConstraintFault::TooSlow,
        _ => ConstraintFault::Internal,
    };
    ConstraintError { message: err.to_string(), fault }
}

impl TokenConstraint for GrammarConstraint {
    fn allowed(&mut self, mask: &mut TokenMask) -> Result<AllowedTokens, ConstraintError> {
        self.matcher.fill(mask.words_mut()).map_err(|err| refused(&err))?;
        Ok(AllowedTokens::Masked)
    }

    fn accept(&mut self, token: TokenId) -> Result<(), ConstraintError> {
        self.matcher.accept(token).map_err(|err| refused(&err))
    }

    fn clone_boxed(&self) -> Box<dyn TokenConstraint> {
        Box::new(self.clone())
    }
}

/// A model's reasoning markers, and the reasoning budget.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Reasoning {
    /// Tokens that open the reasoning. Empty if the model only ever closes reasoning that the
    /// prompt has opened.
    pub(super) open: Vec<TokenId>,
    /// Tokens that close the reasoning; never empty.
    pub(super) close: Vec<TokenId>,
    /// Tokens forced between the reasoning and the answer, if the answer is constrained or the
    /// reasoning was cut off by the budget.
    pub(super) resume: Vec<TokenId>,
    /// Whether the prompt has already opened the reasoning.
    pub(super) is_open: bool,
    /// Maximum number of reasoning tokens; unbounded if absent.
    pub(super) budget_tokens: Option<u32>,
}

/// Lets a model reason first: while the reasoning is open, every token is allowed except those that
/// end the choice; after that, the inner constraint applies. Reasoning beyond its budget is closed by
/// forcing the closing tokens.
#[derive(Debug)]
pub(super) struct AfterReasoning {
    reasoning: Reasoning,
    state: Thought,
    /// The most recent tokens, as many as the longer marker has.
    tail: Vec<TokenId>,
    inner: Option<Box<dyn TokenConstraint>>,
}

/// ```text
///  Unopened ──open marker──▶ Open ──close marker──▶ Resuming ──▶ Closed
///     │                       └─budget─▶ Closing ────▲             ▲
///     └── an answer without reasoning ─────────────────────────────┘
/// ```
/// Without an inner constraint, reasoning that ends by itself goes from `Open` to `Closed`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Thought {
    /// Number of tokens of the opening marker sampled so far.
    Unopened(usize),
    /// Number of reasoning tokens sampled so far.
    Open(u32),
    /// Number of tokens of the closing marker sampled so far; the others are forced.
    Closing(usize),
    /// Number of tokens of [`Reasoning::resume`] sampled so far; the others are forced.
    Resuming(usize),
    Closed,
}

impl AfterReasoning {
    pub(super) fn new(
        reasoning: Reasoning,
        inner: Option<Box<dyn TokenConstraint>>,
    ) -> AfterReasoning {
        assert!(!reasoning.close.is_empty(), "a thought that cannot be closed has no end");
        let state = match (reasoning.is_open, reasoning.open.is_empty()) {
            (true, _) => Thought::Open(0),
            (false, false) => Thought::Unopened(0),
            (false, true) => Thought::Closed,
        };
        let mut constraint = AfterReasoning { reasoning, state, tail: Vec::new(), inner };
        constraint.keep_to_budget();
        constraint
    }

    /// Closes reasoning that has reached its budget, continuing a closing marker that has already
    /// begun.
    fn keep_to_budget(&mut self) {
        if let (Thought::Open(num_tokens), Some(budget)) =
            (self.state, self.reasoning.budget_tokens)
            && budget <= num_tokens
        {
            let close = &self.reasoning.close;
            let begun = (0..close.len()).rev().find(|len| self.tail.ends_with(&close[..*len]));
            self.state = Thought::Closing(begun.unwrap_or(0));
        }
    }

    /// Continues towards the answer; `num_sampled` tokens of [`Reasoning::resume`] have been sampled.
    fn resume(&mut self, num_sampled: usize) {
        self.state = if num_sampled < self.reasoning.resume.len() {
            Thought::Resuming(num_sampled)
        } else {
            Thought::Closed
        };
    }

    fn remember(&mut self, token: TokenId) {
        let most = self.reasoning.open.len().max(self.reasoning.close.len());
        self.tail.push(token);
        if most < self.tail.len() {
            self.tail.remove(0);
        }
    }

    /// Takes a token before any reasoning: part of the opening marker, or of the answer itself.
    fn accept_unopened(
        &mut self,
        token: TokenId,
        num_sampled: usize,
    ) -> Result<(), ConstraintError> {
        let open = &self.reasoning.open;
        let is_marker = open[num_sampled] == token;
        match &mut self.inner {
            None if self.tail.ends_with(open) => self.state = Thought::Open(0),
            None => {}
            Some(_) if is_marker && num_sampled + 1 == open.len() => self.state = Thought::Open(0),
            Some(_) if is_marker => self.state = Thought::Unopened(num_sampled + 1),
            Some(inner) => {
                self.state = Thought::Closed;
                return inner.accept(token);
            }
        }
        Ok(())
    }
}

impl TokenConstraint for AfterReasoning {
    fn allowed(&mut self, mask: &mut TokenMask) -> Result<AllowedTokens, ConstraintError> {
        let force = |mask: &mut TokenMask, token| {
            *mask = TokenMask::only(&[token], mask.vocab_size());
            Ok(AllowedTokens::Masked)
        };
        match (self.state, &mut self.inner) {
            (Thought::Unopened(0) | Thought::Closed, None) => Ok(AllowedTokens::All),
            (Thought::Unopened(0), Some(inner)) => {
                let allowed = inner.allowed(mask)?;
                mask.allow(self.reasoning.open[0]);
                Ok(allowed)
            }
            (Thought::Unopened(num_sampled), _) => force(mask, self.reasoning.open[num_sampled]),
            (Thought::Open(_), _) => Ok(AllowedTokens::NotEnd),
            (Thought::Closing(num_sampled), _) => force(mask, self.reasoning.close[num_sampled]),
            (Thought::Resuming(num_sampled), _) => force(mask, self.reasoning.resume[num_sampled]),
            (Thought::Closed, Some(inner)) => inner.allowed(mask),
        }
    }

    fn accept(&mut self, token: TokenId) -> Result<(), ConstraintError> {
        self.remember(token);
        match self.state {
            Thought::Unopened(num_sampled) => self.accept_unopened(token, num_sampled)?,
            Thought::Open(_) if self.tail.ends_with(&self.reasoning.close) => match self.inner {
                Some(_) => self.resume(0),
                None => self.state = Thought::Closed,
            },
            Thought::Open(num_tokens) => self.state = Thought::Open(num_tokens + 1),
            Thought::Closing(num_sampled) if num_sampled + 1 == self.reasoning.close.len() => {
                self.resume(0);
            }
            Thought::Closing(num_sampled) => self.state = Thought::Closing(num_sampled + 1),
            Thought::Resuming(num_sampled) => self.resume(num_sampled + 1),
            Thought::Closed => {
                if let Some(inner) = &mut self.inner {
                    inner.accept(token)?;
                }
            }
        }
        self.keep_to_budget();
        Ok(())
    }

    fn clone_boxed(&self) -> Box<dyn TokenConstraint> {
        Box::new(AfterReasoning {
            reasoning: self.reasoning.clone(),
            state: self.state,
            tail: self.tail.clone(),
            inner: self.inner.as_ref().map(|inner| inner.clone_boxed()),
        })
    }
}

/// Keeps forbidden sequences of tokens out of a choice: bans the last token of a sequence after its
/// other tokens, unless the inner constraint allows only banned tokens.
#[derive(Debug)]
pub(super) struct WithoutRuns {
    /// Forbidden sequences, each of at least two tokens.
    runs: Vec<Vec<TokenId>>,
    /// Tokens that end a choice.
    ends: Vec<TokenId>,
    tail: Vec<TokenId>,
    inner: Option<Box<dyn TokenConstraint>>,
}

impl WithoutRuns {
    pub(super) fn new(
        runs: Vec<Vec<TokenId>>,
        ends: Vec<TokenId>,
        inner: Option<Box<dyn TokenConstraint>>,
    ) -> WithoutRuns {
        WithoutRuns { runs, ends, tail: Vec::new(), inner }
    }
}

impl TokenConstraint for WithoutRuns {
    fn allowed(&mut self, mask: &mut TokenMask) -> Result<AllowedTokens, ConstraintError> {
        let allowed = match &mut self.inner {
            Some(inner) => inner.allowed(mask)?,
            None => AllowedTokens::All,
        };
        let begun = |run: &&Vec<TokenId>| self.tail.ends_with(&run[..run.len() - 1]);
        let banned = self.runs.iter().filter(begun).filter_map(|run| run.last().copied());
        let banned: Vec<TokenId> = banned.collect();
        if banned.is_empty() {
            return Ok(allowed);
        }
        if allowed == AllowedTokens::NotEnd {
            self.ends.iter().for_each(|token| mask.ban(*token));
        }
        let mut rest = mask.clone();
        banned.iter().for_each(|token| rest.ban(*token));
        if !rest.is_empty() {
            *mask = rest;
        }
        Ok(AllowedTokens::Masked)
    }

    fn accept(&mut self, token: TokenId) -> Result<(), ConstraintError> {
        let most = self.runs.iter().map(Vec::len).max().unwrap_or(0);
        self.tail.push(token);
        if most < self.tail.len() {
            self.tail.remove(0);
        }
        self.inner.as_mut().map_or(Ok(()), |inner| inner.accept(token))
    }

    fn clone_boxed(&self) -> Box<dyn TokenConstraint> {
        Box::new(WithoutRuns {
            runs: self.runs.clone(),
            ends: self.ends.clone(),
            tail: self.tail.clone(),
            inner: self.inner.as_ref().map(|inner| inner.clone_boxed()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOCAB_SIZE: u32 = 20;

    /// Accepts `tokens`, each of which must be allowed, and returns what is allowed after them.
    fn after(
        constraint: &mut dyn TokenConstraint,
        tokens: &[TokenId],
    ) -> (AllowedTokens, Vec<TokenId>) {
        for &token in tokens {
            let (_, allowed) = asked(constraint);
            assert!(allowed.contains(&token), "{token} is not in {allowed:?}");
            constraint.accept(token).unwrap();
        }
        asked(constraint)
    }

    fn asked(constraint: &mut dyn TokenConstraint) -> (AllowedTokens, Vec<TokenId>) {
        let mut mask = TokenMask::all(VOCAB_SIZE);
        let allowed = constraint.allowed(&mut mask).unwrap();
        let mask = mask.to_mask();
        (allowed, (0..VOCAB_SIZE).filter(|token| mask.allows(*token)).collect())
    }

    /// Always allows only token 7.
    #[derive(Clone, Debug)]
    struct Seven;

    impl TokenConstraint for Seven {
        fn allowed(&mut self, mask: &mut TokenMask) -> Result<AllowedTokens, ConstraintError> {
            *mask = TokenMask::only(&[7], VOCAB_SIZE);
            Ok(AllowedTokens::Masked)
        }

        fn accept(&mut self, token: TokenId) -> Result<(), ConstraintError> {
            assert_eq!(token, 7, "only the answer reaches the constraint within");
            Ok(())
        }

        fn clone_boxed(&self) -> Box<dyn TokenConstraint> {
            Box::new(self.clone())
        }
    }

    fn reasoning(is_open: bool, budget_tokens: Option<u32>) -> Reasoning {
        let (open, close, resume) = (vec![1, 2], vec![3, 4], Vec::new());
        Reasoning { open, close, resume, is_open, budget_tokens }
    }

    #[test]
    fn what_lies_between_thought_and_answer_is_forced() {
        let with_way = |budget| Reasoning { resume: vec![8, 8], ..reasoning(true, budget) };
        let mut bound = AfterReasoning::new(with_way(None), Some(Box::new(Seven)));
        assert_eq!(after(&mut bound, &[9, 3, 4]), (AllowedTokens::Masked, vec![8]));
        assert_eq!(after(&mut bound, &[8]), (AllowedTokens::Masked, vec![8]));
        assert_eq!(after(&mut bound, &[8]), (AllowedTokens::Masked, vec![7]));
        let mut cut = AfterReasoning::new(with_way(Some(1)), None);
        assert_eq!(after(&mut cut, &[9, 3, 4]), (AllowedTokens::Masked, vec![8]));
        assert_eq!(after(&mut cut, &[8, 8]).0, AllowedTokens::All);
        let mut free = AfterReasoning::new(with_way(None), None);
        assert_eq!(after(&mut free, &[9, 3, 4]).0, AllowedTokens::All);
    }

    #[test]
    fn an_answer_is_bound_once_the_thought_is_closed() {
        let constraint = || AfterReasoning::new(reasoning(true, None), Some(Box::new(Seven)));
        assert_eq!(after(&mut constraint(), &[9, 3, 3]).0, AllowedTokens::NotEnd);
        assert_eq!(after(&mut constraint(), &[9, 3, 3, 4]), (AllowedTokens::Masked, vec![7]));
        assert_eq!(after(&mut constraint(), &[3, 4, 7, 7]), (AllowedTokens::Masked, vec![7]));
    }

    #[test]
    fn a_model_may_think_first_or_answer_at_once() {
        let constraint = || AfterReasoning::new(reasoning(false, None), Some(Box::new(Seven)));
        assert_eq!(after(&mut constraint(), &[]), (AllowedTokens::Masked, vec![1, 7]));
        assert_eq!(after(&mut constraint(), &[7]), (AllowedTokens::Masked, vec![7]));
        assert_eq!(after(&mut constraint(), &[1]), (AllowedTokens::Masked, vec![2]));
        assert_eq!(after(&mut constraint(), &[1, 2]).0, AllowedTokens::NotEnd);
        assert_eq!(after(&mut constraint(), &[1, 2, 9, 3, 4]), (AllowedTokens::Masked, vec![7]));
        let mut copy = constraint();
        after(&mut copy, &[1]);
        assert_eq!(after(&mut *copy.clone_boxed(), &[2, 3, 4]), (AllowedTokens::Masked, vec![7]));
    }

    #[test]
    fn a_budget_closes_the_thought() {
        let constraint = |is_open| AfterReasoning::new(reasoning(is_open, Some(2)), None);
        assert_eq!(after(&mut constraint(true), &[9]).0, AllowedTokens::NotEnd);
        assert_eq!(after(&mut constraint(true), &[9, 9]), (AllowedTokens::Masked, vec![3]));
        assert_eq!(
            after(&mut constraint(true), &[9, 3]),
            (AllowedTokens::Masked, vec![4]),
            "it has begun"
        );
        assert_eq!(after(&mut constraint(true), &[9, 9, 3]), (AllowedTokens::Masked, vec![4]));
        assert_eq!(after(&mut constraint(true), &[9, 9, 3, 4, 9, 9, 9]).0, AllowedTokens::All);
        assert_eq!(
            after(&mut constraint(false), &[9, 1, 2, 9, 9]),
            (AllowedTokens::Masked, vec![3])
        );
        assert_eq!(after(&mut constraint(false), &[9, 9, 9]).0, AllowedTokens::All);
        let mut none = AfterReasoning::new(reasoning(true, Some(0)), None);
        assert_eq!(after(&mut none, &[]), (AllowedTokens::Masked, vec![3]));
    }

    #[test]
    fn the_last_token_of_a_run_is_banned_after_the_others() {
        let constraint = || WithoutRuns::new(vec![vec![5, 6], vec![7, 7]], vec![0], None);
        assert_eq!(after(&mut constraint(), &[6, 6]).0, AllowedTokens::All);
        let (allowed, tokens) = after(&mut constraint(), &[9, 5]);
        assert_eq!((allowed, tokens.len()), (AllowedTokens::Masked, 19));
        assert!(!tokens.contains(&6));
        let mut bound = WithoutRuns::new(vec![vec![7, 7]], vec![0], Some(Box::new(Seven)));
        assert_eq!(after(&mut bound, &[7]), (AllowedTokens::Masked, vec![7]), "the structure wins");
    }
}
