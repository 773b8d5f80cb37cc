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

/// Fields that both endpoints have.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct Common {
    /// Most tokens drawn; a chat may also say `max_completion_tokens`.
    pub(crate) max_tokens: Option<u32>,
    /// Most tokens drawn, the thought included.
    pub(crate) max_completion_tokens: Option<u32>,
    /// How freely tokens are drawn, 0 for the likeliest. What is absent here and below is as the
    /// checkpoint's `generation_config.json` says, else 1.
    #[schema(minimum = 0, maximum = 2)]
    pub(crate) temperature: Option<f64>,
    /// Only the likeliest tokens that have so much probability together; filters act at temperature
    /// 1, as in mlx-lm.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub(crate) top_p: Option<f64>,
    /// Only the so many likeliest tokens; 0 and -1: all.
    pub(crate) top_k: Option<i64>,
    /// Only tokens with at least so much of the likeliest one's probability.
    #[schema(minimum = 0, maximum = 1)]
    pub(crate) min_p: Option<f64>,
    /// Above 1, tokens of the prompt and the answer become less likely.
    #[schema(exclusive_minimum = 0, maximum = 10)]
    pub(crate) repetition_penalty: Option<f64>,
    /// Subtracted from tokens that the answer has already.
    #[schema(minimum = -2, maximum = 2)]
    pub(crate) presence_penalty: Option<f64>,
    /// Subtracted for each time that the answer has the token already.
    #[schema(minimum = -2, maximum = 2)]
    pub(crate) frequency_penalty: Option<f64>,
    /// What is added to the logit of a token, by its id; -100 bans it.
    pub(crate) logit_bias: Option<BTreeMap<String, f64>>,
    /// The same seed gives the same text, whatever else runs.
    pub(crate) seed: Option<Seed>,
    /// Choices; choice `i` draws with a seed of its own.
    #[schema(minimum = 1)]
    pub(crate) n: Option<u32>,
    /// Strings that end the answer, across token borders.
    pub(crate) stop: Option<Strings>,
    /// Tokens that end the answer.
    pub(crate) stop_token_ids: Option<Vec<TokenId>>,
    /// The answer does not end by itself.
    pub(crate) ignore_eos: Option<bool>,
    /// Server-sent events, with comments while a prompt computes, and `[DONE]` at the end.
    pub(crate) stream: Option<bool>,
    /// Of a stream only.
    pub(crate) stream_options: Option<StreamOptions>,
    /// Adds `token_ids` and `prompt_token_ids` to each choice.
    pub(crate) return_token_ids: Option<bool>,
    /// The stop string is told as the end of the text.
    pub(crate) include_stop_str_in_output: Option<bool>,
    /// `false`: special tokens are told as they are written, but for the one that ends the answer.
    pub(crate) skip_special_tokens: Option<bool>,
    /// Only the last so many tokens of the prompt are taken; -1: as many as fit.
    #[schema(minimum = -1)]
    pub(crate) truncate_prompt_tokens: Option<i64>,
    /// Lower is handled earlier, as in vLLM; never better than the key's own.
    pub(crate) priority: Option<i32>,
    /// The answer starts from computed prefixes of requests of the same key and the same salt only.
    pub(crate) cache_salt: Option<String>,
    /// Seconds that the client waits for the whole answer; `--request-timeout` bounds it.
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
    /// The conversation; its contents are text, or parts of type `text`. An image part is refused
    /// by name.
    pub(crate) messages: Option<Vec<Message>>,
    /// Functions that the model may call, rendered by the template; calls come back as
    /// `tool_calls`. Tools with `strict` are enforced by a grammar.
    pub(crate) tools: Option<Vec<Tool>>,
    /// `none`, `auto`, `required` or a named function; what is forced is enforced by a grammar.
    pub(crate) tool_choice: Option<Value>,
    /// `false`: the first call ends the answer.
    pub(crate) parallel_tool_calls: Option<bool>,
    /// Handed to the template.
    pub(crate) chat_template_kwargs: Option<Map<String, Value>>,
    /// Handed to the template.
    pub(crate) enable_thinking: Option<bool>,
    /// Handed to the template.
    pub(crate) reasoning_effort: Option<String>,
    /// Tokens after which the thought is closed.
    pub(crate) thinking_token_budget: Option<u32>,
    /// A name of the conversation, told back; made if absent, unless the answer is streamed.
    pub(crate) conversation_id: Option<String>,
    /// Handed to the template; not `true` together with `continue_final_message`.
    pub(crate) add_generation_prompt: Option<bool>,
    /// The answer goes on from the last message, the assistant's; only what is new is told.
    pub(crate) continue_final_message: Option<bool>,
    /// Passed over; the header `X-Jackalope-Note` says so.
    pub(crate) verbosity: Option<String>,
    /// Tells the log-probability of each token, of the model's own distribution.
    pub(crate) logprobs: Option<bool>,
    /// Tells those of so many of the likeliest tokens too; needs `logprobs`.
    #[schema(minimum = 0, maximum = 20)]
    pub(crate) top_logprobs: Option<u32>,
}

