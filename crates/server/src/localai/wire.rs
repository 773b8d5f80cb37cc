//! The messages of LocalAI's service `backend.Backend`, as far as they apply to text models.
//! Numbers and types are those of LocalAI's `backend/backend.proto` (MIT), names are our own.
//! Fields that are not listed are ignored, as protobuf specifies.

use std::collections::HashMap;

/// `HealthMessage`, `MetricsRequest`: no fields are read.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct Empty {}

/// `PredictOptions`: the request for an answer.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct PredictOptions {
    #[prost(string, tag = "1")]
    pub(super) prompt: String,
    /// 0 and -1: a random seed.
    #[prost(int32, tag = "2")]
    pub(super) seed: i32,
    /// Maximum number of tokens to generate; 0 or less: the server's default.
    #[prost(int32, tag = "4")]
    pub(super) tokens: i32,
    #[prost(int32, tag = "5")]
    pub(super) top_k: i32,
    /// Number of recent tokens that count as repeated; 0: the model's default.
    #[prost(int32, tag = "6")]
    pub(super) repeat: i32,
    #[prost(float, tag = "9")]
    pub(super) temperature: f32,
    /// 1 is off; 0: the model's default.
    #[prost(float, tag = "10")]
    pub(super) penalty: f32,
    #[prost(string, repeated, tag = "13")]
    pub(super) stop_prompts: Vec<String>,
    #[prost(bool, tag = "14")]
    pub(super) ignore_eos: bool,
    /// 0 and 1 are off.
    #[prost(float, tag = "15")]
    pub(super) tail_free_sampling_z: f32,
    /// 0 and 1 are off.
    #[prost(float, tag = "16")]
    pub(super) typical_p: f32,
    #[prost(float, tag = "17")]
    pub(super) frequency_penalty: f32,
    #[prost(float, tag = "18")]
    pub(super) presence_penalty: f32,
    /// 0 is off.
    #[prost(int32, tag = "19")]
    pub(super) mirostat: i32,
    /// A JSON object from token ids to numbers.
    #[prost(string, tag = "23")]
    pub(super) logit_bias: String,
    /// A grammar in llama.cpp's notation.
    #[prost(string, tag = "29")]
    pub(super) grammar: String,
    /// 0 is off.
    #[prost(float, tag = "32")]
    pub(super) top_p: f32,
    #[prost(int32, repeated, tag = "35")]
    pub(super) embedding_tokens: Vec<i32>,
    /// The text of an embedding.
    #[prost(string, tag = "36")]
    pub(super) embeddings: String,
    #[prost(string, tag = "40")]
    pub(super) negative_prompt: String,
    #[prost(string, repeated, tag = "42")]
    pub(super) images: Vec<String>,
    #[prost(bool, tag = "43")]
    pub(super) use_tokenizer_template: bool,
    #[prost(message, repeated, tag = "44")]
    pub(super) messages: Vec<Message>,
    #[prost(string, repeated, tag = "45")]
    pub(super) videos: Vec<String>,
    #[prost(string, repeated, tag = "46")]
    pub(super) audios: Vec<String>,
    /// A JSON list in the form of OpenAI's chat completions.
    #[prost(string, tag = "48")]
    pub(super) tools: String,
    /// A word, or JSON in the form of OpenAI's chat completions.
    #[prost(string, tag = "49")]
    pub(super) tool_choice: String,
    #[prost(int32, tag = "50")]
    pub(super) logprobs: i32,
    #[prost(int32, tag = "51")]
    pub(super) top_logprobs: i32,
    /// `enable_thinking`, `reasoning_effort`, `chat_template_kwargs`.
    #[prost(map = "string, string", tag = "52")]
    pub(super) metadata: HashMap<String, String>,
    #[prost(float, tag = "53")]
    pub(super) min_p: f32,
    /// The model's name in `LoadModel`.
    #[prost(string, tag = "54")]
    pub(super) model_identity: String,
}

/// `Message`: a message of a conversation.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Message {
    #[prost(string, tag = "1")]
    pub(super) role: String,
    #[prost(string, tag = "2")]
    pub(super) content: String,
    #[prost(string, tag = "3")]
    pub(super) name: String,
    #[prost(string, tag = "4")]
    pub(super) tool_call_id: String,
    #[prost(string, tag = "5")]
    pub(super) reasoning_content: String,
    /// A JSON list in the form of OpenAI's chat completions.
    #[prost(string, tag = "6")]
    pub(super) tool_calls: String,
}

