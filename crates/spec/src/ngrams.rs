//! Tables of n-grams.

use crate::tensor::TensorSpec;

/// What a layer adds to several streams before its blocks (Qwen team 2026, "Qwen3.8-Flash-Next"; DeepSeek-AI
/// 2026, "DeepSeek-V4.1"): the last tokens are hashed to rows of a table, whose vectors follow one another. A
/// projection of them is added to each stream, multiplied by a gate: the logistic function of the signed root
/// of the product of another projection and the stream, both normalised. Then a causal convolution of what
/// was added, normalised, may be added too.
#[derive(Clone, Debug, PartialEq)]
pub struct NgramSpec {
    /// How rows are found.
    pub hash: NgramHash,
    /// The numbers that are hashed in the place of the ids of tokens; `None` if ids are.
    pub map: Option<TokenMapSpec>,
    /// The table, of whose parts each rank holds some rows.
    pub table: NgramTable,
    /// Projections of its vectors.
    pub projections: NgramProjections,
    /// Norms of keys and of the streams, `[streams * hidden]` each. Each stream is normalised separately.
    pub norms: [TensorSpec; 2],
    /// Convolution of what is added, if there is one.
    pub convolution: Option<NgramConvolution>,
}

/// Projections of the vectors of n-grams to keys, which are compared with the streams,
/// `[streams * hidden, heads * width]`, and to what is added, `[hidden, heads * width]`.
#[derive(Clone, Debug, PartialEq)]
pub enum NgramProjections {
    /// Matrices of keys and of values.
    Apart([TensorSpec; 2]),
    /// One matrix, whose first rows are those of keys.
    Joint(TensorSpec),
}

/// A causal convolution of what is added to the streams.
#[derive(Clone, Debug, PartialEq)]
pub struct NgramConvolution {
    /// Norm of its inputs, `[streams * hidden]`; each stream is normalised separately.
    pub norm: TensorSpec,
    /// Its kernel, `[streams * hidden, conv_width, 1]`.
    pub kernel: TensorSpec,
    /// Dilation: distance between the positions that it reads.
    pub dilation: usize,
}

/// A list of numbers, one for each token, in a file of the checkpoint. Tokens that are read alike have the same
/// number.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TokenMapSpec {
    /// One more than the largest number.
    pub num_numbers: usize,
    /// Token whose number takes the place of tokens before a sequence.
    pub padding_token: u32,
    /// Token that stands for a part of an image: it and all tokens before it count as padding, and nothing
    /// is added to the streams where it is.
    pub image_token: u32,
}

impl TokenMapSpec {
    /// Name of the file: a JSON array.
    pub const FILE: &str = "engram_token_map.json";
}

/// A table whose rows are in equal parts.
#[derive(Clone, Debug, PartialEq)]
pub struct NgramTable {
    /// Name of the table.
    pub module: String,
    /// Name of its parts, before their number; `None` if it is one tensor `[rows, width]`.
    pub parts: Option<String>,
    /// Number of parts.
    pub num_parts: usize,
    /// Number of rows of a part.
    pub part_rows: usize,
    /// Number of elements of a row.
    pub width: usize,
}

/// A hash of the last tokens. The number of the token that is `n` positions before the last one is
/// multiplied by `multipliers[n]`; the exclusive or of the products of the last two tokens, of the last
/// three and so on is the number of the n-gram. In each of its heads its row is the remainder of that number
/// by the head's `moduli`, plus the head's offset, which is the sum of all earlier moduli. After a token
/// that ends a text, all earlier ones count as padding.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NgramHash {
    /// Odd numbers, one for each token of the longest n-gram. Products fit 63 bits.
    pub multipliers: Vec<i64>,
    /// Primes: those of the heads of pairs, then of triples, and so on, as many of each.
    pub moduli: Vec<i64>,
    /// Number of the token that ends a text.
    pub end: u32,
    /// Number that takes the place of this token and of earlier ones.
    pub padding: u32,
    /// Whether the end token also cuts the n-grams that end at itself.
    pub ends_itself: bool,
}

