//! What clients send, as they send it: nothing here is trusted yet.
//!
//! A body is read several times, each time for the fields that one part of the server cares
//! about ([`Common`], [`Unsupported`], and [`ChatRequest`] or [`CompletionRequest`]). That keeps
//! the path of a field with a wrong type, which `#[serde(flatten)]` would lose. Fields that no
//! type has are ignored, as the API does.

use std::collections::BTreeMap;
use std::fmt;

use jackalope_protocol::TokenId;
use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// Fields that both endpoints have.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct Common {
    pub(crate) max_tokens: Option<u32>,
    pub(crate) max_completion_tokens: Option<u32>,
    pub(crate) temperature: Option<f64>,
    pub(crate) top_p: Option<f64>,
    pub(crate) top_k: Option<i64>,
    pub(crate) min_p: Option<f64>,
    pub(crate) repetition_penalty: Option<f64>,
    pub(crate) presence_penalty: Option<f64>,
    pub(crate) frequency_penalty: Option<f64>,
    pub(crate) logit_bias: Option<BTreeMap<String, f64>>,
    pub(crate) seed: Option<Seed>,
    pub(crate) n: Option<u32>,
    pub(crate) stop: Option<Strings>,
    pub(crate) stop_token_ids: Option<Vec<TokenId>>,
    pub(crate) ignore_eos: Option<bool>,
    pub(crate) stream: Option<bool>,
    pub(crate) stream_options: Option<StreamOptions>,
    pub(crate) return_token_ids: Option<bool>,
    pub(crate) include_stop_str_in_output: Option<bool>,
    pub(crate) skip_special_tokens: Option<bool>,
    pub(crate) truncate_prompt_tokens: Option<i64>,
    pub(crate) priority: Option<i32>,
    pub(crate) timeout: Option<f64>,
}

/// Fields of `POST /v1/chat/completions` alone.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ChatRequest {
    pub(crate) messages: Option<Vec<Message>>,
    pub(crate) tools: Option<Vec<Tool>>,
    pub(crate) tool_choice: Option<Value>,
    pub(crate) parallel_tool_calls: Option<bool>,
    pub(crate) chat_template_kwargs: Option<Map<String, Value>>,
    pub(crate) enable_thinking: Option<bool>,
    pub(crate) reasoning_effort: Option<String>,
    pub(crate) thinking_token_budget: Option<u32>,
    pub(crate) conversation_id: Option<String>,
    pub(crate) add_generation_prompt: Option<bool>,
    pub(crate) continue_final_message: Option<bool>,
    pub(crate) verbosity: Option<String>,
    pub(crate) logprobs: Option<bool>,
    pub(crate) top_logprobs: Option<u32>,
}

/// Fields of `POST /v1/completions` alone.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct CompletionRequest {
    pub(crate) prompt: Option<Prompts>,
    pub(crate) suffix: Option<String>,
    pub(crate) echo: Option<bool>,
    pub(crate) best_of: Option<u32>,
    pub(crate) logprobs: Option<u32>,
    pub(crate) add_special_tokens: Option<bool>,
}

/// Fields that change the answer and that this server does not have. To ignore them would be to
/// answer another question than the one that was asked.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct Unsupported {
    pub(crate) grammar: Option<Value>,
    pub(crate) modalities: Option<Value>,
    pub(crate) audio: Option<Value>,
    pub(crate) prediction: Option<Value>,
    pub(crate) web_search_options: Option<Value>,
    pub(crate) chat_template: Option<Value>,
    pub(crate) documents: Option<Value>,
    pub(crate) use_beam_search: Option<Value>,
    pub(crate) length_penalty: Option<Value>,
    pub(crate) prompt_logprobs: Option<Value>,
    pub(crate) logits_processors: Option<Value>,
}

/// `stream_options`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub(crate) struct StreamOptions {
    pub(crate) include_usage: Option<bool>,
}

/// Who speaks.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

impl Role {
    /// As it is written.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::Developer => "developer",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}

/// The messages as they are, for the template: it may read fields that the API does not have.
#[derive(Debug, Deserialize)]
pub(crate) struct Messages {
    pub(crate) messages: Vec<Value>,
}

/// One message of a conversation, as far as it is checked.
#[derive(Debug, Deserialize, ToSchema)]
#[expect(
    dead_code,
    reason = "that they have the right type is all there is to know of most fields"
)]
#[serde(expecting = "an object")]
pub(crate) struct Message {
    pub(crate) role: Role,
    pub(crate) content: Option<Content>,
    pub(crate) name: Option<String>,
    pub(crate) tool_calls: Option<Vec<MessageToolCall>>,
    pub(crate) tool_call_id: Option<String>,
    pub(crate) reasoning_content: Option<String>,
}

/// A tool call that an earlier answer contained.
#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "that it has the right form is all there is to know")]
#[serde(expecting = "an object")]
pub(crate) struct MessageToolCall {
    pub(crate) id: Option<String>,
    pub(crate) function: MessageFunction,
}

