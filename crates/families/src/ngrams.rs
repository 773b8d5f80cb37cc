//! Tables of n-grams: their tensors, and the constants of their hashes.

use super::blocks::{matrix, vector};
use super::gates::GateSizes;
use super::random::NumpyRandom;
use jackalope_spec::{
    Dimension, NgramConvolution, NgramHash, NgramProjections, NgramSpec, NgramTable, TensorCut,
    TensorRole, TensorSpec,
};

/// What the hashes of all layers have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct HashSettings {
    /// Number of tokens of the longest n-gram, at least 2.
    pub(super) ngram_size: usize,
    pub(super) heads_per_ngram: usize,
    /// No modulus is less.
    pub(super) modulus_min: u32,
    /// Number of different numbers that are hashed.
    pub(super) num_numbers: usize,
    pub(super) end: u32,
    pub(super) multipliers: Multipliers,
}

/// How multipliers are chosen.
#[derive(Clone, Copy, Debug)]
pub(super) enum Multipliers {
    /// By splitmix64 from this seed, and from the number of the layer among those with n-grams.
    Splitmix(u64),
    /// By numpy's random numbers from the number of the layer.
    Numpy,
}

/// Odd number by which the seeds of layers differ.
const LAYER_STEP: u64 = 10007;
const SPLITMIX_STEP: u64 = 0x9E37_79B9_7F4A_7C15;

impl Multipliers {
    /// Returns `number` numbers below `bound` for a layer, which is one of those with n-grams.
    fn of(self, [layer_idx, table_idx]: [usize; 2], number: usize, bound: u64) -> Vec<u64> {
        match self {
            Multipliers::Splitmix(seed) => {
                let state = seed.wrapping_add(LAYER_STEP * table_idx as u64);
                let bits =
                    |idx: u64| splitmix64(state.wrapping_add(SPLITMIX_STEP.wrapping_mul(idx + 1)));
                (0..number as u64).map(|idx| bits(idx) % bound).collect()
            }
            Multipliers::Numpy => {
                let mut random = NumpyRandom::new(LAYER_STEP * layer_idx as u64);
                (0..number).map(|_| random.below(bound)).collect()
            }
        }
    }
}

impl HashSettings {
    /// Returns the number of heads of n-grams of all lengths.
    pub(super) fn num_heads(self) -> usize {
        (self.ngram_size - 1) * self.heads_per_ngram
    }

    /// Returns the hashes of these layers. As in the references, all heads have different primes, in
    /// ascending order.
    pub(super) fn hashes(self, layers: &[usize]) -> Vec<NgramHash> {
        let mut primes = (self.modulus_min.max(2)..).filter(|it| is_prime(*it)).map(i64::from);
        let half = (i64::MAX / self.num_numbers as i64 / 2).max(1) as u64;
        let hash = |(table_idx, layer_idx): (usize, &usize)| {
            let numbers = self.multipliers.of([*layer_idx, table_idx], self.ngram_size, half);
            NgramHash {
                multipliers: numbers.into_iter().map(|number| 2 * number as i64 + 1).collect(),
                moduli: primes.by_ref().take(self.num_heads()).collect(),
                end: self.end,
                padding: self.end,
                ends_itself: false,
            }
        };
        layers.iter().enumerate().map(hash).collect()
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
    let [keys, values] = [linear("key_proj", all), linear("value_proj", sizes.hidden)];
    let convolution = NgramConvolution {
        norm: norm("norm_conv.weight"),
        kernel: TensorSpec { shape: vec![all, conv_width, 1], ..kernel },
        dilation: hash.multipliers.len(),
    };
    let norms = ["norm_key.weight", "norm_query.weight"].map(norm);
    let mut tensors = vec![rows, keys.clone(), values.clone()];
    tensors.extend([convolution.kernel.clone(), convolution.norm.clone()]);
    tensors.extend(norms.clone());
    let spec = NgramSpec {
        hash,
        map: None,
        table: NgramTable { module: path, parts: Some(parts), num_parts, part_rows, width },
        projections: NgramProjections::Apart([keys, values]),
        norms,
        convolution: Some(convolution),
    };
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
            num_numbers: 248_320,
            end: 0,
            multipliers: Multipliers::Splitmix(1234),
        };
        let [first, second] = settings.hashes(&[3, 5]).try_into().unwrap();
        assert_eq!(first.multipliers, [23703573157769, 20109073645365, 8052911324071]);
        assert_eq!(first.moduli.iter().sum::<i64>(), 320_001_446);
        assert!(first.moduli.last() < second.moduli.first());
        assert_ne!(first.multipliers, second.multipliers);
    }
}