impl NgramHash {
    /// Returns the number of tokens before the last one that it sees.
    pub fn num_earlier(&self) -> usize {
        self.multipliers.len() - 1
    }

    /// Returns the first row of each head.
    pub fn offsets(&self) -> Vec<i64> {
        let starts = self.moduli.iter().scan(0, |next, modulus| {
            let start = *next;
            *next += modulus;
            Some(start)
        });
        starts.collect()
    }

    /// Returns the rows of each of these numbers of tokens, heads by heads, but not of the first ones, which
    /// are only seen by later ones.
    pub fn rows(&self, numbers: &[u32]) -> Vec<usize> {
        let (heads, offsets) = (self.heads_per_ngram(), self.offsets());
        let mut rows = Vec::new();
        for window in numbers.windows(self.multipliers.len()) {
            let (mut number, mut has_ended) = (0, false);
            let seen = window.iter().rev().zip(&self.multipliers).enumerate();
            for (distance, (token, multiplier)) in seen {
                has_ended |= (0 < distance || self.ends_itself) && *token == self.end;
                let token = if has_ended { self.padding } else { *token };
                number ^= i64::from(token) * multiplier;
                let Some(length) = distance.checked_sub(1) else { continue };
                let own = length * heads..(length + 1) * heads;
                let of_heads = self.moduli[own.clone()].iter().zip(&offsets[own]);
                rows.extend(of_heads.map(|(modulus, offset)| (number % modulus + offset) as usize));
            }
        }
        rows
    }

    /// Returns the number of heads of n-grams of a length.
    pub fn heads_per_ngram(&self) -> usize {
        self.moduli.len() / self.num_earlier()
    }
}

impl NgramConvolution {
    /// Returns the number of earlier positions that it reaches to.
    pub fn reach(&self) -> usize {
        (self.kernel.shape[1] - 1) * self.dilation
    }
}

impl NgramSpec {
    /// Returns the number of elements that every rank keeps of a sequence: the last tokens, and the inputs
    /// of the convolution at the last positions.
    pub fn state_elements(&self) -> usize {
        let inputs = |it: &NgramConvolution| it.reach() * it.kernel.shape[0];
        self.hash.num_earlier() + self.convolution.as_ref().map_or(0, inputs)
    }

    /// Returns the number of its caches: of tokens, and of the inputs of the convolution.
    pub fn num_caches(&self) -> usize {
        1 + usize::from(self.convolution.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_before_the_end_of_a_text_do_not_matter() {
        let hash = NgramHash {
            multipliers: vec![23703573157769, 20109073645365, 8052911324071],
            moduli: vec![20000003, 20000023, 20000033, 20000047],
            end: 7,
            padding: 7,
            ends_itself: false,
        };
        assert_eq!(hash.rows(&[1, 7, 3]), hash.rows(&[7, 7, 3]));
        assert_ne!(hash.rows(&[1, 2, 3]), hash.rows(&[7, 2, 3]));
        // The last token does not cut itself off.
        assert_ne!(hash.rows(&[1, 2, 7]), hash.rows(&[7, 7, 7]));
        let ending = NgramHash { padding: 4, ends_itself: true, ..hash.clone() };
        assert_eq!(ending.rows(&[1, 2, 7]), hash.rows(&[4, 4, 4]));
        assert_eq!(ending.rows(&[1, 7, 2]), hash.rows(&[4, 4, 2]));
        assert_eq!(hash.rows(&[1, 2, 3])[..2], hash.rows(&[5, 2, 3])[..2]);
        assert_ne!(hash.rows(&[1, 2, 3])[2..], hash.rows(&[5, 2, 3])[2..]);
        let sums = (1_u64..4)
            .zip([4, 3, 2])
            .map(|(n, token)| token * hash.multipliers[n as usize - 1] as u64);
        let sums: Vec<u64> = sums.collect();
        let expected = (sums[0] ^ sums[1] ^ sums[2]) % 20000047 + 20000003 + 20000023 + 20000033;
        assert_eq!(hash.rows(&[2, 3, 4])[3] as u64, expected);
    }
}
