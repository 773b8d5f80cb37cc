//! What a caller asks for. Everything past [`Request::new`] may rely on it.

use std::hash::{BuildHasher, RandomState};

use jackalope_protocol::{Mask, Pooling, Sampling, TokenId};
use thiserror::Error;

use crate::guide::{Guide, TokenMask};

/// Longest list of alternatives reported beside a token.
pub const LOGPROBS_MAX: u8 = 20;
/// Longest `logit_bias`.
pub const LOGIT_BIAS_MAX: usize = 1024;
/// Longest list of tokens that are never drawn.
pub const BANNED_TOKENS_MAX: usize = 4096;
/// Longest list of stop tokens.
pub const STOP_TOKENS_MAX: usize = 64;

/// Names a request for as long as the engine lives. Younger requests have larger ids.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct RequestId(pub u64);

/// Names who asks, an API key for example: an opaque number that whoever submits chooses.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct TenantId(pub u32);

/// Requests start from computed prefixes of their own scope only: otherwise `cached_tokens` and the
/// time to the first token reveal what others have sent. An opaque number that the caller chooses.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct CacheScope(pub u128);

/// What a caller wants, unchecked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestOptions {
    /// The tokens to continue.
    pub prompt: Vec<TokenId>,
    /// Most tokens to draw; without it as many as the context has room for. 0 computes the
    /// prompt's log-probabilities only.
    pub max_tokens: Option<u32>,
    /// How tokens are drawn.
    pub sampling: SamplingOptions,
    /// Drawing one of these ends the generation, besides the model's own end tokens.
    pub stop_tokens: Vec<TokenId>,
    /// Goes on past the model's own end tokens.
    pub ignore_eos: bool,
    /// Tokens that end the generation are not drawn before so many were, unless nothing else may be.
    pub min_tokens: u32,
    /// The only tokens that are drawn, if present.
    pub allowed_tokens: Option<Vec<TokenId>>,
    /// Tokens that are never drawn.
    pub banned_tokens: Vec<TokenId>,
    /// `Some(n)` reports each drawn token's log-probability and the `n` best alternatives.
    pub logprobs: Option<u8>,
    /// `Some(n)` reports the same for every prompt token from the second on.
    pub prompt_logprobs: Option<u8>,
    /// Plans no token before the last one is known to the brain. Costs speed; wanted where
    /// something has to look at each token before the next is drawn.
    pub stepwise: bool,
    /// Asks for the prompt's embedding instead of tokens.
    pub embed: Option<Pooling>,
    /// Lower values are handled earlier, as in vLLM.
    pub priority: i32,
    /// Who asks. Tenants that wait take turns; requests without one are one tenant together.
    pub tenant: Option<TenantId>,
    /// Whose computed prefixes it may start from.
    pub cache_scope: CacheScope,
}

/// How tokens are drawn, unchecked. See [`Sampling`] for the meaning of each number.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingOptions {
    /// 0 means greedy.
    pub temperature: f32,
    /// Nucleus mass; 1 is off.
    pub top_p: f32,
    /// Number of best tokens kept; 0 is off.
    pub top_k: u32,
    /// Least probability relative to the best token's; 0 is off.
    pub min_p: f32,
    /// 1 is off.
    pub repetition_penalty: f32,
    /// Tokens looked back on by `repetition_penalty`; 0 means all.
    pub repetition_context: u32,
    /// 0 is off.
    pub presence_penalty: f32,
    /// 0 is off.
    pub frequency_penalty: f32,
    /// Added to single logits.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// The same seed gives the same tokens, whatever else runs. Drawn by the engine if absent.
    pub seed: Option<u64>,
}

impl Default for SamplingOptions {
    fn default() -> SamplingOptions {
        SamplingOptions {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            repetition_context: 0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: None,
        }
    }
}

impl SamplingOptions {
    /// The best token, nothing else.
    pub fn greedy() -> SamplingOptions {
        SamplingOptions { temperature: 0.0, ..SamplingOptions::default() }
    }
}

/// What the loaded model and the configuration allow.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Longest sequence, prompt and output together, in tokens.
    pub context_tokens: u32,
    /// Longest prompt, in tokens.
    pub max_prompt_tokens: u32,
    /// Tokens are below this.
    pub vocab_size: u32,
    /// The model's own end tokens.
    pub eos_tokens: Vec<TokenId>,
}