/// The function of a [`MessageToolCall`].
#[derive(Debug, Deserialize, ToSchema)]
#[expect(dead_code, reason = "that it has the right form is all there is to know")]
#[serde(expecting = "an object")]
pub(crate) struct MessageFunction {
    pub(crate) name: String,
    pub(crate) arguments: Option<Value>,
}

/// A tool that the model may call. The template gets it as it was sent.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub(crate) struct Tool {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) function: Option<ToolFunction>,
}

/// The function of a [`Tool`].
#[derive(Debug, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub(crate) struct ToolFunction {
    pub(crate) name: String,
}

/// The tools as they are, for the template.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Tools {
    pub(crate) tools: Option<Vec<Value>>,
}

/// A message's content.
#[derive(Debug, PartialEq)]
pub(crate) enum Content {
    Text(String),
    Parts(Vec<Part>),
}

/// A part of a message's content.
#[derive(Debug, Deserialize, PartialEq, ToSchema)]
#[serde(expecting = "an object")]
pub(crate) struct Part {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) text: Option<String>,
    pub(crate) refusal: Option<String>,
}

/// A string or a list of strings.
#[derive(Debug, PartialEq)]
pub(crate) struct Strings(pub(crate) Vec<String>);

/// What a completion goes on from.
#[derive(Debug, PartialEq)]
pub(crate) enum Prompts {
    Texts(Vec<String>),
    Tokens(Vec<Vec<TokenId>>),
}

/// Any integer of 64 bits, signed or not.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Seed(pub(crate) u64);

impl<'de> Deserialize<'de> for Seed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Seed, D::Error> {
        struct SeedVisitor;
        impl Visitor<'_> for SeedVisitor {
            type Value = Seed;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an integer of 64 bits")
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Seed, E> {
                Ok(Seed(value))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Seed, E> {
                Ok(Seed(value.cast_unsigned()))
            }
        }
        deserializer.deserialize_any(SeedVisitor)
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Content, D::Error> {
        struct ContentVisitor;
        impl<'de> Visitor<'de> for ContentVisitor {
            type Value = Content;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of parts")
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Content, E> {
                Ok(Content::Text(value.to_owned()))
            }

            fn visit_string<E: de::Error>(self, value: String) -> Result<Content, E> {
                Ok(Content::Text(value))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Content, A::Error> {
                Vec::deserialize(de::value::SeqAccessDeserializer::new(seq)).map(Content::Parts)
            }
        }
        deserializer.deserialize_any(ContentVisitor)
    }
}

impl<'de> Deserialize<'de> for Strings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Strings, D::Error> {
        struct StringsVisitor;
        impl<'de> Visitor<'de> for StringsVisitor {
            type Value = Strings;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of strings")
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Strings, E> {
                Ok(Strings(vec![value.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Strings, A::Error> {
                Vec::deserialize(de::value::SeqAccessDeserializer::new(seq)).map(Strings)
            }
        }
        deserializer.deserialize_any(StringsVisitor)
    }
}

/// One element of a list of prompts: the first one decides what the others must be.
#[derive(Debug)]
enum PromptElement {
    Text(String),
    Token(TokenId),
    Tokens(Vec<TokenId>),
}

impl<'de> Deserialize<'de> for PromptElement {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PromptElement, D::Error> {
        struct ElementVisitor;
        impl<'de> Visitor<'de> for ElementVisitor {
            type Value = PromptElement;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a token id or a list of token ids")
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<PromptElement, E> {
                Ok(PromptElement::Text(value.to_owned()))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<PromptElement, E> {
                let token = TokenId::try_from(value).map_err(|_| {
                    E::invalid_value(de::Unexpected::Unsigned(value), &"a token id")
                })?;
                Ok(PromptElement::Token(token))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<PromptElement, A::Error> {
                Vec::deserialize(de::value::SeqAccessDeserializer::new(seq))
                    .map(PromptElement::Tokens)
            }
        }
        deserializer.deserialize_any(ElementVisitor)
    }
}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Prompts, D::Error> {
        struct PromptsVisitor;
        impl<'de> Visitor<'de> for PromptsVisitor {
            type Value = Prompts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a list of strings, token ids or lists of token ids")
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Prompts, E> {
                Ok(Prompts::Texts(vec![value.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Prompts, A::Error> {
                let mut texts = Vec::new();
                let mut tokens = Vec::new();
                let mut lists = Vec::new();
                while let Some(element) = seq.next_element()? {
                    match element {
                        PromptElement::Text(text) => texts.push(text),
                        PromptElement::Token(token) => tokens.push(token),
                        PromptElement::Tokens(list) => lists.push(list),
                    }
                }
                match (texts.is_empty(), tokens.is_empty(), lists.is_empty()) {
                    (_, true, true) => Ok(Prompts::Texts(texts)),
                    (true, false, true) => Ok(Prompts::Tokens(vec![tokens])),
                    (true, true, false) => Ok(Prompts::Tokens(lists)),
                    _ => Err(de::Error::custom(
                        "a list of prompts must hold only strings, only token ids or only lists of token ids",
                    )),
                }
            }
        }
        deserializer.deserialize_any(PromptsVisitor)
    }
}
