//! The tables of n-grams of DeepSeek V4.1.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::decoder::Sizes;
use crate::ngrams::{HashSettings, Multipliers};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, count, dimension};
use jackalope_spec::{NgramSpec, TensorSpec};

#[derive(Debug, Deserialize)]
pub(super) struct EngramConfig {
    engram_layer_ids: Vec<usize>,
    engram_num_embeddings: Vec<u32>,
    engram_max_ngram_size: u32,
    engram_vocab_size: u32,
    engram_n_heads: u32,
    pub(super) engram_head_dim: u32,
    pub(super) engram_pad_token_id: u32,
    pub(super) engram_compressed_vocab_size: u32,
    pub(super) image_token_id: u32,
}

/// Returns the values of what is not stated.
pub(super) fn defaults() -> Value {
    json!({
        "engram_layer_ids": [1, 14], "engram_num_embeddings": [384_006_168, 384_016_682],
        "engram_max_ngram_size": 4, "engram_vocab_size": 16_000_000, "engram_n_heads": 8,
        "engram_head_dim": 256, "engram_pad_token_id": 2, "engram_compressed_vocab_size": 99_092,
        "image_token_id": 129_264,
    })
}

/// Token ids up to this are exact in single precision, in which states keep them.
const VOCAB_MAX: usize = 1 << 24;
const NGRAM_MAX: u32 = 16;
/// Each head of each layer has a prime of its own, at least of this base.
const PRIMES_MAX: usize = 1 << 12;
const BASE_MAX: u32 = 1 << 31;

impl EngramConfig {
    /// Whether a layer adds vectors of n-grams.
    pub(super) fn has_table(&self, layer_idx: usize) -> bool {
        self.engram_layer_ids.contains(&layer_idx)
    }

    /// Returns what each layer with n-grams adds to `num_streams` streams, with its tensors.
    pub(super) fn tables(
        &self,
        sizes: Sizes,
        num_streams: usize,
    ) -> Result<Vec<(NgramSpec, Vec<TensorSpec>)>, SpecError> {
        let layers = &self.engram_layer_ids;
        if layers.is_empty() {
            return Ok(Vec::new());
        }
        let is_ascending = layers.is_sorted_by(|a, b| a < b);
        if !is_ascending || layers.iter().any(|layer_idx| sizes.num_layers <= *layer_idx) {
            let expected = format!("different layers of {}, in ascending order", sizes.num_layers);
            return Err(bad_value("engram_layer_ids", format!("{layers:?}"), expected));
        }
        if self.engram_num_embeddings.len() != layers.len() {
            let (field, found) = ("engram_num_embeddings", self.engram_num_embeddings.len());
            return Err(bad_value(field, found, format!("{} entries", layers.len())));
        }
        let hashes = self.settings(sizes, layers.len())?.hashes(layers);
        let hashes = hashes.into_iter().zip(layers).zip(&self.engram_num_embeddings);
        let tables = hashes.map(|((hash, layer_idx), num_rows)| {
            let module = format!("model.layers.{layer_idx}.engram");
            self.table(&module, hash, *num_rows, [sizes.hidden, num_streams])
        });
        tables.collect()
    }

    fn settings(&self, sizes: Sizes, num_layers: usize) -> Result<HashSettings, SpecError> {
        let numbers = dimension("engram_compressed_vocab_size", self.engram_compressed_vocab_size)?;
        if VOCAB_MAX < sizes.vocab.max(numbers) {
            return Err(bad_value("vocab_size", sizes.vocab, format!("at most {VOCAB_MAX}")));
        }
        let ngram_size = self.engram_max_ngram_size;
        if !(2..=NGRAM_MAX).contains(&ngram_size) {
            let expected = format!("a number from 2 to {NGRAM_MAX}");
            return Err(bad_value("engram_max_ngram_size", ngram_size, expected));
        }
        if sizes.vocab <= self.engram_pad_token_id as usize {
            let expected = format!("less than {}", sizes.vocab);
            return Err(bad_value("engram_pad_token_id", self.engram_pad_token_id, expected));
        }
        if BASE_MAX < self.engram_vocab_size {
            let expected = format!("at most {BASE_MAX}");
            return Err(bad_value("engram_vocab_size", self.engram_vocab_size, expected));
        }
        let settings = HashSettings {
            ngram_size: ngram_size as usize,
            heads_per_ngram: count("engram_n_heads", self.engram_n_heads)?,
            modulus_min: self.engram_vocab_size,
            num_numbers: numbers,
            end: u32::MAX,
            multipliers: Multipliers::Numpy,
        };
        if PRIMES_MAX < num_layers * settings.num_heads() {
            let expected = format!("at most {PRIMES_MAX} heads in all layers");
            return Err(bad_value("engram_n_heads", self.engram_n_heads, expected));
        }
        Ok(settings)
    }
}
