//! The state of an open request.

use jackalope_protocol::{
    CacheId, Embed, Input, Logprob, Pooling, Row, Sampling, Score, Scored, TokenId,
};

use super::constraint::{Next, SequenceConstraint};
use super::suspicion::Suspicion;
use crate::{FinishReason, PrefixMiss, Request, RequestId, Usage};

/// Maximum number of tokens of one sequence in flight. The ranks compute the second from the first,
/// which only they know yet.
const PENDING_MAX: usize = 2;

/// The state of an open request. Prefill and decoding are not distinguished: some positions are
/// computed, the others are left. A decoding sequence has one left.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) id: RequestId,
    pub(crate) request: Request,
    /// The prompt, then every token sampled and reported.
    pub(crate) tokens: Vec<TokenId>,
    /// Number of positions that are computed once the ranks have executed every plan made so far.
    pub(crate) num_computed: usize,
    /// Number of tokens that steps in flight will sample.
    pub(crate) num_pending: usize,
    /// Number of tokens in flight that will be dropped; they arrive before the pending ones.
    pub(crate) num_discarded: usize,
    /// Number of outputs in flight: sampled tokens, scores and embeddings.
    pub(crate) num_awaited: usize,
    /// The last step with a row of this sequence; before its first row, the step that admitted it.
    pub(crate) last_step: u64,
    /// Whether each token is planned only when the one before it is known.
    is_stepwise: bool,
    /// Set while the sequence runs.
    pub(crate) cache: Option<CacheId>,
    /// Log-probabilities of the prompt tokens, from the second on.
    pub(crate) scores: Vec<Logprob>,
    /// Number of prompt tokens found in a cache at the first admission; none before it.
    pub(crate) cached_tokens: Option<u32>,
    /// Reason why the other prompt tokens were not found there.
    pub(crate) prefix_miss: Option<PrefixMiss>,
    /// Set if it was admitted because it was due; no sequence is more important from then on.
    pub(crate) is_aged: bool,
    /// Number of preemptions because memory was short.
    pub(crate) num_preemptions: u32,
    /// The constraint on the next token, if the request has one.
    pub(super) constraint: Option<SequenceConstraint>,
    /// Evidence that this request makes ranks fail.
    pub(super) suspicion: Suspicion,
}

impl Sequence {
    /// Creates a waiting sequence. `has_states` is true if the model has states, which cannot go
    /// back by a token that a constraint turns out to forbid.
    pub(crate) fn new(id: RequestId, mut request: Request, has_states: bool) -> Sequence {
        let constraint = request.take_constraint();
        let is_stepwise = request.is_stepwise() || (has_states && constraint.is_some());
        Sequence {
            id,
            tokens: request.prompt().to_vec(),
            constraint: constraint.map(|constraint| {
                SequenceConstraint::new(constraint, request.token_mask().cloned())
            }),
            request,
            num_computed: 0,
            num_pending: 0,
            num_discarded: 0,
            num_awaited: 0,
            last_step: 0,
            is_stepwise,
            cache: None,
            scores: Vec::new(),
            cached_tokens: None,
            prefix_miss: None,
            is_aged: false,
            num_preemptions: 0,
            suspicion: Suspicion::default(),
        }
    }

    /// Returns the effective priority; lower values go first.
    pub(crate) fn importance(&self) -> i32 {
        if self.is_aged { i32::MIN } else { self.request.priority() }
    }

    /// Returns true if the sequence was admitted before.
    pub(crate) fn has_run(&self) -> bool {
        self.cached_tokens.is_some()
    }

    pub(crate) fn num_prompt_tokens(&self) -> usize {
        self.request.prompt().len()
    }

    fn num_sampled(&self) -> usize {
        self.tokens.len() - self.num_prompt_tokens()
    }

    fn wants_scores(&self) -> bool {
        self.request.prompt_logprobs().is_some()
    }

    fn is_scored(&self) -> bool {
        !self.wants_scores() || self.scores.len() + 1 == self.num_prompt_tokens()
    }

    /// Returns true if the request needs no computation at all.
    pub(crate) fn is_trivial(&self) -> bool {
        self.request.max_tokens() == 0 && self.is_scored() && self.request.embed().is_none()
    }

    /// Returns the number of positions that can be computed before another token is known.
    pub(crate) fn num_computable(&self) -> usize {
        if self.request.embed().is_some() {
            return self.num_prompt_tokens();
        }
        let num_tokens = self.tokens.len() + self.num_pending;
        let is_sampled =
            self.num_sampled() + self.num_pending >= self.request.max_tokens() as usize;
        // The last token is computed only to sample the one after it.
        if is_sampled { num_tokens - 1 } else { num_tokens }
    }

    /// Returns the number of positions that this sequence could compute now.
    pub(crate) fn num_wanted(&self, lookahead: bool) -> usize {
        let binds_next = || self.constraint.as_ref().is_some_and(SequenceConstraint::binds_next);
        if 0 < self.num_pending && (!lookahead || self.is_stepwise || binds_next()) {
            return 0;
        }
        if PENDING_MAX <= self.num_pending {
            return 0;
        }
        let awaits_constraint =
            self.constraint.as_ref().is_some_and(SequenceConstraint::is_awaited);
        // The last token is computed to sample the one after it.
        let most = if awaits_constraint { self.tokens.len() - 1 } else { self.num_computable() };
        most - self.num_computed.min(most)
    }