/// Why a request is impossible. `parameter` is the word of the request's options.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum Rejected {
    /// Nothing to continue.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// The prompt leaves no room in the context.
    #[error(
        "the prompt of {prompt_tokens} tokens does not fit the context of {context_tokens} tokens"
    )]
    TooLong {
        /// Length of the prompt.
        prompt_tokens: usize,
        /// Most the sequence may have, output included.
        context_tokens: u32,
    },
    /// The prompt is longer than the configuration allows.
    #[error("the prompt of {prompt_tokens} tokens exceeds the limit of {max_prompt_tokens} tokens")]
    PromptOverLimit {
        /// Length of the prompt.
        prompt_tokens: usize,
        /// The configured limit.
        max_prompt_tokens: u32,
    },
    /// A token the model does not have.
    #[error("{parameter}: token {token} is outside the vocabulary of {vocab_size}")]
    UnknownToken {
        /// Where it was found.
        parameter: &'static str,
        /// The token.
        token: TokenId,
        /// Tokens are below this.
        vocab_size: u32,
    },
    /// A number outside its range.
    #[error("{parameter}: {value} is not {expected}")]
    BadNumber {
        /// Whose value it is.
        parameter: &'static str,
        /// What was asked for.
        value: f64,
        /// The range, in words.
        expected: &'static str,
    },
    /// No token may be drawn at all.
    #[error("{parameter} leaves no token that may be drawn")]
    NothingAllowed {
        /// What forbids the last one.
        parameter: &'static str,
    },
    /// A list that is too long.
    #[error("{parameter}: {found} entries exceed the limit of {limit}")]
    TooMany {
        /// Whose list it is.
        parameter: &'static str,
        /// Its length.
        found: usize,
        /// The limit.
        limit: usize,
    },
}

/// A request that passed every check. [`Request::new`] is the only way to build one.
#[derive(Debug)]
pub struct Request {
    /// Invariant: never empty, every token below the vocabulary's size.
    prompt: Vec<TokenId>,
    /// Invariant: prompt and output together fit the context.
    max_tokens: u32,
    /// True if the caller named `max_tokens`.
    max_tokens_asked: bool,
    sampling: Sampling,
    /// Invariant: sorted.
    stop_tokens: Vec<TokenId>,
    prompt_logprobs: Option<u8>,
    stepwise: bool,
    /// Invariant: then `max_tokens` is 0.
    embed: Option<Pooling>,
    priority: i32,
    tenant: Option<TenantId>,
    cache_scope: CacheScope,
    min_tokens: u32,
    masks: Masks,
    guide: Option<Box<dyn Guide>>,
}

/// What may be drawn without a guide.
#[derive(Clone, Debug)]
struct Masks {
    /// None if that is everything.
    tokens: Option<TokenMask>,
    from_min_tokens: Mask,
    /// Without tokens that end the generation, unless there are no others.
    before_min_tokens: Mask,
}

impl Request {
    /// Checks a caller's wishes. A `max_tokens` beyond the context is cut to what fits.
    ///
    /// # Errors
    /// [`Rejected`] names the parameter that is at fault.
    pub fn new(mut options: RequestOptions, limits: &Limits) -> Result<Request, Rejected> {
        check_embedding(&mut options)?;
        let num_prompt_tokens = check_prompt(&options, limits)?;
        check_tokens("prompt", options.prompt.iter().copied(), limits)?;
        check_tokens("stop_tokens", options.stop_tokens.iter().copied(), limits)?;
        check_len("stop_tokens", options.stop_tokens.len(), STOP_TOKENS_MAX)?;
        check_alternatives(&options)?;
        check_sampling(&options.sampling, limits)?;

        let room = limits.context_tokens - num_prompt_tokens;
        let mut stop_tokens = options.stop_tokens;
        if !options.ignore_eos {
            stop_tokens.extend(&limits.eos_tokens);
        }
        stop_tokens.sort_unstable();
        stop_tokens.dedup();
        let max_tokens = options.max_tokens.unwrap_or(room).min(room);
        check_min_tokens(options.min_tokens, max_tokens)?;
        let tokens = token_mask(options.allowed_tokens.as_deref(), &options.banned_tokens, limits)?;
        Ok(Request {
            prompt: options.prompt,
            max_tokens,
            max_tokens_asked: options.max_tokens.is_some(),
            sampling: resolve(options.sampling, num_prompt_tokens, options.logprobs),
            min_tokens: options.min_tokens,
            masks: masks(tokens, &stop_tokens, limits.vocab_size),
            stop_tokens,
            prompt_logprobs: options.prompt_logprobs,
            stepwise: options.stepwise,
            embed: options.embed,
            priority: options.priority,
            tenant: options.tenant,
            cache_scope: options.cache_scope,
            guide: None,
        })
    }

