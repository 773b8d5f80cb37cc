//! All limits that the server sets on what a client may request, in one place.

use std::time::Duration;

/// Limits on what a client may request, and on how long it may keep the server waiting.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ServerLimits {
    /// Maximum size of a request body in bytes. A larger body is rejected, and never buffered
    /// beyond this size.
    pub body_bytes: usize,
    /// Maximum memory of large bodies that are arriving, in bytes; at least one body of the maximum size
    /// is read.
    pub arriving_bytes: usize,
    /// Maximum number of bytes of an oversized body that are read and discarded, so that a client
    /// which sends everything before it reads still receives the error.
    pub discard_bytes: u64,
    /// Time for the whole body to arrive.
    pub body_timeout: Duration,
    /// Time for the head of a request to arrive, counted from the end of the one before it.
    pub head_timeout: Duration,
    /// Time for a TLS handshake.
    pub handshake_timeout: Duration,
    /// Time that a client may leave its socket full while there is data to send.
    pub write_timeout: Duration,
    /// Time that open connections have to end by themselves at shutdown.
    pub shutdown_timeout: Duration,
    /// Time from the start of a request to the last token of its answer; unlimited if absent.
    pub request_timeout: Option<Duration>,
    /// Default of `max_tokens` for requests without one; the endpoint's own default if absent.
    pub default_max_tokens: Option<u32>,
    /// Silence on a stream after which a keep-alive is sent, so that no proxy drops the connection.
    pub keep_alive: Duration,
    /// Maximum number of open connections without a complete request, of which the oldest are
    /// evicted for new ones; also the maximum number of requests answered at the same time.
    pub connections: usize,
    /// Maximum number of open generation requests, streaming or not.
    pub open_streams: usize,
    /// Maximum time that a request waits for a model that is loading.
    pub load_wait: Duration,
    /// Whether a name that no model has is always refused, also one of another provider's models.
    pub strict_model_names: bool,
    /// Maximum number of requests that wait for loading models, over all models.
    pub load_waiting: usize,
    /// Maximum number of requests that are rendered and tokenised at once, without large ones.
    pub prompt_workers: usize,
    /// Size of a body in bytes above which a request counts as large.
    pub large_prompt_bytes: usize,
    /// Maximum number of large requests that are rendered and tokenised at once.
    pub large_prompt_workers: usize,
    /// Maximum of `n` and of `best_of`.
    pub choices: u32,
    /// Maximum number of prompts of a completion request.
    pub prompts: usize,
    /// Maximum number of messages of a conversation.
    pub messages: usize,
    /// Maximum number of tools of a request.
    pub tools: usize,
    /// Maximum number of texts of an embedding request.
    pub embedding_inputs: usize,
    /// Maximum number of texts of an embedding request that are submitted to the engine at once.
    pub embeddings_at_once: usize,
    /// Maximum number of responses kept for later requests; the least recently used is dropped
    /// first.
    pub kept_responses: usize,
    /// Maximum memory of kept responses, in bytes.
    pub kept_response_bytes: usize,
    /// Maximum number of stop strings, and of stop tokens.
    pub stops: usize,
    /// Maximum length of a stop string, in bytes.
    pub stop_bytes: usize,
    /// Maximum of `top_logprobs` of a chat and of `logprobs` of a completion.
    pub top_logprobs: u8,
    /// Maximum number of entries of `logit_bias`.
    pub logit_bias: usize,
}

impl Default for ServerLimits {
    fn default() -> ServerLimits {
        ServerLimits {
            body_bytes: 16 << 20,
            arriving_bytes: 512 << 20,
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
            strict_model_names: false,
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
