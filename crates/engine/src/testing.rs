//! Ranks without a model, for tests of whatever stands on the engine.
//!
//! [`FakeCaches`] obeys plans and nothing else: it panics at a plan that real ranks could not carry
//! out. [`FakeRanks`] is a [`RankGroup`] around it, in the engine's own thread, with a pace, scripted
//! tokens, and crashes on demand.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use jackalope_protocol::{
    CacheCost, CacheId, Embed, Embedded, Forget, Fork, Input, KV_BLOCK_TOKENS, Logprob, Phase,
    Pooling, RankFacts, Row, Sampled, Sampling, Scored, StepOutput, StepPlan, StepTimings, TokenId,
    UnitRange, WindowDrop, window_blocks,
};

use crate::event::CONNECTION_LOST;
use crate::{
    CacheCapacity, CacheDemand, Failure, GroupEvent, RankCapacity, RankGroup, RankTransport,
    Reporter,
};

/// Chosen by a [`NextToken`] whose logits are not numbers.
pub const NOT_A_NUMBER: TokenId = TokenId::MAX;

/// Chooses the token after the given ones.
pub type NextToken = Box<dyn FnMut(&[TokenId], &Sampling) -> TokenId + Send>;

/// A model whose next token depends on every token before it, on the seed, and on nothing else but
/// the mask: it samples the first allowed token from its choice on.
pub fn pseudo_model(vocab_size: u32) -> NextToken {
    Box::new(move |tokens, sampling| {
        let hash = hash_tokens(tokens) ^ sampling.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let hash =
            (hash ^ u64::from(sampling.num_prompt_tokens)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        let choice = ((hash >> 32) % u64::from(vocab_size)) as TokenId;
        let mut tokens = (choice..vocab_size).chain(0..choice);
        tokens.find(|token| sampling.mask.allows(*token)).expect("a mask allows some token")
    })
}

/// [`pseudo_model`], with keys and values of some tokens that make everything after them something
/// that is not a number.
pub fn overflowing_model(vocab_size: u32) -> NextToken {
    let mut model = pseudo_model(vocab_size);
    Box::new(move |tokens, sampling| {
        let overflows = |end: usize| hash_tokens(&tokens[..end]).is_multiple_of(2000);
        if (1..=tokens.len()).any(overflows) { NOT_A_NUMBER } else { model(tokens, sampling) }
    })
}

/// A model that generates `answer(prompt)` and then `end` without limit.
pub fn scripted_model(
    mut answer: impl FnMut(&[TokenId]) -> Vec<TokenId> + Send + 'static,
    end: TokenId,
) -> NextToken {
    Box::new(move |tokens, sampling| {
        let (prompt, sampled) = tokens.split_at(sampling.num_prompt_tokens as usize);
        answer(prompt).get(sampled.len()).copied().unwrap_or(end)
    })
}

/// The log-probability that the fakes report for `target` after `tokens`.
pub fn pseudo_logprob(tokens: &[TokenId], target: TokenId, num_top: u8) -> Logprob {
    let hash = hash_tokens(tokens);
    let logprob = |token: TokenId| -(((hash ^ u64::from(token)) % 997) as f32) / 100.0;
    let top = (0..u32::from(num_top)).map(|idx| (idx, -0.5 - idx as f32)).collect();
    Logprob { logprob: logprob(target), top }
}

/// The embedding that the fakes report for `tokens`; every position's tokens count for the mean.
pub fn pseudo_embedding(tokens: &[TokenId], pooling: Pooling) -> Vec<f32> {
    let state = |end: usize| (hash_tokens(&tokens[..end]) % 1009) as f32;
    let num_tokens = tokens.len();
    let mean = || (1..=num_tokens).map(state).sum::<f32>() / num_tokens as f32;
    match pooling {
        Pooling::Mean => vec![mean(), num_tokens as f32],
        Pooling::Last => vec![state(num_tokens), 1.0],
    }
}

fn hash_tokens(tokens: &[TokenId]) -> u64 {
    tokens.iter().fold(7, |hash: u64, token| {
        (hash ^ u64::from(*token)).wrapping_mul(0x0100_0000_01B3).rotate_left(23)
    })
}

/// What layers with states hold after these tokens, computed one after the other.
fn state_after(tokens: &[TokenId]) -> u64 {
    tokens.iter().copied().fold(0, next_state)
}

fn next_state(state: u64, token: TokenId) -> u64 {
    (state.rotate_left(7) ^ u64::from(token)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// What one rank would hold after the plans it was given.
#[derive(Debug)]
pub struct FakeCaches {
    block_tokens: usize,
    /// Memory that is never exceeded, if it is known. It says too whether layers have states, which
    /// cannot go back.
    capacity: Option<CacheCapacity>,
    caches: HashMap<CacheId, FakeCache>,
    /// What each row of the step before sampled.
    sampled: HashMap<CacheId, TokenId>,
    next_step: u64,
}

#[derive(Clone, Debug, Default)]
struct FakeCache {
    tokens: Vec<TokenId>,
    /// Tokens there is room for; never shrinks.
    blocks: usize,
    /// The blocks that layers with windows hold.
    window_blocks: BTreeSet<usize>,
    /// What layers with states hold after these tokens.
    state: u64,
    /// The states at the lengths that are kept.
    kept: BTreeMap<usize, u64>,
    /// Positions whose hidden states were taken in for a mean.
    num_pooled: usize,
}

impl Default for FakeCaches {
    fn default() -> FakeCaches {
        FakeCaches::new(KV_BLOCK_TOKENS as usize)
    }
}

impl FakeCaches {
    /// Creates caches that grow by `block_tokens` at a time.
    pub fn new(block_tokens: usize) -> FakeCaches {
        FakeCaches {
            block_tokens,
            capacity: None,
            caches: HashMap::new(),
            sampled: HashMap::new(),
            next_step: 0,
        }
    }

    /// Caches of a model with so much memory, on ranks that check that they never need more.
    pub fn with_capacity(block_tokens: usize, capacity: CacheCapacity) -> FakeCaches {
        FakeCaches { capacity: Some(capacity), ..FakeCaches::new(block_tokens) }
    }

    /// Carries a plan out.
    ///
    /// # Panics
    /// If a rank could not: a step is missing, a cache does not exist or exists already, a row
    /// skips positions, a token is taken from a row that sampled none, a cache with states is cut
    /// or copied where none are kept, blocks of a window are read or freed that are not held, memory is
    /// exceeded.
    pub fn execute(&mut self, plan: &StepPlan, next_token: &mut NextToken) -> StepOutput {
        assert_eq!(plan.step, self.next_step, "a step is missing or repeated");
        self.next_step += 1;
        plan.forks.iter().for_each(|fork| self.fork(fork));
        self.check_memory();
        plan.forgets.iter().for_each(|forget| self.forget(*forget));
        plan.window_drops.iter().for_each(|drop| self.free(*drop));
        for cache in &plan.drops {
            assert!(self.caches.remove(cache).is_some(), "{cache:?} is dropped but not held");
        }
        let names: HashSet<CacheId> = plan.rows.iter().map(|row| row.cache).collect();
        assert_eq!(names.len(), plan.rows.len(), "a cache occurs twice in {plan:?}");
        let mut output = StepOutput { step: plan.step, ..StepOutput::default() };
        for row in &plan.rows {
            self.compute(row, next_token, &mut output);
        }
        self.check_memory();
        output.timings = StepTimings { total_us: 1, ..StepTimings::default() };
        output
    }

    /// Forgets everything, as a new group does.
    pub fn clear(&mut self) {
        let capacity = self.capacity.take();
        *self = FakeCaches { capacity, ..FakeCaches::new(self.block_tokens) };
    }

    /// Caches held.
    pub fn num_caches(&self) -> usize {
        self.caches.len()
    }

    /// Memory held.
    pub fn demand(&self) -> CacheDemand {
        let has_states = self.has_states();
        let demand = |cache: &FakeCache| {
            let states = if has_states { 1 + cache.kept.len() } else { 0 };
            let window_blocks = cache.window_blocks.len();
            CacheDemand { blocks: cache.blocks, window_blocks, states }
        };
        self.caches.values().map(demand).sum()
    }

    fn has_states(&self) -> bool {
        self.capacity.as_ref().is_some_and(CacheCapacity::has_states)
    }

    fn window_tokens(&self) -> usize {
        self.capacity.as_ref().map_or(0, CacheCapacity::window_tokens)
    }

    /// Returns the blocks of layers with windows that a row at `num_tokens` reads.
    fn window(&self, num_tokens: usize) -> Range<usize> {
        match self.window_tokens() {
            0 => 0..0,
            window_tokens => window_blocks(window_tokens, self.block_tokens, num_tokens),
        }
    }

    fn free(&mut self, WindowDrop { cache, start, end }: WindowDrop) {
        let held = self.caches.get_mut(&cache).expect("blocks of a cache that is held");
        for block in start as usize..end as usize {
            assert!(held.window_blocks.remove(&block), "{cache:?} does not hold block {block}");
        }
    }

    fn fork(&mut self, fork: &Fork) {
        let Fork { source, target, num_tokens, window_start } = *fork;
        let window = self.window(num_tokens as usize);
        assert!(window_start as usize <= window.start, "{fork:?} leaves out what a row reads");
        let copied = window_start as usize..window.end;
        let source = self.caches.get(&source).expect("a fork copies from a cache that is held");
        source.assert_window(copied.clone());
        let num_tokens = num_tokens as usize;
        let prefix = source.tokens.get(..num_tokens);
        let tokens = prefix.expect("a fork copies positions that are computed").to_vec();
        let blocks = tokens.len().div_ceil(self.block_tokens);
        let state = source.state_at(num_tokens, self.has_states());
        let kept = source.kept.get_key_value(&num_tokens).map(|(length, state)| (*length, *state));
        let kept = kept.into_iter().collect();
        let window_blocks = copied.collect();
        let cache = FakeCache { blocks, window_blocks, tokens, state, kept, num_pooled: 0 };
        assert!(self.caches.insert(target, cache).is_none(), "{target:?} exists already");
    }

    fn forget(&mut self, Forget { cache, num_tokens }: Forget) {
        let held = self.caches.get_mut(&cache).expect("a length of a cache that is held");
        let kept = held.kept.remove(&(num_tokens as usize));
        assert!(kept.is_some(), "{cache:?} does not keep {num_tokens}");
    }

    fn compute(&mut self, row: &Row, next_token: &mut NextToken, output: &mut StepOutput) {
        let id = row.cache;
        if !self.caches.contains_key(&id) {
            assert_eq!(row.start, 0, "{id:?} is continued but not held");
        }
        let sampled = self.sampled.remove(&id);
        let has_states = self.has_states();
        let start = row.start as usize;
        let end = start + row.input.len();
        let has_windows = 0 < self.window_tokens();
        let (window, block_tokens) = (self.window(start), self.block_tokens);
        let cache = self.caches.entry(id).or_default();
        cache.assert_window(window);
        if has_windows {
            cache.window_blocks.extend(start / block_tokens..end.div_ceil(block_tokens));
        }
        assert!(
            start <= cache.tokens.len(),
            "{id:?} skips positions {}..{start}",
            cache.tokens.len()
        );
        cache.state = cache.state_at(start, has_states);
        cache.kept.retain(|length, _| *length <= start);
        cache.tokens.truncate(start);
        match &row.input {
            Input::Tokens(tokens) => {
                assert!(!tokens.is_empty(), "{id:?} has a row without tokens");
                cache.tokens.extend(tokens);
            }
            Input::Previous => {
                cache.tokens.push(sampled.expect("the row before sampled a token"));
            }
        }
        cache.state = cache.tokens[start..].iter().copied().fold(cache.state, next_state);
        assert_eq!(cache.state, state_after(&cache.tokens), "{id:?} has the states of others");
        if row.keeps {
            assert!(has_states, "{id:?} keeps states that it does not have");
            cache.kept.insert(cache.tokens.len(), cache.state);
        }
        cache.blocks = cache.blocks.max(cache.tokens.len().div_ceil(self.block_tokens));
        if let Some(score) = &row.score {
            assert!(score.targets.len() <= row.input.len(), "{id:?} scores more than it computes");
            let logprob = |(idx, target): (usize, &TokenId)| {
                pseudo_logprob(&cache.tokens[..=start + idx], *target, score.num_top)
            };
            let logprobs = score.targets.iter().enumerate().map(logprob).collect();
            output.scored.push(Scored { cache: id, start: row.start + 1, logprobs });
        }
        if let Some(embed) = row.embed {
            output.embedded.extend(cache.embed(row, embed, next_token));
        }
        if let Some(sampling) = &row.sample {
            let token = next_token(&cache.tokens, sampling);
            let logprob = sampling.logprobs.map(|num| pseudo_logprob(&cache.tokens, token, num));
            let token = (token != NOT_A_NUMBER).then_some(token);
            self.sampled.insert(id, token.unwrap_or_default());
            output.sampled.push(Sampled { cache: id, token, logprob });
        }
    }

    fn check_memory(&self) {
        let demand = self.demand();
        let holds = self.capacity.as_ref().is_none_or(|capacity| capacity.holds(demand));
        assert!(holds, "{demand:?} exceeds {:?}", self.capacity);
    }
}

impl FakeCache {
    /// Panics if layers with windows do not hold these blocks.
    fn assert_window(&self, mut window: Range<usize>) {
        let (num_tokens, held) = (self.tokens.len(), &self.window_blocks);
        let is_held = window.all(|block| held.contains(&block));
        assert!(is_held, "of a cache of {num_tokens} tokens only the blocks {held:?} are held");
    }

    /// Returns the states at a length at which the cache is cut or copied. Without states, what
    /// they would be is computed.
    fn state_at(&self, num_tokens: usize, has_states: bool) -> u64 {
        if !has_states || num_tokens == 0 {
            return state_after(&self.tokens[..num_tokens]);
        }
        if num_tokens == self.tokens.len() {
            return self.state;
        }
        *self.kept.get(&num_tokens).unwrap_or_else(|| {
            let (held, kept) = (self.tokens.len(), self.kept.keys());
            panic!("a cache of {held} tokens is cut to {num_tokens}, but keeps {kept:?}")
        })
    }

    fn embed(&mut self, row: &Row, embed: Embed, next_token: &mut NextToken) -> Option<Embedded> {
        let (id, end) = (row.cache, self.tokens.len());
        if embed.pooling == Pooling::Mean {
            self.num_pooled = if row.start == 0 { 0 } else { self.num_pooled };
            assert_eq!(self.num_pooled, row.start as usize, "{id:?} lacks hidden states");
            self.num_pooled = end;
        }
        let is_number = |token| token != NOT_A_NUMBER;
        embed.ends_at(end).then(|| {
            let vector = is_number(next_token(&self.tokens, &Sampling::greedy(embed.num_tokens)))
                .then(|| pseudo_embedding(&self.tokens, embed.pooling));
            Embedded { cache: id, vector }
        })
    }
}

/// Properties of fake ranks.
pub struct FakeOptions {
    /// Number of ranks.
    pub num_ranks: usize,
    /// Transport of each rank, if it is to be known.
    pub transports: Vec<RankTransport>,
    /// Facts that each one reports.
    pub facts: RankFacts,
    /// Time a step takes. With zero, look-ahead never happens.
    pub step_time: Duration,
    /// Time that the group takes to start, and to start again.
    pub start_time: Duration,
    /// Maximum time for a step, as returned by [`RankGroup::step_timeout`].
    pub step_timeout: Duration,
    /// Ranks that compute this token die.
    pub deadly_token: Option<TokenId>,
    /// The model.
    pub next_token: NextToken,
}

impl fmt::Debug for FakeOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeOptions").field("num_ranks", &self.num_ranks).finish_non_exhaustive()
    }
}

impl Default for FakeOptions {
    /// Two instant ranks of a model with 1000 tokens and a context of 4096, and [`pseudo_model`].
    fn default() -> FakeOptions {
        FakeOptions {
            num_ranks: 2,
            transports: Vec::new(),
            facts: fake_facts(1000, 4096),
            step_time: Duration::ZERO,
            start_time: Duration::ZERO,
            step_timeout: Duration::from_secs(60),
            deadly_token: None,
            next_token: pseudo_model(1000),
        }
    }
}

/// Facts of a small imaginary model.
pub fn fake_facts(vocab_size: u32, context_tokens: u32) -> RankFacts {
    RankFacts {
        architecture: "fake".to_owned(),
        num_layers: 2,
        layers: UnitRange { start: 0, end: 2 },
        vocab_size,
        context_tokens,
        heads: UnitRange { start: 0, end: 4 },
        kv_heads: UnitRange { start: 0, end: 2 },
        mlp: UnitRange { start: 0, end: 128 },
        vocab: UnitRange { start: 0, end: vocab_size },
        cache_cost: CacheCost { bytes_per_token: 1024, ..CacheCost::default() },
        weights_bytes: 1 << 20,
        bytes_read: 1 << 20,
        replicated_bytes: 1 << 10,
        load_ms: 1,
        device: "cpu".to_owned(),
        free_bytes: 1 << 30,
        hidden_size: 2,
        content: None,
    }
}

/// What a test does to fake ranks while they run.
#[derive(Debug)]
pub enum FakeOrder {
    /// A rank dies and is replaced.
    Crash {
        /// The rank.
        rank: usize,
    },
    /// A rank dies, and the given number of attempts to replace it fail.
    CrashAgain {
        /// The rank.
        rank: usize,
        /// Number of attempts that fail.
        attempts: u32,
    },
    /// The connection to a rank closes, and nothing else is known of the loss.
    Disconnect {
        /// The rank.
        rank: usize,
    },
    /// Steps begin to take this long.
    Pace(Duration),
    /// Answers are held back …
    Hold,
    /// … until now.
    Resume,
}

/// Orders fake ranks about, from any thread.
#[derive(Clone, Debug, Default)]
pub struct FakeControl {
    reporter: Arc<OnceLock<Reporter<FakeOrder>>>,
}

impl FakeControl {
    /// Takes effect between two steps. Waits for the engine's thread to be there.
    pub fn order(&self, order: FakeOrder) {
        self.reporter.wait().report(order);
    }
}

/// A group of ranks in the engine's own thread.
pub struct FakeRanks {
    options: FakeOptions,
    control: FakeControl,
    caches: FakeCaches,
    epoch: u64,
    /// When the group will stand, if it is forming.
    ready_at: Option<Instant>,
    in_flight: VecDeque<(Instant, StepPlan)>,
    is_held: bool,
    failing_attempts: u32,
    events: VecDeque<GroupEvent>,
}

impl fmt::Debug for FakeRanks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeRanks").field("options", &self.options).finish_non_exhaustive()
    }
}

