//! Tables of n-grams: their tensors, and the constants of their hashes.

use super::blocks::{matrix, vector};
use super::gates::GateSizes;
use jackalope_spec::{
    Dimension, NgramHash, NgramSpec, NgramTable, TensorCut, TensorRole, TensorSpec,
};

/// What the hashes of all layers have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct HashSettings {
    /// Number of tokens of the longest n-gram, at least 2.
    pub(super) ngram_size: usize,
    pub(super) heads_per_ngram: usize,
    /// No modulus is less.
    pub(super) modulus_min: u32,
    pub(super) seed: u64,
    pub(super) vocab_size: usize,
    pub(super) end_token: u32,
}

/// Odd number by which the seeds of layers differ.
const LAYER_STEP: u64 = 10007;
const SPLITMIX_STEP: u64 = 0x9E37_79B9_7F4A_7C15;

impl HashSettings {
    /// Returns the number of heads of n-grams of all lengths.
    pub(super) fn num_heads(self) -> usize {
        (self.ngram_size - 1) * self.heads_per_ngram
    }

    /// Returns the hashes of the first `num_layers` layers with n-grams. As in the reference, all heads have
    /// different primes, in ascending order, and multipliers are chosen by splitmix64.
    pub(super) fn hashes(self, num_layers: usize) -> Vec<NgramHash> {
        let mut primes = (self.modulus_min.max(2)..).filter(|it| is_prime(*it)).map(i64::from);
        let half = i64::MAX / self.vocab_size as i64 / 2;
        let multiplier = |layer: u64, idx: u64| {
            let state = self.seed.wrapping_add(LAYER_STEP * layer);
            let bits = splitmix64(state.wrapping_add(SPLITMIX_STEP.wrapping_mul(idx + 1)));
            2 * (bits % half.max(1) as u64) as i64 + 1
        };
        let hash = |layer| NgramHash {
            multipliers: (0..self.ngram_size as u64).map(|idx| multiplier(layer, idx)).collect(),
            moduli: primes.by_ref().take(self.num_heads()).collect(),
            end_token: self.end_token,
        };
        (0..num_layers as u64).map(hash).collect()
    }
}

fn splitmix64(state: u64) -> u64 {
    let z = state.wrapping_add(SPLITMIX_STEP);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn is_prime(number: u32) -> bool {
    let divides = |divisor: &u32| number.is_multiple_of(*divisor);
    let divisors = (2..).take_while(|divisor| u64::from(*divisor).pow(2) <= u64::from(number));
    1 < number && !divisors.into_iter().any(|it| divides(&it))
}

/// Returns what a layer adds to the streams, at `module`. `num_parts` and `part_rows` are those of the
/// table, whose rows have `width` elements.
pub(super) fn ngrams(
    module: &str,
    hash: NgramHash,
    sizes: GateSizes,
    table: TableSizes,
) -> (NgramSpec, Vec<TensorSpec>) {
    let TableSizes { num_parts, part_rows, width, conv_width } = table;
    let at = |name: &str| format!("{module}.{name}");
    let (all, cut) = (sizes.all(), TensorCut::Replicated);
    let norm = |name: &str| vector(&at(name), TensorRole::Norm, all, cut.clone());
    let input = hash.moduli.len() * width;
    let linear = |name, output| {
        matrix(&at(name), TensorRole::Mixer, vec![output, input], TensorCut::Replicated)
    };
    let path = at("ple_embedding.ngram_embedding");
    let parts = format!("{path}.shards.");
    let rows = TensorCut::whole_column(Dimension::NgramRows, part_rows);
    let rows = matrix(&path, TensorRole::PerLayerTable, vec![num_parts, part_rows, width], rows);
    let per_expert = Some([parts.clone(), ".weight".to_owned()]);
    let rows = TensorSpec { per_expert, ..rows };
    let kernel = vector(&at("conv1d.weight"), TensorRole::Mixer, all, cut.clone());
    let spec = NgramSpec {
        dilation: hash.multipliers.len(),
        hash,
        table: NgramTable { module: path, parts, num_parts, part_rows, width },
        keys: linear("key_proj", all),
        values: linear("value_proj", sizes.hidden),
        norms: ["norm_key.weight", "norm_query.weight", "norm_conv.weight"].map(norm),
        convolution: TensorSpec { shape: vec![all, conv_width, 1], ..kernel },
    };
    let mut tensors = vec![rows, spec.keys.clone(), spec.values.clone(), spec.convolution.clone()];
    tensors.extend(spec.norms.clone());
    (spec, tensors)
}

/// Sizes of a table, and the number of positions that the convolution of its vectors sees.
#[derive(Clone, Copy, Debug)]
pub(super) struct TableSizes {
    pub(super) num_parts: usize,
    pub(super) part_rows: usize,
    pub(super) width: usize,
    pub(super) conv_width: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_of_hashes_are_those_of_the_published_model() {
        let settings = HashSettings {
            ngram_size: 3,
            heads_per_ngram: 8,
            modulus_min: 20_000_000,
            seed: 1234,
            vocab_size: 248_320,
            end_token: 0,
        };
        let [first, second] = settings.hashes(2).try_into().unwrap();
        assert_eq!(first.multipliers, [23703573157769, 20109073645365, 8052911324071]);
        assert_eq!(first.moduli.iter().sum::<i64>(), 320_001_446);
        assert!(first.moduli.last() < second.moduli.first());
        assert_ne!(first.multipliers, second.multipliers);
    }
}