    /// Returns the maximum number of tokens that may come from a cache. The last token has to be
    /// computed, and so has every token whose hidden state, or whose successor's log-probability,
    /// the request still needs.
    pub(crate) fn num_reusable(&self) -> usize {
        if self.request.embed() == Some(Pooling::Mean) {
            return 0;
        }
        let last = self.num_computable() - 1;
        if self.is_scored() { last } else { last.min(self.scores.len()) }
    }

    /// Plans the row that computes the next `num_tokens` positions.
    pub(crate) fn row(&mut self, num_tokens: usize) -> Row {
        let start = self.num_computed;
        let end = start + num_tokens;
        let input = if start == self.tokens.len() {
            assert_eq!((num_tokens, self.num_pending), (1, 1), "one token is under way");
            Input::Previous
        } else {
            Input::Tokens(self.tokens[start..end].to_vec())
        };
        let score = self.score(start, end);
        let embed = self.embed();
        let is_embedded = embed.is_some_and(|embed| embed.ends_at(end));
        let is_last = end == self.tokens.len() + self.num_pending;
        let sample = (is_last && embed.is_none()).then(|| self.sampling());
        if let Some(constraint) = self.constraint.as_mut().filter(|_| is_last) {
            constraint.note_planned();
        }
        self.num_computed = end;
        self.num_pending += usize::from(sample.is_some());
        self.num_awaited += usize::from(sample.is_some()) + usize::from(score.is_some());
        self.num_awaited += usize::from(is_embedded);
        Row {
            cache: self.cache.expect("a running sequence has a cache"),
            start: start_of(start),
            input,
            keeps: false,
            sample,
            score,
            embed,
        }
    }

    fn embed(&self) -> Option<Embed> {
        let pooling = self.request.embed()?;
        Some(Embed { pooling, num_tokens: start_of(self.num_prompt_tokens()) })
    }

    fn sampling(&self) -> Sampling {
        let mut sampling = self.request.sampling().clone();
        let may_end = self.request.min_tokens() as usize <= self.num_sampled() + self.num_pending;
        sampling.mask = match self.constraint.as_ref().map(SequenceConstraint::next) {
            Some(Next::Masked(mask)) if may_end => mask.to_mask(),
            Some(Next::Masked(mask)) => mask.without(self.request.stop_tokens()).to_mask(),
            Some(Next::NotEnd) => self.request.mask(false).clone(),
            _ => self.request.mask(may_end).clone(),
        };
        sampling
    }

    fn score(&self, start: usize, end: usize) -> Option<Score> {
        let num_top = self.request.prompt_logprobs()?;
        let last = self.num_prompt_tokens().min(end + 1);
        if self.is_scored() || last <= start + 1 {
            return None;
        }
        Some(Score { targets: self.tokens[start + 1..last].to_vec(), num_top })
    }

    /// Adds log-probabilities of the prompt, except those already known. Returns true if this
    /// completes them.
    pub(crate) fn add_scores(&mut self, scored: Scored) -> bool {
        let was_scored = self.is_scored();
        let first = (scored.start as usize).saturating_sub(1);
        let num_known = self.scores.len().saturating_sub(first);
        self.scores.extend(scored.logprobs.into_iter().skip(num_known));
        self.scores.truncate(self.num_prompt_tokens() - 1);
        self.is_scored() && !was_scored
    }

    /// Appends a sampled token. Returns the finish reason if it is the last.
    pub(crate) fn add_token(&mut self, token: TokenId) -> Option<FinishReason> {
        self.tokens.push(token);
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(token);
        }
        let most = self.request.max_tokens() as usize;
        if self.request.stops_at(token) {
            return Some(FinishReason::Stop);
        }
        (most <= self.num_sampled()).then_some(FinishReason::Length)
    }

    /// Discards the tokens in flight, which were planned before the constraint on them was known.
    /// Their positions are computed again.
    pub(super) fn discard_pending(&mut self) {
        if self.num_pending == 0 {
            return;
        }
        self.num_discarded += std::mem::take(&mut self.num_pending);
        self.num_computed = self.num_computed.min(self.tokens.len() - 1);
    }

    /// Gives up the cache; all positions are computed again from the tokens.
    pub(crate) fn reset(&mut self) {
        self.num_computed = 0;
        self.cache = None;
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: start_of(self.num_prompt_tokens()),
            completion_tokens: start_of(self.num_sampled()),
            cached_tokens: self.cached_tokens.unwrap_or(0),
            prefix_miss: self.prefix_miss,
            preemptions: self.num_preemptions,
        }
    }
}

/// Converts a length, which the context bounds.
fn start_of(num_tokens: usize) -> u32 {
    u32::try_from(num_tokens).expect("sequences are no longer than the context")
}