impl FakeRanks {
    /// Ranks for [`Engine::spawn`](crate::Engine::spawn), and the means to trouble them.
    pub fn new(options: FakeOptions) -> (FakeRanks, FakeControl) {
        let control = FakeControl::default();
        let unlimited = RankCapacity::new(u64::MAX, options.facts.cache_cost);
        let capacity = CacheCapacity::new(vec![unlimited]);
        let ranks = FakeRanks {
            options,
            control: control.clone(),
            caches: FakeCaches::with_capacity(KV_BLOCK_TOKENS as usize, capacity),
            epoch: 0,
            ready_at: None,
            in_flight: VecDeque::new(),
            is_held: false,
            failing_attempts: 0,
            events: VecDeque::new(),
        };
        (ranks, control)
    }

    fn lose(&mut self, rank: usize) {
        self.lose_for(rank, "killed by signal 9", "the end is near");
    }

    fn lose_for(&mut self, rank: usize, message: &str, last_words: &str) {
        self.in_flight.clear();
        self.ready_at = None;
        let failure = Failure {
            rank: Some(rank),
            host: None,
            phase: Phase::Computing,
            message: message.to_owned(),
            last_words: last_words.to_owned(),
        };
        self.events.push_back(GroupEvent::Lost { failure, is_fatal: false });
    }

