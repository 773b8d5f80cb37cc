//! Every bound that the server sets on what a client may ask for, in one place.

use std::time::Duration;

/// What a client may ask for, and for how long it may keep the server waiting.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ServerLimits {
    /// Longest request body. A longer one is refused before it is stored.
    pub body_bytes: usize,
    /// How much of a body that is too long is read and thrown away, so that a client which sends
    /// first and reads later still gets to see the answer.
    pub discard_bytes: u64,
    /// Time for the whole body to arrive.
    pub body_timeout: Duration,
    /// Time for the head of a request to arrive, counted from the end of the one before it.
    pub head_timeout: Duration,
    /// Time for a TLS handshake.
    pub handshake_timeout: Duration,
    /// Time a client may leave its socket full while there is something to send.
    pub write_timeout: Duration,
    /// Time that open connections get to end by themselves at shutdown.
    pub shutdown_timeout: Duration,
    /// Time for a request to be answered, from its start to its last token; not bounded if absent.
    pub request_timeout: Option<Duration>,
    /// Tokens of an answer whose request does not say: what the endpoint's own rule is if absent.
    pub default_max_tokens: Option<u32>,
    /// Silence on a stream after which a comment is sent, so that nothing in between gives up.
    pub keep_alive: Duration,
    /// Maximum number of open connections without a complete request, of which the oldest are
    /// evicted for new ones; also the maximum number of requests answered at the same time.
    pub connections: usize,
    /// Generation requests that are open at once, streaming or not.
    pub open_streams: usize,
    /// Time that a request waits for a model that is loading.
    pub load_wait: Duration,
    /// Requests that wait for models that are loading, over all of them.
    pub load_waiting: usize,
    /// Requests whose text is turned into tokens at the same time, without the large ones.
    pub prompt_workers: usize,
    /// Bytes of a body above which a request is large.
    pub large_prompt_bytes: usize,
    /// Large requests whose text is turned into tokens at the same time.
    pub large_prompt_workers: usize,
    /// `n`, and `best_of`.
    pub choices: u32,
    /// Prompts of one completion request.
    pub prompts: usize,
    /// Messages of a conversation.
    pub messages: usize,
    /// Tools that a request may offer.
    pub tools: usize,
    /// Texts of one request for embeddings.
    pub embedding_inputs: usize,
    /// Of those, the ones that are with the engine at the same time.
    pub embeddings_at_once: usize,
    /// Responses that are kept for later requests; the least recently used is forgotten first.
    pub kept_responses: usize,
    /// Memory that kept responses take.
    pub kept_response_bytes: usize,
    /// Stop strings, and stop tokens.
    pub stops: usize,
    /// Longest stop string.
    pub stop_bytes: usize,
    /// `top_logprobs` of a chat, `logprobs` of a completion.
    pub top_logprobs: u8,
    /// Entries of `logit_bias`.
    pub logit_bias: usize,
}

impl Default for ServerLimits {
    fn default() -> ServerLimits {
        ServerLimits {
            body_bytes: 16 << 20,
            discard_bytes: 256 << 20,
            body_timeout: Duration::from_secs(60),
            head_timeout: Duration::from_secs(30),
            handshake_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(60),
            shutdown_timeout: Duration::from_secs(1),
            request_timeout: None,
            default_max_tokens: None,
            keep_alive: Duration::from_secs(5),
            connections: 1024,
            open_streams: 256,
            load_wait: Duration::from_secs(120),
            load_waiting: 64,
            prompt_workers: 4,
            large_prompt_bytes: 128 << 10,
            large_prompt_workers: 1,
            choices: 16,
            prompts: 64,
            messages: 4096,
            tools: 128,
            embedding_inputs: 2048,
            embeddings_at_once: 32,
            kept_responses: 1024,
            kept_response_bytes: 64 << 20,
            stops: 16,
            stop_bytes: 1024,
            top_logprobs: 20,
            logit_bias: 1024,
        }
    }
}
