//! Hashes of the last tokens: the numbers of tokens, and hashes with MLX; see
//! [`jackalope_spec::NgramHash`].

use std::sync::Arc;

use jackalope_mlx::{Array, Dtype, dim};
use jackalope_protocol::TokenId;
use jackalope_spec::{NgramHash, NgramSpec};

/// The numbers that are hashed in the place of the ids of tokens.
#[derive(Clone, Debug)]
pub struct TokenNumbers {
    /// Number of each token; `None` if it is the id.
    map: Option<Arc<[u32]>>,
    /// Number of what is before a sequence.
    end: u32,
    /// Token to which nothing is added.
    unread: Option<TokenId>,
}

impl TokenNumbers {
    /// Returns how tokens are hashed. `map` is what the checkpoint has in a file of its own.
    ///
    /// # Panics
    /// Panics if the description asks for such a file and there is none.
    pub fn of(spec: &NgramSpec, map: Option<Arc<[u32]>>) -> (NgramHash, TokenNumbers) {
        let hash = spec.hash.clone();
        let Some(stated) = &spec.map else {
            let end = hash.end;
            return (hash, TokenNumbers { map: None, end, unread: None });
        };
        let map = map.expect("a checkpoint is opened with this file");
        let padding = map[stated.padding_token as usize];
        let (end, unread) = (hash.end, Some(stated.image_token));
        (NgramHash { padding, ..hash }, TokenNumbers { map: Some(map), end, unread })
    }

    /// Returns the number of a token that states hold as one more than its id, or zero before a sequence.
    pub fn of_held(&self, held: TokenId) -> u32 {
        let Some(id) = held.checked_sub(1) else { return self.end };
        match &self.map {
            _ if self.unread == Some(id) => self.end,
            // The tokenizer has no token of such an id.
            Some(map) => map.get(id as usize).copied().unwrap_or(self.end),
            None => id,
        }
    }

    /// Whether something is added to a token.
    pub fn is_read(&self, token: TokenId) -> bool {
        self.unread != Some(token)
    }

    /// As [`TokenNumbers::of_held`], with MLX, i64.
    pub fn stock(&self, held: &Array) -> Array {
        let ids = held.astype(Dtype::I64);
        match &self.map {
            Some(map) => {
                let of_id = |id: usize| i64::from(self.of_held(id as TokenId));
                // One more, for ids that the tokenizer does not have.
                let numbers: Vec<i64> = (0..map.len() + 2).map(of_id).collect();
                let last = Array::from_slice(&[numbers.len() as i64 - 1], &[1]);
                let table = Array::from_slice(&numbers, &[dim(numbers.len())]);
                table.take(&ids.minimum(&last), 0)
            }
            None => {
                let end = Array::from_slice(&[i64::from(self.end)], &[1]);
                let one = Array::from_slice(&[1_i64], &[1]);
                Array::where_(&ids.less(&one), &end, &ids.sub(&one))
            }
        }
    }

    /// As [`TokenNumbers::is_read`], with MLX; `None` if something is added to all tokens.
    pub fn stock_are_read(&self, tokens: &Array) -> Option<Array> {
        let unread = self.unread.map(|token| Array::from_slice(&[dim(token as usize)], &[1]))?;
        Some(tokens.equal(&unread).logical_not())
    }
}

/// As [`NgramHash::rows`], with MLX, for i64 tokens `[sequences, earlier + seq]`: i64
/// `[sequences, seq, heads]`.
pub fn stock_rows(hash: &NgramHash, tokens: &Array) -> Array {
    let NgramHash { multipliers, moduli, .. } = hash;
    let (num_earlier, heads) = (hash.num_earlier(), hash.heads_per_ngram());
    let offsets = hash.offsets();
    let seq = tokens.dim(1) - dim(num_earlier);
    let scalar = |value: i64| Array::from_slice(&[value], &[1]);
    let [end, padding] = [hash.end, hash.padding].map(|number| scalar(i64::from(number)));
    let at = |idx: usize| {
        let first = dim(num_earlier - idx);
        tokens.slice_axis(1, first, first + seq)
    };
    let mut has_ended = hash.ends_itself.then(|| at(0).equal(&end));
    let padded = |token: Array, has_ended: &Option<Array>| match has_ended {
        Some(ended) => Array::where_(ended, &padding, &token),
        None => token,
    };
    let mut number = padded(at(0), &has_ended).mul(&scalar(multipliers[0]));
    let rows = (1..multipliers.len()).map(|idx| {
        let ends = at(idx).equal(&end);
        let ended = has_ended.take().map_or(ends.clone(), |it| it.logical_or(&ends));
        has_ended = Some(ended);
        let token = padded(at(idx), &has_ended);
        number = number.bitwise_xor(&token.mul(&scalar(multipliers[idx])));
        let own = (idx - 1) * heads..idx * heads;
        let row = |values: &[i64]| Array::from_slice(values, &[dim(heads)]);
        let remainder = number.expand_dims(2).remainder(&row(&moduli[own.clone()]));
        remainder.add(&row(&offsets[own]))
    });
    let rows: Vec<Array> = rows.collect();
    Array::concatenate(&rows.iter().collect::<Vec<_>>(), 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_of_mlx_compute_the_same_rows() {
        let hash = NgramHash {
            multipliers: vec![23703573157769, 20109073645365, 8052911324071],
            moduli: vec![20000003, 20000023, 20000033, 20000047],
            end: 7,
            padding: 7,
            ends_itself: false,
        };
        let tokens: Vec<u32> = (0..40).map(|idx| (idx * 37) % 11 + 248_000 * (idx % 2)).collect();
        let wide: Vec<i64> = tokens.iter().map(|token| i64::from(*token)).collect();
        let found = stock_rows(&hash, &Array::from_slice(&wide, &[1, 40]));
        let found = found.to_vec::<i64>().unwrap();
        let expected: Vec<i64> = hash.rows(&tokens).iter().map(|row| *row as i64).collect();
        assert_eq!(found, expected);
        assert_eq!(found.len(), 38 * 4);
    }
}