    fn is_deadly(&self, row: &Row) -> bool {
        match (&row.input, self.options.deadly_token) {
            (Input::Tokens(tokens), Some(deadly)) => tokens.contains(&deadly),
            _ => false,
        }
    }

    fn run_due(&mut self, now: Instant) {
        while !self.is_held && self.in_flight.front().is_some_and(|(due, _)| *due <= now) {
            let (_, plan) = self.in_flight.pop_front().expect("the front was just seen");
            if plan.rows.iter().any(|row| self.is_deadly(row)) {
                return self.lose(1);
            }
            let output = self.caches.execute(&plan, &mut self.options.next_token);
            let timings = output.timings.clone();
            self.events.push_back(GroupEvent::Output(output));
            for rank in 1..self.options.num_ranks {
                self.events.push_back(GroupEvent::Done {
                    rank,
                    step: plan.step,
                    timings: timings.clone(),
                });
            }
        }
    }
}

impl RankGroup for FakeRanks {
    type Report = FakeOrder;

    fn num_ranks(&self) -> usize {
        self.options.num_ranks
    }

    fn transports(&self) -> Vec<RankTransport> {
        self.options.transports.clone()
    }

    fn start(&mut self, reporter: Reporter<FakeOrder>, now: Instant) {
        self.control.reporter.set(reporter).expect("ranks are started once");
        self.recover(now);
    }

