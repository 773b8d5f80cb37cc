//! Hashes of the last tokens with MLX; see [`jackalope_spec::NgramHash`].

use jackalope_mlx::{Array, dim};
use jackalope_spec::NgramHash;

/// As [`NgramHash::rows`], with MLX, for i64 tokens `[sequences, earlier + seq]`: i64
/// `[sequences, seq, heads]`.
pub(super) fn stock_rows(hash: &NgramHash, tokens: &Array) -> Array {
    let NgramHash { multipliers, moduli, end_token } = hash;
    let (num_earlier, heads) = (hash.num_earlier(), hash.heads_per_ngram());
    let offsets = hash.offsets();
    let seq = tokens.dim(1) - dim(num_earlier);
    let scalar = |value: i64| Array::from_slice(&[value], &[1]);
    let end = scalar(i64::from(*end_token));
    let at = |idx: usize| {
        let first = dim(num_earlier - idx);
        tokens.slice_axis(1, first, first + seq)
    };
    let mut number = at(0).mul(&scalar(multipliers[0]));
    let mut has_ended: Option<Array> = None;
    let rows = (1..multipliers.len()).map(|idx| {
        let token = at(idx);
        let ends = token.equal(&end);
        let ended = has_ended.take().map_or(ends.clone(), |it| it.logical_or(&ends));
        let token = Array::where_(&ended, &end, &token);
        has_ended = Some(ended);
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
            end_token: 7,
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