    /// The same request, with somebody to say which tokens may be drawn.
    #[must_use]
    pub fn with_guide(self, guide: Box<dyn Guide>) -> Request {
        Request { guide: Some(guide), ..self }
    }

    /// The guide, before the first token, for whoever follows the output with it.
    pub(crate) fn take_guide(&mut self) -> Option<Box<dyn Guide>> {
        self.guide.take()
    }

    /// What may be drawn beside what a guide says; none if that is everything.
    pub(crate) fn token_mask(&self) -> Option<&TokenMask> {
        self.masks.tokens.as_ref()
    }

    /// What may be drawn without a guide.
    pub(crate) fn mask(&self, may_end: bool) -> &Mask {
        if may_end { &self.masks.from_min_tokens } else { &self.masks.before_min_tokens }
    }

    /// Tokens to draw before one that ends the generation.
    pub fn min_tokens(&self) -> u32 {
        self.min_tokens
    }

    /// Tokens that end the generation, in ascending order.
    pub(crate) fn stop_tokens(&self) -> &[TokenId] {
        &self.stop_tokens
    }

    /// The tokens to continue; never empty.
    pub fn prompt(&self) -> &[TokenId] {
        &self.prompt
    }

    /// Most tokens to draw.
    pub fn max_tokens(&self) -> u32 {
        self.max_tokens
    }

    /// How tokens are drawn, seed included.
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// Alternatives wanted beside the prompt's log-probabilities, if those are wanted.
    pub fn prompt_logprobs(&self) -> Option<u8> {
        self.prompt_logprobs
    }

    /// True if no token may be planned before the last one is known.
    pub fn is_stepwise(&self) -> bool {
        self.stepwise
    }

    /// What becomes of the prompt's hidden states, if its embedding is wanted.
    pub fn embed(&self) -> Option<Pooling> {
        self.embed
    }

    /// Lower values are handled earlier.
    pub fn priority(&self) -> i32 {
        self.priority
    }

    /// Whose computed prefixes it may start from.
    pub fn cache_scope(&self) -> CacheScope {
        self.cache_scope
    }

    /// Who asks.
    pub fn tenant(&self) -> Option<TenantId> {
        self.tenant
    }

    /// True if drawing `token` ends the generation.
    pub fn stops_at(&self, token: TokenId) -> bool {
        self.stop_tokens.binary_search(&token).is_ok()
    }

    /// Positions the sequence may come to occupy in a cache.
    pub fn max_cached_tokens(&self) -> u32 {
        // The last token drawn is never computed.
        self.sampling.num_prompt_tokens + self.max_tokens.saturating_sub(1)
    }

    /// Cuts an output whose length the caller left open to what `capacity_tokens` can hold. False
    /// if the request cannot be held even so.
    pub(crate) fn fit(&mut self, capacity_tokens: u64) -> bool {
        let room = capacity_tokens.saturating_sub(u64::from(self.sampling.num_prompt_tokens)) + 1;
        if !self.max_tokens_asked {
            self.max_tokens = self.max_tokens.min(u32::try_from(room).unwrap_or(u32::MAX));
        }
        u64::from(self.max_cached_tokens()) <= capacity_tokens
    }
}