/// Fields of `POST /v1/completions` alone.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct CompletionRequest {
    /// What is gone on from: a string, strings, token ids, or lists of token ids.
    pub(crate) prompt: Option<Prompts>,
    /// What comes after the answer, for models with fill-in-the-middle tokens; not with `echo`.
    pub(crate) suffix: Option<String>,
    /// The prompt is told before the answer, with log-probabilities if they are asked for.
    pub(crate) echo: Option<bool>,
    /// Draws so many and tells the `n` likeliest; not with `stream`.
    pub(crate) best_of: Option<u32>,
    /// Tells log-probabilities of each token and so many of the likeliest, of the model's own
    /// distribution.
    #[schema(minimum = 0, maximum = 20)]
    pub(crate) logprobs: Option<u32>,
    /// `false` leaves out the token that begins every text.
    pub(crate) add_special_tokens: Option<bool>,
}

/// Fields that change the answer and that this server does not have. To ignore them would be to
/// answer another question than the one that was asked.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it is only described; `unsupported` refuses the fields by name")]
pub(crate) struct Unsupported {
    /// Use `guided_grammar`, in Lark's notation.
    pub(crate) grammar: Option<Value>,
    /// Answers are text: only `["text"]` is taken.
    pub(crate) modalities: Option<Value>,
    /// Answers are text.
    pub(crate) audio: Option<Value>,
    /// An answer that is expected.
    pub(crate) prediction: Option<Value>,
    /// This server searches nothing.
    pub(crate) web_search_options: Option<Value>,
    /// The model's own template is used.
    pub(crate) chat_template: Option<Value>,
    /// Put them into a message.
    pub(crate) documents: Option<Value>,
    /// Tokens are drawn.
    pub(crate) use_beam_search: Option<Value>,
    /// Only 1 is taken.
    pub(crate) length_penalty: Option<Value>,
    /// Use `echo` and `logprobs` of `/v1/completions`.
    pub(crate) prompt_logprobs: Option<Value>,
    /// No code of clients is run.
    pub(crate) logits_processors: Option<Value>,
    /// Unless it is 1; use `repetition_penalty`.
    pub(crate) repeat_penalty: Option<Value>,
    /// Unless it is 0; use `top_p`, `top_k` or `min_p`.
    pub(crate) mirostat: Option<Value>,
    /// Unless it is 0 or 1; use `top_p`, `top_k` or `min_p`.
    pub(crate) typical_p: Option<Value>,
    /// Unless it is 0 or 1; use `top_p`, `top_k` or `min_p`.
    pub(crate) tfs_z: Option<Value>,
    /// Unless it is 0; use `top_p`, `top_k` or `min_p`.
    pub(crate) top_a: Option<Value>,
    /// Unless it is 0 or less; use `top_p`, `top_k` or `min_p`.
    pub(crate) top_n_sigma: Option<Value>,
    /// Unless it is 0; use `top_p`, `top_k` or `min_p`.
    pub(crate) xtc_probability: Option<Value>,
    /// Unless it is 0; use `temperature`.
    pub(crate) dynatemp_range: Option<Value>,
    /// Unless it is 0; use `repetition_penalty`.
    pub(crate) dry_multiplier: Option<Value>,
    /// Unless it is 0; use `repetition_penalty`.
    pub(crate) no_repeat_ngram_size: Option<Value>,
}

/// `stream_options`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub(crate) struct StreamOptions {
    /// One more event tells what the answer took.
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
