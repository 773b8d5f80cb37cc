//! A request under way.

use jackalope_protocol::{
    CacheId, Embed, Input, Logprob, Pooling, Row, Sampling, Score, Scored, TokenId,
};

use super::guided::{Guided, Next};
use super::isolation::Suspicion;
use crate::planted::{Bug, Planted};
use crate::{FinishReason, Request, RequestId, Usage};

/// Tokens of one sequence under way: the next is computed from one that only ranks know yet.
const PENDING_MAX: usize = 2;

/// There is no state of prefill or decoding: some positions are computed, some are left. Decoding
/// means that one is left.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) id: RequestId,
    pub(crate) request: Request,
    /// Prompt, then every token drawn and told.
    pub(crate) tokens: Vec<TokenId>,
    /// Positions computed once every plan made so far is carried out.
    pub(crate) num_computed: usize,
    /// Tokens that plans under way will draw.
    pub(crate) num_pending: usize,
    /// Tokens under way that are not wanted any more; the oldest ones under way.
    pub(crate) num_discarded: usize,
    /// Answers under way: drawn tokens, scores and embeddings.
    pub(crate) num_awaited: usize,
    /// The last step with a row of it; the one that admitted it before.
    pub(crate) last_step: u64,
    /// Present while running.
    pub(crate) cache: Option<CacheId>,
    /// Log-probabilities of the prompt, from the second token on.
    pub(crate) scores: Vec<Logprob>,
    /// Prompt tokens found cached at the first start; none before it.
    pub(crate) cached_tokens: Option<u32>,
    /// Admitted because it had waited for longest: nobody is more important any more.
    pub(crate) is_aged: bool,
    /// Times it was sent back to wait for want of memory.
    pub(crate) num_preemptions: u32,
    /// What bounds the next token, for requests that have a guide.
    pub(super) guided: Option<Guided>,
    /// Evidence that this request makes ranks fail.
    pub(super) suspicion: Suspicion,
}

impl Sequence {
    pub(crate) fn new(id: RequestId, mut request: Request) -> Sequence {
        let guided = request.take_guide();
        Sequence {
            id,
            tokens: request.prompt().to_vec(),
            guided: guided.map(|guide| Guided::new(guide, request.token_mask().cloned())),
            request,
            num_computed: 0,
            num_pending: 0,
            num_discarded: 0,
            num_awaited: 0,
            last_step: 0,
            cache: None,
            scores: Vec::new(),
            cached_tokens: None,
            is_aged: false,
            num_preemptions: 0,
            suspicion: Suspicion::default(),
        }
    }

    /// Its priority as it counts now: lower values go first.
    pub(crate) fn importance(&self) -> i32 {
        if self.is_aged { i32::MIN } else { self.request.priority() }
    }

    /// True if it had a cache before.
    pub(crate) fn has_run(&self) -> bool {
        self.cached_tokens.is_some()
    }

    pub(crate) fn num_prompt_tokens(&self) -> usize {
        self.request.prompt().len()
    }

    fn num_drawn(&self) -> usize {
        self.tokens.len() - self.num_prompt_tokens()
    }

    fn wants_scores(&self) -> bool {
        self.request.prompt_logprobs().is_some()
    }

    fn is_scored(&self) -> bool {
        !self.wants_scores() || self.scores.len() + 1 == self.num_prompt_tokens()
    }

    /// True if there was never anything to compute.
    pub(crate) fn is_trivial(&self) -> bool {
        self.request.max_tokens() == 0 && self.is_scored() && self.request.embed().is_none()
    }

    /// Positions that can be computed before another token is known.
    pub(crate) fn num_computable(&self) -> usize {
        if self.request.embed().is_some() {
            return self.num_prompt_tokens();
        }
        let num_tokens = self.tokens.len() + self.num_pending;
        let is_drawn = self.num_drawn() + self.num_pending >= self.request.max_tokens() as usize;
        // The last token is computed only to draw the one after it.
        if is_drawn { num_tokens - 1 } else { num_tokens }
    }

    /// Positions this sequence could compute now.
    pub(crate) fn num_wanted(&self, lookahead: bool) -> usize {
        let binds_next = || self.guided.as_ref().is_some_and(Guided::binds_next);
        if 0 < self.num_pending && (!lookahead || self.request.is_stepwise() || binds_next()) {
            return 0;
        }
        if PENDING_MAX <= self.num_pending {
            return 0;
        }
        let awaits_guide = self.guided.as_ref().is_some_and(Guided::is_awaited);
        // The last token is computed to draw the one after it.
        let most = if awaits_guide { self.tokens.len() - 1 } else { self.num_computable() };
        most - self.num_computed.min(most)
    }