/// An embedding leaves no room for tokens.
fn check_embedding(options: &mut RequestOptions) -> Result<(), Rejected> {
    if options.embed.is_none() {
        return Ok(());
    }
    match options.max_tokens.replace(0) {
        None | Some(0) => Ok(()),
        Some(max_tokens) => Err(Rejected::BadNumber {
            parameter: "max_tokens",
            value: max_tokens.into(),
            expected: "0 where an embedding is wanted",
        }),
    }
}

impl Clone for Request {
    fn clone(&self) -> Request {
        Request {
            prompt: self.prompt.clone(),
            sampling: self.sampling.clone(),
            stop_tokens: self.stop_tokens.clone(),
            masks: self.masks.clone(),
            guide: self.guide.as_ref().map(|guide| guide.clone_boxed()),
            ..*self
        }
    }
}

fn check_min_tokens(min_tokens: u32, max_tokens: u32) -> Result<(), Rejected> {
    if min_tokens <= max_tokens {
        return Ok(());
    }
    let expected = "at most the tokens that may be drawn";
    Err(Rejected::BadNumber { parameter: "min_tokens", value: min_tokens.into(), expected })
}

/// The tokens that may be drawn, unless that is all.
fn token_mask(
    allowed: Option<&[TokenId]>,
    banned: &[TokenId],
    limits: &Limits,
) -> Result<Option<TokenMask>, Rejected> {
    let vocab_size = limits.vocab_size;
    if let Some(allowed) = allowed {
        check_tokens("allowed_tokens", allowed.iter().copied(), limits)?;
        check_len("allowed_tokens", allowed.len(), vocab_size as usize)?;
        if allowed.is_empty() {
            return Err(Rejected::NothingAllowed { parameter: "allowed_tokens" });
        }
    }
    check_tokens("banned_tokens", banned.iter().copied(), limits)?;
    check_len("banned_tokens", banned.len(), BANNED_TOKENS_MAX)?;
    if allowed.is_none() && banned.is_empty() {
        return Ok(None);
    }
    let mut mask = match allowed {
        Some(allowed) => TokenMask::only(allowed, vocab_size),
        None => TokenMask::all(vocab_size),
    };
    banned.iter().for_each(|token| mask.ban(*token));
    match mask.is_empty() {
        true => Err(Rejected::NothingAllowed { parameter: "banned_tokens" }),
        false => Ok(Some(mask)),
    }
}

fn masks(tokens: Option<TokenMask>, stop_tokens: &[TokenId], vocab_size: u32) -> Masks {
    let from_min_tokens = tokens.as_ref().map_or(Mask::All, TokenMask::to_mask);
    let all = tokens.clone().unwrap_or_else(|| TokenMask::all(vocab_size));
    let before_min_tokens = all.without(stop_tokens).to_mask();
    Masks { tokens, from_min_tokens, before_min_tokens }
}

fn check_prompt(options: &RequestOptions, limits: &Limits) -> Result<u32, Rejected> {
    let prompt_tokens = options.prompt.len();
    if prompt_tokens == 0 {
        return Err(Rejected::EmptyPrompt);
    }
    let context_tokens = limits.context_tokens;
    let room_wanted = u64::from(options.max_tokens != Some(0));
    if u64::from(context_tokens) < prompt_tokens as u64 + room_wanted {
        return Err(Rejected::TooLong { prompt_tokens, context_tokens });
    }
    let max_prompt_tokens = limits.max_prompt_tokens;
    if (max_prompt_tokens as usize) < prompt_tokens {
        return Err(Rejected::PromptOverLimit { prompt_tokens, max_prompt_tokens });
    }
    Ok(u32::try_from(prompt_tokens).expect("no longer than the context"))
}

fn check_tokens(
    parameter: &'static str,
    mut tokens: impl Iterator<Item = TokenId>,
    limits: &Limits,
) -> Result<(), Rejected> {
    let vocab_size = limits.vocab_size;
    match tokens.find(|token| vocab_size <= *token) {
        Some(token) => Err(Rejected::UnknownToken { parameter, token, vocab_size }),
        None => Ok(()),
    }
}

fn check_len(parameter: &'static str, found: usize, limit: usize) -> Result<(), Rejected> {
    if limit < found { Err(Rejected::TooMany { parameter, found, limit }) } else { Ok(()) }
}

