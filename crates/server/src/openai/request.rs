//! Request bodies as clients send them, not yet validated, and their conversion to
//! [`GenerateRequest`].
//!
//! A body is parsed once, and each of these types then reads its own fields from it: `Common`, and
//! [`ChatRequest`] or [`CompletionRequest`]. That keeps the path of a field with a wrong type, which
//! `#[serde(flatten)]` would lose. Fields that no type has are ignored, as OpenAI's API does.

use std::collections::BTreeMap;
use std::fmt;

use jackalope_protocol::TokenId;
use jackalope_serving::error::ApiError;
use jackalope_serving::generate::{
    GenerateRequest, OutputParams, Prompt, RequestParams, SamplingParams, SchedulingParams,
};
use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::wire::{Listed, Seed, Strings, TextOr};

/// Fields of chat completions, completions and responses.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct Common {
    /// Maximum number of tokens to generate. Default: the rest of the context; 16 for
    /// `/v1/completions`.
    pub(crate) max_tokens: Option<u32>,
    /// Maximum number of tokens to generate, reasoning included.
    pub(crate) max_completion_tokens: Option<u32>,
    /// Sampling temperature; 0 always picks the most likely token. Defaults of this and the
    /// following parameters: `generation_config.json` of the checkpoint, else 1.
    #[schema(minimum = 0, maximum = 2)]
    pub(crate) temperature: Option<f64>,
    /// Sample from the most likely tokens whose probabilities add up to this value. Applied at
    /// temperature 1, as in mlx-lm.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub(crate) top_p: Option<f64>,
    /// Sample from the k most likely tokens; 0 or -1 disables.
    pub(crate) top_k: Option<i64>,
    /// Minimum probability of a token, relative to the most likely token.
    #[schema(minimum = 0, maximum = 1)]
    pub(crate) min_p: Option<f64>,
    /// Penalty for tokens that the prompt or the answer already contains; above 1 makes them less
    /// likely.
    #[schema(exclusive_minimum = 0, maximum = 10)]
    pub(crate) repetition_penalty: Option<f64>,
    /// Penalty subtracted from the logits of tokens that the answer already contains. Default: 0.
    #[schema(minimum = -2, maximum = 2)]
    pub(crate) presence_penalty: Option<f64>,
    /// Penalty subtracted for each time that the answer already contains the token. Default: 0.
    #[schema(minimum = -2, maximum = 2)]
    pub(crate) frequency_penalty: Option<f64>,
    /// Values added to the logits of tokens, by token id; -100 bans a token.
    pub(crate) logit_bias: Option<BTreeMap<String, f64>>,
    /// Seed of the sampling. The same seed gives the same text, independent of other requests.
    pub(crate) seed: Option<Seed>,
    /// Number of choices to generate; each has its own seed. Default: 1.
    #[schema(minimum = 1)]
    pub(crate) n: Option<u32>,
    /// Strings that end the answer, also across token boundaries.
    pub(crate) stop: Option<Strings>,
    /// Tokens that end the answer.
    pub(crate) stop_token_ids: Option<Vec<TokenId>>,
    /// Do not end the answer at the model's end-of-sequence tokens. Default: `false`.
    pub(crate) ignore_eos: Option<bool>,
    /// Stream the answer as server-sent events, with comments while the prompt is computed. Default:
    /// `false`.
    pub(crate) stream: Option<bool>,
    /// Options of a stream; only with `stream`.
    pub(crate) stream_options: Option<StreamOptions>,
    /// Add `token_ids` and `prompt_token_ids` to each choice, which responses do not have. Default:
    /// `false`.
    pub(crate) return_token_ids: Option<bool>,
    /// Include the stop string at the end of the text. Default: `false`.
    pub(crate) include_stop_str_in_output: Option<bool>,
    /// Leave special tokens out of the text. With `false`, all but the token that ends the answer
    /// are included. Default: `true`.
    pub(crate) skip_special_tokens: Option<bool>,
    /// Number of tokens of the prompt to keep, from its end; -1 keeps as many as fit. Default: refuse
    /// a prompt that is too long.
    #[schema(minimum = -1)]
    pub(crate) truncate_prompt_tokens: Option<i64>,
    /// Priority; lower values are scheduled earlier, as in vLLM. At best the priority of the key.
    pub(crate) priority: Option<i32>,
    /// Share cached prefixes only with requests that have the same key and the same salt.
    pub(crate) cache_salt: Option<String>,
    /// Maximum time for the whole answer, in seconds; limited by `--request-timeout`.
    #[schema(exclusive_minimum = 0, maximum = 86400)]
    pub(crate) timeout: Option<f64>,
}

