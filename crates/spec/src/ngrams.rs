//! Tables of n-grams.

use crate::tensor::TensorSpec;

/// What a layer adds to several streams before its blocks (Qwen team 2026, "Qwen3.8-Flash-Next"): the last
/// tokens are hashed to rows of a table, whose vectors follow one another. A projection of them is added to
/// each stream, multiplied by a gate: the logistic function of the signed root of the product of another
/// projection and the stream, both normalised. Then a causal convolution of what was added, normalised, is
/// added too.
#[derive(Clone, Debug, PartialEq)]
pub struct NgramSpec {
    /// How rows are found.
    pub hash: NgramHash,
    /// The table `[parts, rows, width]`, of whose parts each rank holds some rows.
    pub table: NgramTable,
    /// Projection to what is compared with the streams, `[streams * hidden, heads * width]`.
    pub keys: TensorSpec,
    /// Projection to what is added, `[hidden, heads * width]`.
    pub values: TensorSpec,
    /// Norms of keys, of the streams, and of what is added, `[streams * hidden]` each. Each stream is
    /// normalised separately.
    pub norms: [TensorSpec; 3],
    /// Kernel of the convolution, `[streams * hidden, conv_width, 1]`.
    pub convolution: TensorSpec,
    /// Distance of the positions that the convolution sees.
    pub dilation: usize,
}

/// A table whose rows are in equal parts.
#[derive(Clone, Debug, PartialEq)]
pub struct NgramTable {
    /// Name of the table.
    pub module: String,
    /// Name of its parts, before their number.
    pub parts: String,
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
/// that ends a text, all earlier ones count as that token.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NgramHash {
    /// Odd numbers, one for each token of the longest n-gram. Products fit 63 bits.
    pub multipliers: Vec<i64>,
    /// Primes: those of the heads of pairs, then of triples, and so on, as many of each.
    pub moduli: Vec<i64>,
    /// Token that ends a text.
    pub end_token: u32,
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

    /// Returns the rows of each token of `tokens`, heads by heads, but not of the first ones, which are only
    /// seen by later ones.
    pub fn rows(&self, tokens: &[u32]) -> Vec<usize> {
        let (heads, offsets) = (self.heads_per_ngram(), self.offsets());
        let mut rows = Vec::new();
        for window in tokens.windows(self.multipliers.len()) {
            let (mut number, mut has_ended) = (0, false);
            let seen = window.iter().rev().zip(&self.multipliers).enumerate();
            for (distance, (token, multiplier)) in seen {
                has_ended |= 0 < distance && *token == self.end_token;
                let token = if has_ended { self.end_token } else { *token };
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

impl NgramSpec {
    /// Returns the number of earlier positions that the convolution reaches to.
    pub fn reach(&self) -> usize {
        (self.convolution.shape[1] - 1) * self.dilation
    }

    /// Returns the number of elements that every rank keeps of a sequence: the last tokens, and the inputs
    /// of the convolution at the last positions.
    pub fn state_elements(&self) -> usize {
        self.hash.num_earlier() + self.reach() * self.convolution.shape[0]
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
            end_token: 7,
        };
        assert_eq!(hash.rows(&[1, 7, 3]), hash.rows(&[7, 7, 3]));
        assert_ne!(hash.rows(&[1, 2, 3]), hash.rows(&[7, 2, 3]));
        // The last token does not cut itself off.
        assert_ne!(hash.rows(&[1, 2, 7]), hash.rows(&[7, 7, 7]));
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