fn check_alternatives(options: &RequestOptions) -> Result<(), Rejected> {
    let both = [("logprobs", options.logprobs), ("prompt_logprobs", options.prompt_logprobs)];
    for (parameter, num_top) in both {
        if let Some(num_top) = num_top.filter(|num_top| LOGPROBS_MAX < *num_top) {
            let expected = "from 0 to 20";
            return Err(Rejected::BadNumber { parameter, value: num_top.into(), expected });
        }
    }
    Ok(())
}

fn check_sampling(sampling: &SamplingOptions, limits: &Limits) -> Result<(), Rejected> {
    let check = |parameter, value: f32, is_legal: bool, expected| {
        // NaN fails every comparison, infinity every upper bound.
        if is_legal {
            return Ok(());
        }
        Err(Rejected::BadNumber { parameter, value: value.into(), expected })
    };
    let within = |value: f32, low: f32, high: f32| low <= value && value <= high;
    let it = sampling;
    check("temperature", it.temperature, within(it.temperature, 0.0, 100.0), "from 0 to 100")?;
    check("top_p", it.top_p, within(it.top_p, 0.0, 1.0), "from 0 to 1")?;
    check("min_p", it.min_p, within(it.min_p, 0.0, 1.0), "from 0 to 1")?;
    let penalty = it.repetition_penalty;
    let is_legal = 0.0 < penalty && penalty <= 100.0;
    check("repetition_penalty", penalty, is_legal, "above 0 and at most 100")?;
    let penalty = it.presence_penalty;
    check("presence_penalty", penalty, within(penalty, -2.0, 2.0), "from -2 to 2")?;
    let penalty = it.frequency_penalty;
    check("frequency_penalty", penalty, within(penalty, -2.0, 2.0), "from -2 to 2")?;
    check_len("logit_bias", it.logit_bias.len(), LOGIT_BIAS_MAX)?;
    check_tokens("logit_bias", it.logit_bias.iter().map(|(token, _)| *token), limits)?;
    for (_, bias) in &it.logit_bias {
        check("logit_bias", *bias, within(*bias, -100.0, 100.0), "from -100 to 100")?;
    }
    Ok(())
}

fn resolve(sampling: SamplingOptions, num_prompt_tokens: u32, logprobs: Option<u8>) -> Sampling {
    Sampling {
        temperature: sampling.temperature,
        // Callers write 0 for "only the best token", which an arbitrarily small mass means too.
        top_p: sampling.top_p.max(f32::MIN_POSITIVE),
        top_k: sampling.top_k,
        min_p: sampling.min_p,
        repetition_penalty: sampling.repetition_penalty,
        repetition_context: sampling.repetition_context,
        presence_penalty: sampling.presence_penalty,
        frequency_penalty: sampling.frequency_penalty,
        mask: Mask::All,
        logit_bias: sampling.logit_bias,
        seed: sampling.seed.unwrap_or_else(draw_seed),
        num_prompt_tokens,
        logprobs,
    }
}

