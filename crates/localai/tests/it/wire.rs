//! The client's side of `backend.Backend`: numbers and types as LocalAI's clients have them, written
//! down apart from the server's.

use std::collections::HashMap;

use prost::Message;

/// `PredictOptions`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Ask {
    #[prost(string, tag = "1")]
    pub(crate) prompt: String,
    #[prost(int32, tag = "2")]
    pub(crate) seed: i32,
    #[prost(int32, tag = "3")]
    pub(crate) threads: i32,
    #[prost(int32, tag = "4")]
    pub(crate) tokens: i32,
    #[prost(int32, tag = "5")]
    pub(crate) top_k: i32,
    #[prost(float, tag = "9")]
    pub(crate) temperature: f32,
    #[prost(string, repeated, tag = "13")]
    pub(crate) stop_prompts: Vec<String>,
    #[prost(float, tag = "15")]
    pub(crate) tail_free_sampling_z: f32,
    #[prost(float, tag = "16")]
    pub(crate) typical_p: f32,
    #[prost(int32, tag = "19")]
    pub(crate) mirostat: i32,
    #[prost(string, tag = "23")]
    pub(crate) logit_bias: String,
    #[prost(string, tag = "29")]
    pub(crate) grammar: String,
    #[prost(float, tag = "32")]
    pub(crate) top_p: f32,
    #[prost(string, tag = "36")]
    pub(crate) embeddings: String,
    #[prost(string, repeated, tag = "42")]
    pub(crate) images: Vec<String>,
    #[prost(bool, tag = "43")]
    pub(crate) use_tokenizer_template: bool,
    #[prost(message, repeated, tag = "44")]
    pub(crate) messages: Vec<Said>,
    #[prost(string, tag = "48")]
    pub(crate) tools: String,
    #[prost(string, tag = "49")]
    pub(crate) tool_choice: String,
    #[prost(int32, tag = "50")]
    pub(crate) logprobs: i32,
    #[prost(map = "string, string", tag = "52")]
    pub(crate) metadata: HashMap<String, String>,
    #[prost(string, tag = "54")]
    pub(crate) model_identity: String,
}

/// `Message`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Said {
    #[prost(string, tag = "1")]
    pub(crate) role: String,
    #[prost(string, tag = "2")]
    pub(crate) content: String,
    #[prost(string, tag = "6")]
    pub(crate) tool_calls: String,
}

/// `Reply`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Reply {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) message: Vec<u8>,
    #[prost(int32, tag = "2")]
    pub(crate) tokens: i32,
    #[prost(int32, tag = "3")]
    pub(crate) prompt_tokens: i32,
    #[prost(double, tag = "4")]
    pub(crate) timing_prompt_processing: f64,
    #[prost(double, tag = "5")]
    pub(crate) timing_token_generation: f64,
    #[prost(bytes = "vec", tag = "7")]
    pub(crate) logprobs: Vec<u8>,
    #[prost(message, repeated, tag = "8")]
    pub(crate) chat_deltas: Vec<ChatDelta>,
}

/// `ChatDelta`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ChatDelta {
    #[prost(string, tag = "1")]
    pub(crate) content: String,
    #[prost(string, tag = "2")]
    pub(crate) reasoning_content: String,
    #[prost(message, repeated, tag = "3")]
    pub(crate) tool_calls: Vec<ToolCall>,
}

/// `ToolCallDelta`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ToolCall {
    #[prost(int32, tag = "1")]
    pub(crate) index: i32,
    #[prost(string, tag = "2")]
    pub(crate) id: String,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
    #[prost(string, tag = "4")]
    pub(crate) arguments: String,
}

/// `ModelOptions`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Load {
    #[prost(string, tag = "1")]
    pub(crate) model: String,
    /// Sent by every LocalAI.
    #[prost(int32, tag = "2")]
    pub(crate) context_size: i32,
    #[prost(string, tag = "21")]
    pub(crate) model_file: String,
    #[prost(string, tag = "36")]
    pub(crate) lora_adapter: String,
    #[prost(string, repeated, tag = "62")]
    pub(crate) options: Vec<String>,
}

/// `Result`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Outcome {
    #[prost(string, tag = "1")]
    pub(crate) message: String,
    #[prost(bool, tag = "2")]
    pub(crate) success: bool,
}

/// `EmbeddingResult`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Embedded {
    #[prost(float, repeated, tag = "1")]
    pub(crate) embeddings: Vec<f32>,
    #[prost(int32, tag = "2")]
    pub(crate) tokens: i32,
    #[prost(int32, tag = "3")]
    pub(crate) dim: i32,
    #[prost(int32, tag = "4")]
    pub(crate) prompt_tokens: i32,
    #[prost(int32, tag = "5")]
    pub(crate) layout: i32,
}

/// `TokenizationResponse`, and with only the second field a `DetokenizeRequest` of other numbers.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Tokens {
    #[prost(int32, tag = "1")]
    pub(crate) length: i32,
    #[prost(int32, repeated, tag = "2")]
    pub(crate) tokens: Vec<i32>,
}

/// `DetokenizeRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TokensAlone {
    #[prost(int32, repeated, tag = "1")]
    pub(crate) tokens: Vec<i32>,
}

/// `DetokenizeResponse`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Text {
    #[prost(string, tag = "1")]
    pub(crate) content: String,
}

/// `ModelMetadataResponse`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Metadata {
    #[prost(bool, tag = "1")]
    pub(crate) supports_thinking: bool,
    #[prost(string, tag = "2")]
    pub(crate) rendered_template: String,
}

/// `StatusResponse`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct State {
    #[prost(int32, tag = "1")]
    pub(crate) state: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) memory: Option<Memory>,
}

/// `MemoryUsageData`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Memory {
    #[prost(uint64, tag = "1")]
    pub(crate) total: u64,
    #[prost(map = "string, uint64", tag = "2")]
    pub(crate) breakdown: HashMap<String, u64>,
}

/// `MetricsResponse`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Metrics {
    #[prost(float, tag = "3")]
    pub(crate) tokens_per_second: f32,
    #[prost(int32, tag = "4")]
    pub(crate) tokens_generated: i32,
    #[prost(int32, tag = "5")]
    pub(crate) prompt_tokens_processed: i32,
}

/// What LocalAI sends of its own accord, whoever asks for what.
pub(crate) fn ask() -> Ask {
    Ask { threads: 4, top_p: 0.95, tail_free_sampling_z: 1.0, typical_p: 1.0, ..Ask::default() }
}

/// A message with what stands before it on the wire.
pub(crate) fn framed(message: &impl Message) -> Vec<u8> {
    let mut frame = vec![0];
    frame.extend_from_slice(&(message.encoded_len() as u32).to_be_bytes());
    message.encode(&mut frame).unwrap();
    frame
}

/// The messages of a body.
pub(crate) fn unframed<M: Message + Default>(mut body: &[u8]) -> Vec<M> {
    let mut messages = Vec::new();
    while let Some((prefix, rest)) = body.split_at_checked(5) {
        assert_eq!(prefix[0], 0, "nobody asked for compression");
        let length = u32::from_be_bytes(prefix[1..].try_into().unwrap()) as usize;
        messages.push(M::decode(&rest[..length]).unwrap());
        body = &rest[length..];
    }
    assert!(body.is_empty(), "{} bytes are no message", body.len());
    messages
}

/// A `grpc-message` as it was meant.
pub(crate) fn percent_decoded(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (hex, rest) = part.split_at(2);
        bytes.push(u8::from_str_radix(hex, 16).unwrap());
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).unwrap()
}
