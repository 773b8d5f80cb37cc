//! The named special tokens of a checkpoint, and the tokens that end an answer.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};
use tokenizers::AddedToken;
use tokenizers::processors::template::TemplateProcessing;

use crate::TokenId;
use crate::error::TextLoadError;
use crate::files::{self, CONFIG_BYTES_MAX};

/// The names under which transformers passes special tokens to a template.
const NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The named special tokens with their text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SpecialTokens(Vec<(&'static str, String)>);

impl SpecialTokens {
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.iter().find(|(known, _)| *known == name).map(|(_, text)| text)
    }

    /// Adds those of the tokens whose names no file of the checkpoint states.
    pub(crate) fn add_missing(&mut self, tokens: &[(&'static str, &str)]) {
        for (name, text) in tokens {
            if self.text(name).is_none() {
                self.0.push((name, (*text).to_owned()));
            }
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.iter().map(|(name, text)| (*name, text.as_str()))
    }
}

/// The parts of `tokenizer_config.json` that concern tokens.
#[derive(Debug, Default)]
pub(crate) struct TokenizerConfig(Map<String, Value>);

impl TokenizerConfig {
    pub(crate) fn load(dir: &Path) -> Result<TokenizerConfig, TextLoadError> {
        let config = files::read_json(&dir.join("tokenizer_config.json"), CONFIG_BYTES_MAX)?;
        Ok(TokenizerConfig(config.unwrap_or_default()))
    }

    /// Returns all fields of the file.
    pub(crate) fn fields(&self) -> &Map<String, Value> {
        &self.0
    }

    /// Changes the tokenizer as transformers does when it reads this file.
    pub(crate) fn apply(&self, tokenizer: &mut tokenizers::Tokenizer, special: &SpecialTokens) {
        self.add_missing_tokens(tokenizer);
        // A named token is special even if `tokenizer.json` does not say so. A named token outside
        // the vocabulary is left out, because the model would not know its id.
        let known = special.iter().map(|(_, text)| text).filter(|text| {
            tokenizer.token_to_id(text).is_some()
                && !tokenizer.get_added_vocabulary().is_special_token(text)
        });
        let known: Vec<AddedToken> =
            known.map(|text| AddedToken::from(text, true).normalized(false)).collect();
        // A token that the tokenizer refuses stays unchanged.
        let _ = tokenizer.add_special_tokens(known);
        self.set_bos(tokenizer, special);
    }

    /// Adds the tokens that only this file lists, which happens when tokens were added to a
    /// tokenizer by hand; their ids follow from the order.
    fn add_missing_tokens(&self, tokenizer: &mut tokenizers::Tokenizer) {
        let Some(Value::Object(listed)) = self.0.get("added_tokens_decoder") else { return };
        let mut missing: Vec<(TokenId, AddedToken)> = listed
            .iter()
            .filter_map(|(id, token)| {
                let token: AddedToken = serde_json::from_value(token.clone()).ok()?;
                let known = tokenizer.token_to_id(&token.content).is_some();
                (!known).then_some((id.parse().ok()?, token))
            })
            .collect();
        missing.sort_by_key(|(id, _)| *id);
        for (_, token) in missing {
            // A token that the tokenizer refuses stays missing, as before.
            let _ = if token.special {
                tokenizer.add_special_tokens([token])
            } else {
                tokenizer.add_tokens([token])
            };
        }
    }

    /// Sets whether a text begins with the bos token. If this file has `add_bos_token` or
    /// `add_eos_token`, it overrides the post-processor of `tokenizer.json`. A token at the end of
    /// the text, which `add_eos_token` asks for, is never added: it would end the answer before it
    /// begins.
    fn set_bos(&self, tokenizer: &mut tokenizers::Tokenizer, special: &SpecialTokens) {
        let add_bos = self.0.get("add_bos_token").and_then(Value::as_bool);
        let says = ["add_bos_token", "add_eos_token"].iter().any(|key| self.0.contains_key(*key));
        let bos = special.text("bos_token").filter(|_| add_bos == Some(true));
        let bos = bos.and_then(|text| Some((text.to_owned(), tokenizer.token_to_id(text)?)));
        match bos {
            Some((text, id)) => {
                let template = TemplateProcessing::builder()
                    .try_single(vec![text.clone(), "$A".to_owned()])
                    .map(|builder| builder.special_tokens(vec![(text, id)]).build());
                if let Ok(Ok(template)) = template {
                    tokenizer.with_post_processor(Some(template));
                }
            }
            None if says => {
                tokenizer.with_post_processor(None::<TemplateProcessing>);
            }
            None => {}
        }
    }

    /// Returns the texts of all special tokens: named ones, and those of
    /// `additional_special_tokens`.
    pub(crate) fn all_special_tokens(&self, dir: &Path) -> Result<BTreeSet<String>, TextLoadError> {
        let older: Option<Map<String, Value>> =
            files::read_json(&dir.join("special_tokens_map.json"), CONFIG_BYTES_MAX)?;
        let older = older.unwrap_or_default();
        let key = "additional_special_tokens";
        let listed = [self.0.get(key), older.get(key)].into_iter().flatten();
        let listed = listed.filter_map(Value::as_array).flatten().filter_map(token_text);
        let mut texts: BTreeSet<String> = listed.map(str::to_owned).collect();
        texts.extend(self.special_tokens(dir)?.iter().map(|(_, text)| text.to_owned()));
        Ok(texts)
    }

    /// Returns the named special tokens; those that this file lacks come from
    /// `special_tokens_map.json`.
    pub(crate) fn special_tokens(&self, dir: &Path) -> Result<SpecialTokens, TextLoadError> {
        let older: Option<Map<String, Value>> =
            files::read_json(&dir.join("special_tokens_map.json"), CONFIG_BYTES_MAX)?;
        let older = older.unwrap_or_default();
        let tokens = NAMES.iter().filter_map(|&name| {
            let listed = self.0.get(name).or_else(|| older.get(name))?;
            Some((name, token_text(listed)?.to_owned()))
        });
        Ok(SpecialTokens(tokens.collect()))
    }
}

/// Returns the text of a token, which is a string, or an object with the string and how it is
/// matched.
fn token_text(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token.get("content")?.as_str())
}

/// Returns the tokens that end an answer according to the model: those of `generation_config.json`
/// if it names any, else those of `config.json`.
pub(crate) fn eos_of_model(dir: &Path) -> Result<Vec<TokenId>, TextLoadError> {
    /// One token id or several. Negative ids, by which some configurations say that there is none, are
    /// ignored.
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Eos {
        One(i64),
        Several(Vec<i64>),
    }
    impl Eos {
        fn tokens(&self) -> Vec<TokenId> {
            let stated: &[i64] = match self {
                Eos::One(token) => std::slice::from_ref(token),
                Eos::Several(tokens) => tokens,
            };
            stated.iter().filter_map(|token| TokenId::try_from(*token).ok()).collect()
        }
    }
    #[derive(Default, Deserialize)]
    struct Config {
        eos_token_id: Option<Eos>,
        /// Configuration of the language model, in the file of a multimodal model.
        text_config: Option<Box<Config>>,
    }
    for name in ["generation_config.json", "config.json"] {
        let config: Option<Config> = files::read_json(&dir.join(name), CONFIG_BYTES_MAX)?;
        let config = config.unwrap_or_default();
        let inner = config.text_config.and_then(|inner| inner.eos_token_id);
        let eos = config.eos_token_id.or(inner);
        let tokens = eos.as_ref().map(Eos::tokens).unwrap_or_default();
        if !tokens.is_empty() {
            return Ok(tokens);
        }
    }
    Ok(Vec::new())
}

#[cfg(test)]
mod tests {
    use jackalope_testing::Scratch;

    use super::*;

    #[test]
    fn negative_ids_of_tokens_that_end_an_answer_are_ignored() {
        let dir = Scratch::new();
        let check = |generation: &str, config: &str, expected: &[TokenId]| {
            dir.write("generation_config.json", generation.as_bytes());
            dir.write("config.json", config.as_bytes());
            assert_eq!(eos_of_model(dir.path()).unwrap(), expected);
        };
        check("{}", r#"{"eos_token_id": -1}"#, &[]);
        check("{}", r#"{"eos_token_id": [-1, 7]}"#, &[7]);
        check(r#"{"eos_token_id": -1}"#, r#"{"eos_token_id": 7}"#, &[7]);
        check(r#"{"eos_token_id": 8}"#, r#"{"eos_token_id": 7}"#, &[8]);
    }
}