/// `Reply`: an answer, or a part of one.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Reply {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) message: Vec<u8>,
    /// Number of tokens sampled.
    #[prost(int32, tag = "2")]
    pub(super) tokens: i32,
    #[prost(int32, tag = "3")]
    pub(super) prompt_tokens: i32,
    /// Prefill time in milliseconds.
    #[prost(double, tag = "4")]
    pub(super) timing_prompt_processing: f64,
    /// Decode time in milliseconds.
    #[prost(double, tag = "5")]
    pub(super) timing_token_generation: f64,
    /// JSON in the form of OpenAI's chat completions.
    #[prost(bytes = "vec", tag = "7")]
    pub(super) logprobs: Vec<u8>,
    #[prost(message, repeated, tag = "8")]
    pub(super) chat_deltas: Vec<ChatDelta>,
}

/// `ChatDelta`: new output of an answer.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ChatDelta {
    #[prost(string, tag = "1")]
    pub(super) content: String,
    #[prost(string, tag = "2")]
    pub(super) reasoning_content: String,
    #[prost(message, repeated, tag = "3")]
    pub(super) tool_calls: Vec<ToolCallDelta>,
}

/// `ToolCallDelta`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ToolCallDelta {
    #[prost(int32, tag = "1")]
    pub(super) index: i32,
    #[prost(string, tag = "2")]
    pub(super) id: String,
    #[prost(string, tag = "3")]
    pub(super) name: String,
    /// A part of a JSON object.
    #[prost(string, tag = "4")]
    pub(super) arguments: String,
}

/// `ModelOptions`: the model to load. Most fields are for other backends.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ModelOptions {
    #[prost(string, tag = "1")]
    pub(super) model: String,
    /// Path that the model would have in LocalAI's model directory.
    #[prost(string, tag = "21")]
    pub(super) model_file: String,
    #[prost(string, tag = "36")]
    pub(super) lora_adapter: String,
    #[prost(string, repeated, tag = "60")]
    pub(super) lora_adapters: Vec<String>,
    /// `key:value`.
    #[prost(string, repeated, tag = "62")]
    pub(super) options: Vec<String>,
}

/// `Result`: whether a call succeeded.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Outcome {
    #[prost(string, tag = "1")]
    pub(super) message: String,
    #[prost(bool, tag = "2")]
    pub(super) success: bool,
}

/// `EmbeddingResult`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct EmbeddingResult {
    #[prost(float, repeated, tag = "1")]
    pub(super) embeddings: Vec<f32>,
    /// Number of vectors in `embeddings`.
    #[prost(int32, tag = "2")]
    pub(super) tokens: i32,
    /// Number of elements per vector.
    #[prost(int32, tag = "3")]
    pub(super) dim: i32,
    #[prost(int32, tag = "4")]
    pub(super) prompt_tokens: i32,
    #[prost(enumeration = "EmbeddingLayout", tag = "5")]
    pub(super) layout: i32,
}

/// `EmbeddingLayout`.
#[derive(Clone, Copy, Debug, Eq, PartialEq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum EmbeddingLayout {
    Unspecified = 0,
    /// One vector for the whole text.
    Final = 1,
    PerToken = 2,
}

/// `TokenizationResponse`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TokenizationResponse {
    #[prost(int32, tag = "1")]
    pub(super) length: i32,
    #[prost(int32, repeated, tag = "2")]
    pub(super) tokens: Vec<i32>,
}

/// `DetokenizeRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct DetokenizeRequest {
    #[prost(int32, repeated, tag = "1")]
    pub(super) tokens: Vec<i32>,
}

/// `DetokenizeResponse`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct DetokenizeResponse {
    #[prost(string, tag = "1")]
    pub(super) content: String,
}

/// `ModelMetadataResponse`, without the markers of tool calls: LocalAI asks for those where it has to
/// parse calls itself, and here they arrive parsed.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ModelMetadataResponse {
    #[prost(bool, tag = "1")]
    pub(super) supports_thinking: bool,
    /// A short conversation as the model's template renders it; empty without a template.
    #[prost(string, tag = "2")]
    pub(super) rendered_template: String,
}

/// `StatusResponse`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct StatusResponse {
    #[prost(enumeration = "BackendState", tag = "1")]
    pub(super) state: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) memory: Option<MemoryUsage>,
}

/// `StatusResponse.State`.
#[derive(Clone, Copy, Debug, Eq, PartialEq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum BackendState {
    Uninitialized = 0,
    Busy = 1,
    Ready = 2,
    Error = -1,
}

/// `MemoryUsageData`, in bytes.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct MemoryUsage {
    #[prost(uint64, tag = "1")]
    pub(super) total: u64,
    /// Memory of each rank.
    #[prost(map = "string, uint64", tag = "2")]
    pub(super) breakdown: HashMap<String, u64>,
}

/// `MetricsResponse`, without the fields about slots, which do not exist here.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct MetricsResponse {
    #[prost(float, tag = "3")]
    pub(super) tokens_per_second: f32,
    #[prost(int32, tag = "4")]
    pub(super) tokens_generated: i32,
    #[prost(int32, tag = "5")]
    pub(super) prompt_tokens_processed: i32,
}