    /// Cached tokens it may start from: the last one has to be computed, and so has every one
    /// whose successor's log-probability, or whose hidden state is wanted.
    pub(crate) fn num_reusable(&self, planted: Planted) -> usize {
        if planted.has(Bug::CachedToTheEnd) {
            return self.tokens.len();
        }
        if self.request.embed() == Some(Pooling::Mean) && !planted.has(Bug::EmbeddedFromCache) {
            return 0;
        }
        let last = self.num_computable() - 1;
        let scores_all = self.is_scored() || planted.has(Bug::ScoresSkipped);
        if scores_all { last } else { last.min(self.scores.len()) }
    }

    /// The row that computes the next `num_tokens` positions.
    pub(crate) fn row(&mut self, num_tokens: usize, planted: Planted) -> Row {
        let start = self.num_computed;
        let end = start + num_tokens;
        let input = if start == self.tokens.len() {
            assert_eq!((num_tokens, self.num_pending), (1, 1), "one token is under way");
            Input::Previous
        } else if planted.has(Bug::PreviousOfOlderStep) && self.num_prompt_tokens() < end {
            Input::Previous
        } else {
            Input::Tokens(self.tokens[start..end].to_vec())
        };
        let score = self.score(start, end);
        let embed = self.embed();
        let is_embedded = embed.is_some_and(|embed| embed.ends_at(end));
        let is_last = end == self.tokens.len() + self.num_pending;
        let sample = (is_last && embed.is_none()).then(|| self.sampling(planted));
        if let Some(guided) = self.guided.as_mut().filter(|_| is_last) {
            guided.note_planned();
        }
        self.num_computed = end;
        self.num_pending += usize::from(sample.is_some());
        self.num_awaited += usize::from(sample.is_some()) + usize::from(score.is_some());
        self.num_awaited += usize::from(is_embedded);
        Row {
            cache: self.cache.expect("a running sequence has a cache"),
            start: start_of(start),
            input,
            sample,
            score,
            embed,
        }
    }

    fn embed(&self) -> Option<Embed> {
        let pooling = self.request.embed()?;
        Some(Embed { pooling, num_tokens: start_of(self.num_prompt_tokens()) })
    }

    fn sampling(&self, planted: Planted) -> Sampling {
        let mut sampling = self.request.sampling().clone();
        let may_end = self.request.min_tokens() as usize <= self.num_drawn() + self.num_pending;
        sampling.mask = match self.guided.as_ref().map(Guided::next) {
            Some(Next::Masked(mask)) if may_end => mask.to_mask(),
            Some(Next::Masked(mask)) => mask.without(self.request.stop_tokens()).to_mask(),
            Some(Next::NotEnd) => self.request.mask(false).clone(),
            _ => self.request.mask(may_end).clone(),
        };
        if planted.has(Bug::PromptGrowsOnPreemption) && 1 < self.tokens.len() - self.num_computed {
            sampling.num_prompt_tokens = start_of(self.tokens.len());
        }
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

    /// Takes in log-probabilities; those that were known already are passed over. True if this
    /// completes them.
    pub(crate) fn add_scores(&mut self, scored: Scored, planted: Planted) -> bool {
        let was_scored = self.is_scored();
        let first = (scored.start as usize).saturating_sub(1);
        let num_known = self.scores.len().saturating_sub(first);
        let num_known = if planted.has(Bug::ScoresRepeated) { 0 } else { num_known };
        self.scores.extend(scored.logprobs.into_iter().skip(num_known));
        self.scores.truncate(self.num_prompt_tokens() - 1);
        self.is_scored() && !was_scored
    }

    /// Takes a drawn token in; says whether it is the last.
    pub(crate) fn add_token(&mut self, token: TokenId, planted: Planted) -> Option<FinishReason> {
        self.tokens.push(token);
        if let Some(guided) = &mut self.guided {
            guided.accept(token);
        }
        let most = self.request.max_tokens() as usize;
        let most = if planted.has(Bug::OneTokenTooMany) { most + 1 } else { most };
        if self.request.stops_at(token) {
            return Some(FinishReason::Stop);
        }
        (most <= self.num_drawn()).then_some(FinishReason::Length)
    }

    /// Wants no token any more that is under way: it was planned as if anything were allowed. Its
    /// position is computed once more.
    pub(super) fn discard_pending(&mut self, planted: Planted) {
        if self.num_pending == 0 || planted.has(Bug::UnguidedDrawKept) {
            return;
        }
        self.num_discarded += std::mem::take(&mut self.num_pending);
        self.num_computed = self.num_computed.min(self.tokens.len() - 1);
    }

    /// Gives up what is computed: everything is computed again from the tokens.
    pub(crate) fn reset(&mut self) {
        self.num_computed = 0;
        self.cache = None;
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: start_of(self.num_prompt_tokens()),
            completion_tokens: start_of(self.num_drawn()),
            cached_tokens: self.cached_tokens.unwrap_or(0),
            preemptions: self.num_preemptions,
        }
    }
}

/// Lengths of sequences are bounded by the context.
fn start_of(num_tokens: usize) -> u32 {
    u32::try_from(num_tokens).expect("sequences are no longer than the context")
}