    fn handle(&mut self, order: FakeOrder, now: Instant) {
        match order {
            FakeOrder::Crash { rank } => self.lose(rank),
            FakeOrder::CrashAgain { rank, attempts } => {
                self.failing_attempts = attempts;
                self.lose(rank);
            }
            FakeOrder::Disconnect { rank } => {
                self.lose_for(rank, &format!("{CONNECTION_LOST}: closed by the peer"), "");
            }
            FakeOrder::Pace(step_time) => self.options.step_time = step_time,
            FakeOrder::Hold => self.is_held = true,
            FakeOrder::Resume => self.is_held = false,
        }
        self.tick(now);
    }

    fn tick(&mut self, now: Instant) {
        if self.ready_at.is_some_and(|ready_at| ready_at <= now) {
            self.ready_at = None;
            if 0 < self.failing_attempts {
                self.failing_attempts -= 1;
                return self.lose(self.options.num_ranks - 1);
            }
            self.epoch += 1;
            self.caches.clear();
            let facts = vec![self.options.facts.clone(); self.options.num_ranks];
            self.events.push_back(GroupEvent::Ready { epoch: self.epoch, facts });
        }
        self.run_due(now);
    }

    fn deadline(&self) -> Option<Instant> {
        let step = self.in_flight.front().filter(|_| !self.is_held).map(|(due, _)| *due);
        step.into_iter().chain(self.ready_at).min()
    }

    fn step_timeout(&self, _: usize) -> Duration {
        self.options.step_timeout
    }

    fn send(&mut self, plan: StepPlan, now: Instant) {
        let begin = self.in_flight.back().map_or(now, |(due, _)| now.max(*due));
        self.in_flight.push_back((begin + self.options.step_time, plan));
        self.run_due(now);
    }

    fn recover(&mut self, now: Instant) {
        self.in_flight.clear();
        self.ready_at = Some(now + self.options.start_time);
        self.tick(now);
    }

    fn restart(&mut self, now: Instant) {
        self.recover(now);
    }

    fn stop(&mut self) {
        self.in_flight.clear();
    }

    fn next_event(&mut self) -> Option<GroupEvent> {
        self.events.pop_front()
    }
}