impl Common {
    /// Maximum number of tokens to generate, under either name.
    pub(super) fn max_tokens(&self) -> Option<u32> {
        self.max_completion_tokens.or(self.max_tokens)
    }

    /// Whether a stream ends with an event that has the usage.
    pub(super) fn include_usage(&self) -> bool {
        self.stream_options.as_ref().and_then(|it| it.include_usage).unwrap_or(false)
    }

    /// Converts the fields to a request to answer this prompt.
    pub(super) fn into_request(self, prompt: Prompt) -> Result<GenerateRequest, ApiError> {
        let is_stream = self.stream.unwrap_or(false);
        if self.stream_options.is_some() && !is_stream {
            return Err(ApiError::Needs { param: "stream_options", needs: "stream to be true" });
        }
        let params = RequestParams {
            output: OutputParams {
                is_stream,
                return_token_ids: self.return_token_ids.unwrap_or(false),
                include_stop_text: self.include_stop_str_in_output.unwrap_or(false),
                include_special_tokens: self.skip_special_tokens == Some(false),
            },
            scheduling: SchedulingParams {
                priority: self.priority,
                cache_salt: self.cache_salt,
                timeout_seconds: self.timeout,
            },
            truncate_prompt_tokens: self.truncate_prompt_tokens,
            sampling: SamplingParams {
                max_tokens: self.max_completion_tokens.or(self.max_tokens),
                temperature: self.temperature,
                top_p: self.top_p,
                top_k: self.top_k,
                min_p: self.min_p,
                repetition_penalty: self.repetition_penalty,
                presence_penalty: self.presence_penalty,
                frequency_penalty: self.frequency_penalty,
                logit_bias: self.logit_bias.unwrap_or_default(),
                seed: self.seed.map(|Seed(seed)| seed),
                num_choices: self.n,
                stop: self.stop.map_or(Vec::new(), |Strings(stop)| stop),
                stop_token_ids: self.stop_token_ids.unwrap_or_default(),
                ignore_eos: self.ignore_eos.unwrap_or(false),
                ..SamplingParams::default()
            },
        };
        Ok(GenerateRequest { prompt, params })
    }
}

/// Fields of `POST /v1/chat/completions` alone.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ChatRequest {
    /// Messages of the conversation, whose content is a string or parts of type `text`. Image parts
    /// are refused.
    pub(crate) messages: Option<Vec<Message>>,
    /// Functions that the model may call; calls are returned as `tool_calls`. The schemas of tools
    /// with `strict` are enforced by constrained decoding.
    pub(crate) tools: Option<Vec<Tool>>,
    /// `none`, `auto`, `required` or a named function; enforced by constrained decoding.
    pub(crate) tool_choice: Option<Value>,
    /// Allow several tool calls in one answer. With `false`, the first call ends the answer. Default:
    /// `true`.
    pub(crate) parallel_tool_calls: Option<bool>,
    /// Passed to the chat template.
    pub(crate) chat_template_kwargs: Option<Map<String, Value>>,
    /// Passed to the chat template.
    pub(crate) enable_thinking: Option<bool>,
    /// Passed to the chat template.
    pub(crate) reasoning_effort: Option<String>,
    /// Maximum number of reasoning tokens; the reasoning is then closed.
    pub(crate) thinking_token_budget: Option<u32>,
    /// Id of the conversation, returned in the answer. Default: a new id, unless the answer is
    /// streamed.
    pub(crate) conversation_id: Option<String>,
    /// Add the generation prompt of the chat template. Must not be `true` together with
    /// `continue_final_message`.
    pub(crate) add_generation_prompt: Option<bool>,
    /// Continue the last message, which must be the assistant's; only the continuation is returned.
    /// Default: `false`.
    pub(crate) continue_final_message: Option<bool>,
    /// Ignored; the header `X-Jackalope-Note` reports it.
    pub(crate) verbosity: Option<String>,
    /// Return the log-probability of each token in the model's unmodified distribution. Default:
    /// `false`.
    pub(crate) logprobs: Option<bool>,
    /// Number of most likely tokens whose log-probabilities are also returned; requires `logprobs`.
    #[schema(minimum = 0, maximum = 20)]
    pub(crate) top_logprobs: Option<u32>,
}

