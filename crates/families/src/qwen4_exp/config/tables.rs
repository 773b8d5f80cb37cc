//! The fields about tables of n-grams.

mod sizes;

use serde::Deserialize;
use serde_json::Value;

use super::Config;
use crate::decoder::Sizes;
use crate::gates::GateSizes;
use crate::ngrams::{HashSettings, Multipliers, ngrams};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, count, unsupported};
use jackalope_spec::{NgramSpec, TensorSpec};

#[derive(Debug, Deserialize)]
pub(super) struct TableConfig {
    /// Numbers of layers, from 1 on.
    #[serde(default)]
    ple_layer_ids: Vec<usize>,
    ple_embed_dim: Option<u32>,
    ple_conv_kernel_size: Option<u32>,
    ngram_size: Option<u32>,
    heads_per_ngram: Option<u32>,
    ngram_vocab_size_base: Option<u32>,
    make_ngram_vocab_size_divisible_by: Option<u32>,
    split_ngram_parts: Option<u32>,
    seed: Option<u64>,
    /// Where mlx-vlm finds a table that is in a file of its own.
    #[serde(default)]
    ple_storage: Value,
    /// A token, or a list of which the first one counts.
    #[serde(default)]
    eos_token_id: Value,
}

/// Token ids up to this are exact in single precision, in which states keep them.
const VOCAB_MAX: usize = 1 << 24;
const NGRAM_MAX: usize = 16;
/// Each head of each layer has a prime of its own, at least of this base.
const PRIMES_MAX: usize = 1 << 12;
const BASE_MAX: u32 = 1 << 31;

impl Config {
    /// Whether a layer adds vectors of n-grams.
    pub(in super::super) fn has_ngrams(&self, layer_idx: usize) -> bool {
        self.tables.ple_layer_ids.contains(&(layer_idx + 1))
    }

    /// Returns what each layer with n-grams adds to the streams, with its tensors. `attend` says which
    /// layers attend: they have no n-grams, as in mlx-vlm.
    pub(in super::super) fn tables(
        &self,
        attend: &[bool],
        sizes: Sizes,
        gates: GateSizes,
    ) -> Result<Vec<(NgramSpec, Vec<TensorSpec>)>, SpecError> {
        let recurrent = |number: &usize| 0 < *number && attend.get(number - 1) == Some(&false);
        if let Some(number) = self.tables.ple_layer_ids.iter().find(|it| !recurrent(it)) {
            return Err(bad_value("ple_layer_ids", number, "numbers of delta nets, from 1 on"));
        }
        if !self.tables.ple_storage.is_null() {
            let found = self.tables.ple_storage["manifest"].as_str().unwrap_or("no manifest");
            return Err(unsupported("ple_storage", &found, &["tables in model*.safetensors"]));
        }
        let layers: Vec<usize> =
            (0..attend.len()).filter(|layer_idx| self.has_ngrams(*layer_idx)).collect();
        if layers.is_empty() {
            return Ok(Vec::new());
        }
        let settings = self.tables.settings(sizes)?;
        if PRIMES_MAX < layers.len() * settings.num_heads() {
            let expected = format!("at most {PRIMES_MAX} heads in all layers");
            return Err(bad_value("heads_per_ngram", settings.heads_per_ngram, expected));
        }
        let hashes = settings.hashes(&layers).into_iter().zip(layers);
        let tables = hashes.map(|(hash, layer_idx)| {
            let table = self.tables.sizes(&hash, sizes)?;
            Ok(ngrams(&format!("model.layers.{layer_idx}.ple"), hash, gates, table))
        });
        tables.collect()
    }
}

impl TableConfig {
    fn settings(&self, sizes: Sizes) -> Result<HashSettings, SpecError> {
        if VOCAB_MAX < sizes.vocab {
            return Err(bad_value("vocab_size", sizes.vocab, format!("at most {VOCAB_MAX}")));
        }
        let ngram_size = count("ngram_size", self.ngram_size.unwrap_or(3))?;
        if !(2..=NGRAM_MAX).contains(&ngram_size) {
            let expected = format!("a number from 2 to {NGRAM_MAX}");
            return Err(bad_value("ngram_size", ngram_size, expected));
        }
        let first = self.eos_token_id.as_array().and_then(|ids| ids.first());
        let end = first.unwrap_or(&self.eos_token_id);
        let token = end.as_u64().and_then(|id| u32::try_from(id).ok());
        let token = token.ok_or_else(|| bad_value("eos_token_id", end, "a token id"))?;
        let base = self.ngram_vocab_size_base.unwrap_or(20_000_000);
        if BASE_MAX < base {
            return Err(bad_value("ngram_vocab_size_base", base, format!("at most {BASE_MAX}")));
        }
        Ok(HashSettings {
            ngram_size,
            heads_per_ngram: count("heads_per_ngram", self.heads_per_ngram.unwrap_or(8))?,
            modulus_min: base,
            num_numbers: sizes.vocab,
            end: token,
            multipliers: Multipliers::Splitmix(self.seed.unwrap_or(1234)),
        })
    }
}