/// The standard library seeds its hash tables from the system's entropy.
fn draw_seed() -> u64 {
    RandomState::new().hash_one(0u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits { context_tokens: 10, max_prompt_tokens: 8, vocab_size: 50, eos_tokens: vec![2, 99] }
    }

    fn check(change: impl FnOnce(&mut RequestOptions)) -> Result<Request, String> {
        let mut options = RequestOptions { prompt: vec![1, 2, 3], ..RequestOptions::default() };
        change(&mut options);
        Request::new(options, &limits()).map_err(|err| err.to_string())
    }

    #[test]
    fn what_is_impossible_is_refused_by_name() {
        let refused = |change: &dyn Fn(&mut RequestOptions)| check(|it| change(it)).unwrap_err();
        let cases = [
            (refused(&|it| it.prompt.clear()), "the prompt has no tokens"),
            (
                refused(&|it| it.prompt = vec![1; 10]),
                "the prompt of 10 tokens does not fit the context of 10 tokens",
            ),
            (
                refused(&|it| it.prompt = vec![1; 9]),
                "the prompt of 9 tokens exceeds the limit of 8 tokens",
            ),
            (refused(&|it| it.prompt[1] = 50), "prompt: token 50 is outside the vocabulary of 50"),
            (
                refused(&|it| it.stop_tokens = vec![70]),
                "stop_tokens: token 70 is outside the vocabulary of 50",
            ),
            (
                refused(&|it| it.stop_tokens = vec![1; 65]),
                "stop_tokens: 65 entries exceed the limit of 64",
            ),
            (refused(&|it| it.logprobs = Some(21)), "logprobs: 21 is not from 0 to 20"),
            (
                refused(&|it| it.prompt_logprobs = Some(200)),
                "prompt_logprobs: 200 is not from 0 to 20",
            ),
            (
                refused(&|it| it.sampling.temperature = f32::NAN),
                "temperature: NaN is not from 0 to 100",
            ),
            (
                refused(&|it| it.sampling.temperature = f32::INFINITY),
                "temperature: inf is not from 0 to 100",
            ),
            (refused(&|it| it.sampling.temperature = -1.0), "temperature: -1 is not from 0 to 100"),
            (refused(&|it| it.sampling.top_p = 1.5), "top_p: 1.5 is not from 0 to 1"),
            (refused(&|it| it.sampling.min_p = -0.5), "min_p: -0.5 is not from 0 to 1"),
            (
                refused(&|it| it.sampling.repetition_penalty = 0.0),
                "repetition_penalty: 0 is not above 0 and at most 100",
            ),
            (
                refused(&|it| it.sampling.presence_penalty = 3.0),
                "presence_penalty: 3 is not from -2 to 2",
            ),
            (
                refused(&|it| it.sampling.frequency_penalty = -2.5),
                "frequency_penalty: -2.5 is not from -2 to 2",
            ),
            (
                refused(&|it| it.sampling.logit_bias = vec![(50, 1.0)]),
                "logit_bias: token 50 is outside the vocabulary of 50",
            ),
            (
                refused(&|it| it.sampling.logit_bias = vec![(5, 101.0)]),
                "logit_bias: 101 is not from -100 to 100",
            ),
            (
                refused(&|it| it.sampling.logit_bias = vec![(5, 1.0); 1025]),
                "logit_bias: 1025 entries exceed the limit of 1024",
            ),
            (
                refused(&|it| (it.embed, it.max_tokens) = (Some(Pooling::Last), Some(4))),
                "max_tokens: 4 is not 0 where an embedding is wanted",
            ),
        ];
        for (found, expected) in cases {
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn the_output_is_cut_to_the_context() {
        let max_tokens = |asked| check(|it| it.max_tokens = asked).unwrap().max_tokens();
        assert_eq!([max_tokens(None), max_tokens(Some(4)), max_tokens(Some(4000))], [7, 4, 7]);
        let scored = check(|it| (it.max_tokens, it.prompt) = (Some(0), vec![1; 8])).unwrap();
        assert_eq!((scored.max_tokens(), scored.max_cached_tokens()), (0, 8));
        let embedded = check(|it| it.embed = Some(Pooling::Mean)).unwrap();
        assert_eq!((embedded.max_tokens(), embedded.max_cached_tokens()), (0, 3));
    }

    #[test]
    fn an_open_length_is_cut_to_the_memory_and_an_asked_one_is_not() {
        let mut open = check(|_| {}).unwrap();
        assert!(open.fit(5));
        assert_eq!((open.max_tokens(), open.max_cached_tokens()), (3, 5));
        let mut asked = check(|it| it.max_tokens = Some(4)).unwrap();
        assert!(asked.fit(6) && !asked.fit(5));
        assert!(!open.fit(2));
    }

    #[test]
    fn end_tokens_stop_unless_they_are_ignored() {
        let request = check(|it| it.stop_tokens = vec![7, 3]).unwrap();
        assert!([2, 3, 7, 99].iter().all(|token| request.stops_at(*token)));
        let request = check(|it| (it.stop_tokens, it.ignore_eos) = (vec![7], true)).unwrap();
        assert!(request.stops_at(7) && !request.stops_at(2));
    }

    #[test]
    fn a_seed_is_kept_or_drawn() {
        let seed = |seed| check(|it| it.sampling.seed = seed).unwrap().sampling().seed;
        assert_eq!(seed(Some(5)), 5);
        assert_ne!(seed(None), seed(None));
    }
}
