//! The messages of LocalAI's service `backend.Backend`, as far as they apply to text models.
//! Numbers and types are those of LocalAI's `backend/backend.proto` (MIT), names are our own.
//! Fields that are not listed are ignored, as protobuf specifies.

use std::collections::HashMap;

/// Internal names of fields, each with the name that the protocol has for the field.
pub(crate) const NAMES: [(&str, &str); 18] = [
    ("prompt", "Prompt"),
    ("messages", "Messages"),
    ("tools", "Tools"),
    ("tool_choice", "ToolChoice"),
    ("max_tokens", "Tokens"),
    ("temperature", "Temperature"),
    ("top_p", "TopP"),
    ("top_k", "TopK"),
    ("min_p", "MinP"),
    ("repetition_penalty", "Penalty"),
    ("presence_penalty", "PresencePenalty"),
    ("frequency_penalty", "FrequencyPenalty"),
    ("logit_bias", "LogitBias"),
    ("stop", "StopPrompts"),
    ("top_logprobs", "TopLogprobs"),
    ("embeddings", "Embeddings"),
    ("embedding_tokens", "EmbeddingTokens"),
    ("chat_template_kwargs", "Metadata.chat_template_kwargs"),
];

/// `HealthMessage`, `MetricsRequest`: no fields are read.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct Empty {}

/// `PredictOptions`: the request for an answer.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PredictOptions {
    #[prost(string, tag = "1")]
    pub(crate) prompt: String,
    /// Seed of the sampling; 0 and -1: a random one.
    #[prost(int32, tag = "2")]
    pub(crate) seed: i32,
    /// Maximum number of tokens to generate; 0 or less: the server's default.
    #[prost(int32, tag = "4")]
    pub(crate) tokens: i32,
    #[prost(int32, tag = "5")]
    pub(crate) top_k: i32,
    /// Number of recent tokens that count as repeated; 0: the model's default.
    #[prost(int32, tag = "6")]
    pub(crate) repeat: i32,
    #[prost(float, tag = "9")]
    pub(crate) temperature: f32,
    /// Repetition penalty; 1 turns it off, 0 means the model's default.
    #[prost(float, tag = "10")]
    pub(crate) penalty: f32,
    #[prost(string, repeated, tag = "13")]
    pub(crate) stop_prompts: Vec<String>,
    #[prost(bool, tag = "14")]
    pub(crate) ignore_eos: bool,
    /// Tail-free sampling, which is refused; 0 and 1 are off.
    #[prost(float, tag = "15")]
    pub(crate) tail_free_sampling_z: f32,
    /// Typical sampling, which is refused; 0 and 1 are off.
    #[prost(float, tag = "16")]
    pub(crate) typical_p: f32,
    #[prost(float, tag = "17")]
    pub(crate) frequency_penalty: f32,
    #[prost(float, tag = "18")]
    pub(crate) presence_penalty: f32,
    /// Mirostat sampling, which is refused; 0 is off.
    #[prost(int32, tag = "19")]
    pub(crate) mirostat: i32,
    /// Values added to the logits of tokens: a JSON object from token ids to numbers.
    #[prost(string, tag = "23")]
    pub(crate) logit_bias: String,
    /// A grammar in llama.cpp's notation.
    #[prost(string, tag = "29")]
    pub(crate) grammar: String,
    /// Sample from the most likely tokens whose probabilities add up to this value; 0 is off.
    #[prost(float, tag = "32")]
    pub(crate) top_p: f32,
    #[prost(int32, repeated, tag = "35")]
    pub(crate) embedding_tokens: Vec<i32>,
    /// Text to embed.
    #[prost(string, tag = "36")]
    pub(crate) embeddings: String,
    #[prost(string, tag = "40")]
    pub(crate) negative_prompt: String,
    #[prost(string, repeated, tag = "42")]
    pub(crate) images: Vec<String>,
    #[prost(bool, tag = "43")]
    pub(crate) use_tokenizer_template: bool,
    #[prost(message, repeated, tag = "44")]
    pub(crate) messages: Vec<Message>,
    #[prost(string, repeated, tag = "45")]
    pub(crate) videos: Vec<String>,
    #[prost(string, repeated, tag = "46")]
    pub(crate) audios: Vec<String>,
    /// Tools: a JSON list in the form of OpenAI's chat completions.
    #[prost(string, tag = "48")]
    pub(crate) tools: String,
    /// Tool choice: a word, or JSON in the form of OpenAI's chat completions.
    #[prost(string, tag = "49")]
    pub(crate) tool_choice: String,
    #[prost(int32, tag = "50")]
    pub(crate) logprobs: i32,
    #[prost(int32, tag = "51")]
    pub(crate) top_logprobs: i32,
    /// Parameters for the chat template: `enable_thinking`, `reasoning_effort`,
    /// `chat_template_kwargs`.
    #[prost(map = "string, string", tag = "52")]
    pub(crate) metadata: HashMap<String, String>,
    #[prost(float, tag = "53")]
    pub(crate) min_p: f32,
    /// The model's name in `LoadModel`.
    #[prost(string, tag = "54")]
    pub(crate) model_identity: String,
}

/// `Message`: a message of a conversation.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Message {
    #[prost(string, tag = "1")]
    pub(crate) role: String,
    #[prost(string, tag = "2")]
    pub(crate) content: String,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
    #[prost(string, tag = "4")]
    pub(crate) tool_call_id: String,
    #[prost(string, tag = "5")]
    pub(crate) reasoning_content: String,
    /// Tool calls: a JSON list in the form of OpenAI's chat completions.
    #[prost(string, tag = "6")]
    pub(crate) tool_calls: String,
}

