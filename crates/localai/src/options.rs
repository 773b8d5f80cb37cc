//! `options` of a model's configuration in LocalAI: a list of `key:value`.

use jackalope_protocol::{Pooling, TokenId};
use jackalope_text::Tokenizer;

use jackalope_serving::error::ApiError;

/// The keys that have an effect, as listed in errors.
const KEYS: &str = "hostfile, distributed_backend, coordinator, max_kv_size, max_tokens, temperature, \
                    top_p, top_k, min_p, repetition_penalty, presence_penalty, frequency_penalty, \
                    seed, eos_token, pooling";

/// The parsed options of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LoadOptions {
    pub(crate) placement: Placement,
    pub(crate) params: LoadParams,
    /// A token that ends answers, as text because the model is not loaded yet.
    pub(crate) eos_token: Option<String>,
}

/// Machines and transport of a model.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Placement {
    pub(crate) hostfile: Option<String>,
    pub(crate) backend: Option<String>,
    pub(crate) coordinator: Option<String>,
    pub(crate) context_tokens: Option<u32>,
}

/// Parameters set for a model when it was loaded, which override those of requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LoadParams {
    pub(crate) max_tokens: Option<u32>,
    pub(crate) temperature: Option<f64>,
    pub(crate) top_p: Option<f64>,
    pub(crate) top_k: Option<i64>,
    pub(crate) min_p: Option<f64>,
    pub(crate) repetition_penalty: Option<f64>,
    pub(crate) presence_penalty: Option<f64>,
    pub(crate) frequency_penalty: Option<f64>,
    pub(crate) seed: Option<u64>,
    pub(crate) stop_token: Option<TokenId>,
    pub(crate) pooling: Option<Pooling>,
}

impl LoadOptions {
    /// Parses the options of a model. The ranges of sampling parameters are checked with each request.
    pub(crate) fn read(options: &[String]) -> Result<LoadOptions, ApiError> {
        let mut read = LoadOptions::default();
        for (idx, option) in options.iter().enumerate() {
            let param = || format!("options[{idx}]");
            let Some((key, value)) = option.split_once(':') else {
                return Err(ApiError::out_of_range(param(), &format!("{option:?}"), "`key:value`"));
            };
            let (key, value) = (key.trim(), value.trim());
            read.set(key, value).map_err(|problem| match problem {
                Problem::Unknown => {
                    let found = format!("the key {key:?}");
                    ApiError::out_of_range(param(), &found, format!("one of {KEYS}"))
                }
                Problem::Value(expected) => {
                    ApiError::out_of_range(param(), &format!("{option:?}"), expected)
                }
                Problem::NotHere(hint) => ApiError::NotSupported {
                    param: format!("{} ({key})", param()),
                    hint: Some(hint.to_owned()),
                },
            })?;
        }
        Ok(read)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), Problem> {
        let LoadOptions { placement, params, eos_token } = self;
        match key {
            "hostfile" => placement.hostfile = text(value)?,
            "distributed_backend" | "backend" => placement.backend = text(value)?,
            "coordinator" => placement.coordinator = text(value)?,
            "max_kv_size" => placement.context_tokens = Some(above_zero(value)?),
            "max_tokens" => params.max_tokens = Some(above_zero(value)?),
            "temperature" | "temp" => params.temperature = Some(number(value)?),
            "top_p" => params.top_p = Some(number(value)?),
            "top_k" => params.top_k = Some(whole(value)?),
            "min_p" => params.min_p = Some(number(value)?),
            "repetition_penalty" => params.repetition_penalty = Some(number(value)?),
            "presence_penalty" => params.presence_penalty = Some(number(value)?),
            "frequency_penalty" => params.frequency_penalty = Some(number(value)?),
            "seed" => params.seed = Some(whole::<u64>(value)?),
            "eos_token" => *eos_token = text(value)?,
            "pooling" => params.pooling = Some(pooling(value)?),
            // A model's code is never run, and prefixes are cached as long as there is memory.
            "trust_remote_code" | "max_cache_entries" => {}
            // Padding, masking and separators do not exist here.
            "pad_token" | "unk_token" | "sep_token" | "cls_token" | "mask_token" => {}
            "bos_token" => {
                return Err(Problem::NotHere("the model's tokenizer_config.json names it"));
            }
            "xtc_threshold" | "xtc_probability" => match number(value)? {
                0.0 => {}
                _ => return Err(Problem::NotHere("use top_p, top_k or min_p")),
            },
            _ => return Err(Problem::Unknown),
        }
        Ok(())
    }
}

