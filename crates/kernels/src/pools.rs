//! Means of pools of positions.

use std::sync::Arc;

/// How the vector of a pool is computed from projections and gates.
#[derive(Clone, Debug)]
pub struct PoolRule {
    /// Number of positions of a pool.
    pub len: usize,
    /// Width of a vector.
    pub dim: usize,
    /// Number of pools that a position takes part in: 2 if they overlap. The first lane of its projections is
    /// for the next pool, the last one for its own.
    pub lanes: usize,
    /// What is added to the gates of each place, `[len, lanes * dim]`; nothing if pools have one position
    /// and no gates.
    pub places: Arc<[f32]>,
}

impl PoolRule {
    /// Returns the weighted mean of rows; each row has its values from `first` on, followed by its gates. If
    /// there are more than `len` rows, the first ones belong to the previous pool. Soft-max and mean are
    /// computed in f64 and rounded once, because libraries differ in the last bits of exponentials.
    pub fn mean(&self, rows: &[Vec<f32>], first: usize) -> Vec<f32> {
        let &PoolRule { len, dim, lanes, ref places } = self;
        if let [row] = rows {
            // The weight is 1, and there may be no gate.
            let own = first + (lanes - 1) * dim;
            return row[own..own + dim].to_vec();
        }
        let width = lanes * dim;
        let num_earlier = rows.len() - len;
        let element = |idx: usize| {
            let weighed = || {
                rows.iter().enumerate().map(move |(row_idx, row)| {
                    let is_earlier = row_idx < num_earlier;
                    let at = idx + if is_earlier { 0 } else { (lanes - 1) * dim };
                    let place = if is_earlier { row_idx } else { row_idx - num_earlier };
                    let gate = row[first + width + at] + places[place * width + at];
                    (f64::from(row[first + at]), f64::from(gate))
                })
            };
            let max = weighed().fold(f64::NEG_INFINITY, |max, (_, gate)| max.max(gate));
            let sums = weighed().fold([0.0, 0.0], |[sum, all], (value, gate)| {
                let power = (gate - max).exp();
                [sum + power * value, all + power]
            });
            (sums[0] / sums[1]) as f32
        };
        (0..dim).map(element).collect()
    }
}