/// Fields of `POST /v1/completions` alone.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct CompletionRequest {
    /// Prompts to continue: a string, strings, token ids, or lists of token ids.
    pub(crate) prompt: Option<Prompts>,
    /// Text that follows the answer, for models with fill-in-the-middle tokens; not with `echo`.
    pub(crate) suffix: Option<String>,
    /// Return the prompt before the answer, with log-probabilities if requested. Default: `false`.
    pub(crate) echo: Option<bool>,
    /// Number of candidates to generate, of which the `n` most likely are returned; not with
    /// `stream`. Default: `n`.
    pub(crate) best_of: Option<u32>,
    /// Return the log-probability of each token, and of this number of most likely tokens, in the
    /// model's unmodified distribution.
    #[schema(minimum = 0, maximum = 20)]
    pub(crate) logprobs: Option<u32>,
    /// Add the token that begins every text. Default: `true`.
    pub(crate) add_special_tokens: Option<bool>,
}

/// Fields that would change the answer but are not supported, and are therefore refused.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it is only described; `unsupported` refuses the fields by name")]
pub(crate) struct Unsupported {
    /// Use `guided_grammar`, in Lark's notation.
    pub(crate) grammar: Option<Value>,
    /// Use `response_format`.
    pub(crate) json_schema: Option<Value>,
    /// Use `response_format`.
    pub(crate) format: Option<Value>,
    /// Put it into a message.
    pub(crate) system: Option<Value>,
    /// Use `stop`.
    pub(crate) stop_sequences: Option<Value>,
    /// Only negative values are accepted; use `max_tokens`.
    pub(crate) n_predict: Option<Value>,
    /// Use `max_tokens`.
    pub(crate) max_new_tokens: Option<Value>,
    /// Only 0 is accepted; use `min_tokens`.
    pub(crate) min_new_tokens: Option<Value>,
    /// Only `["text"]` is accepted.
    pub(crate) modalities: Option<Value>,
    /// Answers are text.
    pub(crate) audio: Option<Value>,
    /// Predicted answers are not supported.
    pub(crate) prediction: Option<Value>,
    /// This server has no web search.
    pub(crate) web_search_options: Option<Value>,
    /// The model's own template is used.
    pub(crate) chat_template: Option<Value>,
    /// Put the documents into a message.
    pub(crate) documents: Option<Value>,
    /// This server does not do beam search.
    pub(crate) use_beam_search: Option<Value>,
    /// Only 1 is accepted.
    pub(crate) length_penalty: Option<Value>,
    /// Use `echo` and `logprobs` of `/v1/completions`.
    pub(crate) prompt_logprobs: Option<Value>,
    /// The server does not run clients' code.
    pub(crate) logits_processors: Option<Value>,
    /// Only 1 is accepted; use `repetition_penalty`.
    pub(crate) repeat_penalty: Option<Value>,
    /// Only 0 is accepted; use `top_p`, `top_k` or `min_p`.
    pub(crate) mirostat: Option<Value>,
    /// Only 0 and 1 are accepted; use `top_p`, `top_k` or `min_p`.
    pub(crate) typical_p: Option<Value>,
    /// Only 0 and 1 are accepted; use `top_p`, `top_k` or `min_p`.
    pub(crate) tfs_z: Option<Value>,
    /// Only 0 is accepted; use `top_p`, `top_k` or `min_p`.
    pub(crate) top_a: Option<Value>,
    /// Only 0 and negative values are accepted; use `top_p`, `top_k` or `min_p`.
    pub(crate) top_n_sigma: Option<Value>,
    /// Only 0 is accepted; use `top_p`, `top_k` or `min_p`.
    pub(crate) xtc_probability: Option<Value>,
    /// Only 0 is accepted; use `temperature`.
    pub(crate) dynatemp_range: Option<Value>,
    /// Only 0 is accepted; use `repetition_penalty`.
    pub(crate) dry_multiplier: Option<Value>,
    /// Only 0 is accepted; use `repetition_penalty`.
    pub(crate) no_repeat_ngram_size: Option<Value>,
}

/// `stream_options`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub(crate) struct StreamOptions {
    /// End the stream with an event that has the token counts. Default: `false`.
    pub(crate) include_usage: Option<bool>,
}

/// Author of a message.
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
    /// The role's name in JSON.
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

/// A message's content.
pub(crate) type Content = TextOr<Part>;

impl Listed for Part {
    const EXPECTED: &'static str = "a string or a list of parts";
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

/// The prompts of a completion.
#[derive(Debug, PartialEq)]
pub(crate) enum Prompts {
    Texts(Vec<String>),
    Tokens(Vec<Vec<TokenId>>),
}

/// One element of a list of prompts; all elements must be of the same kind.
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