impl LoadParams {
    /// Sets the stop token to the one token that `eos_token` encodes to. Fails if the text is not
    /// one token.
    pub(crate) fn stop_at(
        &mut self,
        eos_token: Option<&str>,
        tokenizer: &Tokenizer,
    ) -> Result<(), ApiError> {
        let Some(text) = eos_token else { return Ok(()) };
        let tokens = tokenizer.encode(text, false);
        match tokens.as_deref() {
            Ok(&[token]) => self.stop_token = Some(token),
            Ok(_) | Err(_) => {
                let found = format!("{text:?}");
                return Err(ApiError::out_of_range("eos_token", &found, "one token of the model"));
            }
        }
        Ok(())
    }
}

/// The problem with an option.
enum Problem {
    Unknown,
    Value(&'static str),
    NotHere(&'static str),
}

fn text(value: &str) -> Result<Option<String>, Problem> {
    match value {
        "" => Err(Problem::Value("`key:value` with a value")),
        value => Ok(Some(value.to_owned())),
    }
}

fn number(value: &str) -> Result<f64, Problem> {
    let number = value.parse().ok().filter(|it: &f64| it.is_finite());
    number.ok_or(Problem::Value("`key:value` with a number"))
}

fn whole<T: std::str::FromStr>(value: &str) -> Result<T, Problem> {
    value.parse().map_err(|_| Problem::Value("`key:value` with a whole number"))
}

fn above_zero(value: &str) -> Result<u32, Problem> {
    let expected = Problem::Value("`key:value` with a whole number above 0");
    value.parse().ok().filter(|it| 0 < *it).ok_or(expected)
}

fn pooling(value: &str) -> Result<Pooling, Problem> {
    match value {
        "mean" => Ok(Pooling::Mean),
        "last" => Ok(Pooling::Last),
        _ => Err(Problem::Value("`pooling:mean` or `pooling:last`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(options: &[&str]) -> Result<LoadOptions, String> {
        let options: Vec<String> = options.iter().map(|it| (*it).to_owned()).collect();
        LoadOptions::read(&options).map_err(|err| err.to_string())
    }

    #[test]
    fn options_are_understood_and_may_have_colons_in_values() {
        let options = read(&[
            "hostfile:/etc/hosts.json",
            "distributed_backend: ring",
            "coordinator:10.0.0.1:5555",
            "temp:0.5",
            "max_tokens:7",
            "top_k:-1",
            "seed:12",
            "trust_remote_code:true",
            "xtc_probability:0.0",
            "pooling:last",
        ]);
        let options = options.unwrap();
        assert_eq!(options.placement.hostfile.as_deref(), Some("/etc/hosts.json"));
        assert_eq!(options.placement.backend.as_deref(), Some("ring"));
        assert_eq!(options.placement.coordinator.as_deref(), Some("10.0.0.1:5555"));
        assert_eq!(
            options.params,
            LoadParams {
                temperature: Some(0.5),
                max_tokens: Some(7),
                top_k: Some(-1),
                seed: Some(12),
                pooling: Some(Pooling::Last),
                ..LoadParams::default()
            }
        );
    }

    #[test]
    fn invalid_options_are_reported_with_their_place() {
        for (option, expected) in [
            ("temprature:0.5", "one of hostfile, distributed_backend"),
            ("hostfile", "`key:value`"),
            ("hostfile:", "with a value"),
            ("max_tokens:0", "above 0"),
            ("temperature:NaN", "with a number"),
            ("seed:1.5", "with a whole number"),
            ("pooling:max", "pooling:mean"),
            ("bos_token:<s>", "tokenizer_config.json"),
            ("xtc_threshold:0.1", "use top_p"),
        ] {
            let message = read(&["top_p:0.9", option]).unwrap_err();
            assert!(message.starts_with("options[1]") && message.contains(expected), "{message}");
        }
    }
}