/// `Reply`: an answer, or a part of one.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Reply {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) message: Vec<u8>,
    /// Number of tokens sampled.
    #[prost(int32, tag = "2")]
    pub(crate) tokens: i32,
    #[prost(int32, tag = "3")]
    pub(crate) prompt_tokens: i32,
    /// Prefill time in milliseconds.
    #[prost(double, tag = "4")]
    pub(crate) timing_prompt_processing: f64,
    /// Decode time in milliseconds.
    #[prost(double, tag = "5")]
    pub(crate) timing_token_generation: f64,
    /// Log-probabilities: JSON in the form of OpenAI's chat completions.
    #[prost(bytes = "vec", tag = "7")]
    pub(crate) logprobs: Vec<u8>,
    #[prost(message, repeated, tag = "8")]
    pub(crate) chat_deltas: Vec<ChatDelta>,
}

/// `ChatDelta`: new output of an answer.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ChatDelta {
    #[prost(string, tag = "1")]
    pub(crate) content: String,
    #[prost(string, tag = "2")]
    pub(crate) reasoning_content: String,
    #[prost(message, repeated, tag = "3")]
    pub(crate) tool_calls: Vec<ToolCallDelta>,
}

/// `ToolCallDelta`: the next part of a tool call.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ToolCallDelta {
    #[prost(int32, tag = "1")]
    pub(crate) index: i32,
    #[prost(string, tag = "2")]
    pub(crate) id: String,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
    /// The next part of the arguments, which together are a JSON object.
    #[prost(string, tag = "4")]
    pub(crate) arguments: String,
}

/// `ModelOptions`: the model to load. Most fields are for other backends.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ModelOptions {
    #[prost(string, tag = "1")]
    pub(crate) model: String,
    /// Path that the model would have in LocalAI's model directory.
    #[prost(string, tag = "21")]
    pub(crate) model_file: String,
    #[prost(string, tag = "36")]
    pub(crate) lora_adapter: String,
    #[prost(string, repeated, tag = "60")]
    pub(crate) lora_adapters: Vec<String>,
    /// Options of the model, each as `key:value`.
    #[prost(string, repeated, tag = "62")]
    pub(crate) options: Vec<String>,
}

/// `Result`: whether a call succeeded.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Outcome {
    #[prost(string, tag = "1")]
    pub(crate) message: String,
    #[prost(bool, tag = "2")]
    pub(crate) success: bool,
}

/// `EmbeddingResult`: the vectors of a text.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct EmbeddingResult {
    #[prost(float, repeated, tag = "1")]
    pub(crate) embeddings: Vec<f32>,
    /// Number of vectors in `embeddings`.
    #[prost(int32, tag = "2")]
    pub(crate) tokens: i32,
    /// Number of elements per vector.
    #[prost(int32, tag = "3")]
    pub(crate) dim: i32,
    #[prost(int32, tag = "4")]
    pub(crate) prompt_tokens: i32,
    #[prost(enumeration = "EmbeddingLayout", tag = "5")]
    pub(crate) layout: i32,
}

/// `EmbeddingLayout`: what the vectors of an embedding stand for.
#[derive(Clone, Copy, Debug, Eq, PartialEq, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum EmbeddingLayout {
    Unspecified = 0,
    /// One vector for the whole text.
    Final = 1,
    PerToken = 2,
}

/// `TokenizationResponse`: the tokens of a prompt.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TokenizationResponse {
    #[prost(int32, tag = "1")]
    pub(crate) length: i32,
    #[prost(int32, repeated, tag = "2")]
    pub(crate) tokens: Vec<i32>,
}

/// `DetokenizeRequest`: the tokens to turn into text.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct DetokenizeRequest {
    #[prost(int32, repeated, tag = "1")]
    pub(crate) tokens: Vec<i32>,
}

/// `DetokenizeResponse`: the text of the tokens.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct DetokenizeResponse {
    #[prost(string, tag = "1")]
    pub(crate) content: String,
}

/// `ModelMetadataResponse`, without the markers of tool calls: LocalAI asks for those where it has to
/// parse calls itself, and here they arrive parsed.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ModelMetadataResponse {
    #[prost(bool, tag = "1")]
    pub(crate) supports_thinking: bool,
    /// A short conversation as the model's template renders it; empty without a template.
    #[prost(string, tag = "2")]
    pub(crate) rendered_template: String,
}

/// `StatusResponse`: the state of the backend and its memory.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct StatusResponse {
    #[prost(enumeration = "BackendState", tag = "1")]
    pub(crate) state: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) memory: Option<MemoryUsage>,
}

/// `StatusResponse.State`: the state of the backend.
#[derive(Clone, Copy, Debug, Eq, PartialEq, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum BackendState {
    Uninitialized = 0,
    Busy = 1,
    Ready = 2,
    Error = -1,
}

/// `MemoryUsageData`: memory that is used, in bytes.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct MemoryUsage {
    #[prost(uint64, tag = "1")]
    pub(crate) total: u64,
    /// Memory of each rank's arrays in bytes, by `rank N`.
    #[prost(map = "string, uint64", tag = "2")]
    pub(crate) breakdown: HashMap<String, u64>,
}

/// `MetricsResponse`, without the fields about slots, which do not exist here.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct MetricsResponse {
    #[prost(float, tag = "3")]
    pub(crate) tokens_per_second: f32,
    #[prost(int32, tag = "4")]
    pub(crate) tokens_generated: i32,
    #[prost(int32, tag = "5")]
    pub(crate) prompt_tokens_processed: i32,
}
