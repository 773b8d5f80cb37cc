//! Divides a model among ranks: every rank holds a part of every layer (tensor parallel), or whole
//! layers (pipeline parallel).
//!
//! For tensor parallelism a dimension is cut at whole *units* only: a unit of attention is a
//! key-value head with its query heads, a unit of an MLP a quantisation group, so that packed words
//! and scales stay whole. The ranks' shares decide how many units each rank gets, which may be
//! none.
//!
//! Pure arithmetic: every rank computes the same cuts for all ranks.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Number of vocabulary rows that are never divided.
pub const VOCAB_UNIT: usize = 32;

/// Number of indivisible inner elements of a small MLP without quantisation: whole vector
/// registers.
const PLAIN_UNIT: usize = 32;

/// Minimum number of units of a larger MLP, enough for shares of any kind.
const INNER_UNITS_MIN: usize = 12;

/// Maximum number of inner elements of a unit.
const INNER_UNIT_MAX: usize = 512;

/// Returns the number of indivisible inner elements of an MLP with `full` inner elements, quantised
/// in groups of `group_size`. A unit is also the number of products that are added before their sum
/// is rounded (see `divisible` in the kernels). It is as large as a fine division allows, because
/// fewer roundings take less time.
pub fn inner_unit(full: usize, group_size: Option<usize>) -> usize {
    let mut unit = group_size.unwrap_or(PLAIN_UNIT);
    while unit * 2 <= INNER_UNIT_MAX && INNER_UNITS_MIN * unit * 2 <= full {
        unit *= 2;
    }
    unit
}

/// How a model is divided among its ranks.
///
/// The two kinds could be combined: stages whose layers are divided again among several ranks would
/// be a third variant.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Split {
    /// Every rank holds a part of every layer. The weight of each rank, by rank; none is zero.
    Tensor(Vec<u32>),
    /// Every rank holds whole layers, a *stage*. The number of layers of each rank, by rank; none
    /// is zero. The last rank has the first layers and rank 0 the last ones, because rank 0
    /// samples; mlx-lm does the same.
    Pipeline(Vec<u32>),
}

impl Split {
    /// Returns the number of ranks.
    pub fn num_ranks(&self) -> usize {
        self.numbers().len()
    }

    /// Returns the shares of a tensor split, or the numbers of layers of a pipeline, by rank.
    pub fn numbers(&self) -> &[u32] {
        match self {
            Split::Tensor(numbers) | Split::Pipeline(numbers) => numbers,
        }
    }
}

/// Returns the layers of each rank, by rank; the last rank has the first layers. `None` unless
/// every rank has at least one layer and together they have all.
pub fn stages(layers: &[u32], num_layers: usize) -> Option<Vec<Range<usize>>> {
    let mut end = num_layers;
    let mut ranges = Vec::with_capacity(layers.len());
    for &len in layers {
        let start = end.checked_sub(len as usize).filter(|_| 0 < len)?;
        ranges.push(start..end);
        end = start;
    }
    (end == 0).then_some(ranges)
}

/// The weight of each rank in every division, by rank.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Shares(
    // Never empty; none is zero.
    Vec<u32>,
);

impl Shares {
    /// Creates shares from one positive number per rank; `None` for an empty vector or a zero.
    pub fn new(shares: Vec<u32>) -> Option<Shares> {
        (!shares.is_empty() && !shares.contains(&0)).then_some(Shares(shares))
    }

    /// Creates equal shares for `num_ranks` ranks.
    ///
    /// # Panics
    /// Panics if `num_ranks` is 0.
    #[track_caller]
    pub fn even(num_ranks: usize) -> Shares {
        assert!(0 < num_ranks, "a group has at least one rank");
        Shares(vec![1; num_ranks])
    }

    /// Returns the number of ranks.
    pub fn num_ranks(&self) -> usize {
        self.0.len()
    }

    /// Returns the share of each rank.
    pub fn as_slice(&self) -> &[u32] {
        &self.0
    }

    /// Cuts `0..num_units` into one range per rank, in the order of the ranks.
    ///
    /// Each unit goes to the rank with the lowest load relative to its share. This minimises the
    /// largest load per share, and a rank whose share grows never loses a unit.
    pub fn cut(&self, num_units: usize) -> Vec<Range<usize>> {
        let counts = deal(&self.0, num_units);
        let mut start = 0;
        let ranges = counts.into_iter().map(|count| {
            let range = start..start + count;
            start = range.end;
            range
        });
        ranges.collect()
    }
}

/// Returns the number of units per rank by D'Hondt's method; the lower rank wins a tie.
fn deal(shares: &[u32], num_units: usize) -> Vec<usize> {
    let total: u128 = shares.iter().map(|&share| u128::from(share)).sum();
    // Every rank gets at least its quota, rounded down, of the units less one per rank, so these
    // are dealt at once.
    let sure = num_units.saturating_sub(shares.len()) as u128;
    let mut counts: Vec<usize> =
        shares.iter().map(|&share| (sure * u128::from(share) / total) as usize).collect();
    for _ in counts.iter().sum::<usize>()..num_units {
        let next = (0..shares.len())
            .min_by(|&a, &b| {
                // (counts[a] + 1) / shares[a] against (counts[b] + 1) / shares[b]
                let load_a = (counts[a] as u128 + 1) * u128::from(shares[b]);
                let load_b = (counts[b] as u128 + 1) * u128::from(shares[a]);
                load_a.cmp(&load_b)
            })
            .expect("shares are never empty");
        counts[next] += 1;
    }
    counts
}

/// The part `own` of a dimension that a rank holds.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Cut {
    /// Length of the whole dimension.
    pub full: usize,
    /// Range that this rank holds.
    pub own: Range<usize>,
    /// Whether another rank holds the same part.
    pub is_shared: bool,
}

impl Cut {
    /// Creates a part that no other rank holds.
    pub fn new(full: usize, own: Range<usize>) -> Cut {
        Cut { full, own, is_shared: false }
    }

    /// Creates a dimension of which every rank holds all.
    pub fn of_all_ranks(full: usize) -> Cut {
        Cut { full, own: 0..full, is_shared: true }
    }

    /// Returns the length of this rank's part.
    pub fn len(&self) -> usize {
        self.own.len()
    }

    /// Whether this rank has no part.
    pub fn is_empty(&self) -> bool {
        self.own.is_empty()
    }

    /// Whether this rank holds the whole dimension.
    pub fn is_whole(&self) -> bool {
        self.own == (0..self.full)
    }

    /// Returns the same part of a dimension in which each element of this one becomes `factor`
    /// elements.
    pub fn scaled(&self, factor: usize) -> Cut {
        let own = self.own.start * factor..self.own.end * factor;
        Cut { full: self.full * factor, own, is_shared: self.is_shared }
    }

    /// Returns the same part of a dimension in which `divisor` elements of this one become one.
    ///
    /// # Panics
    /// Panics if the cut is not at multiples of `divisor`.
    #[track_caller]
    pub fn divided(&self, divisor: usize) -> Cut {
        let Range { start, end } = self.own;
        let is_aligned = [self.full, start, end].iter().all(|n| n.is_multiple_of(divisor));
        assert!(is_aligned, "{self:?} is not cut at multiples of {divisor}");
        let (full, own) = (self.full / divisor, start / divisor..end / divisor);
        Cut { full, own, is_shared: self.is_shared }
    }
}

/// Divides a dimension of `full` elements in units of `unit` among all ranks. The last unit may be
/// shorter.
pub fn cut_dimension(full: usize, unit: usize, shares: &Shares) -> Vec<Cut> {
    let ranges = shares.cut(full.div_ceil(unit)).into_iter();
    ranges
        .map(|units| Cut::new(full, (units.start * unit).min(full)..(units.end * unit).min(full)))
        .collect()
}

/// The attention heads of a model.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HeadCounts {
    /// Number of query heads; a multiple of `kv_heads`.
    pub heads: usize,
    /// Number of key and value heads.
    pub kv_heads: usize,
    /// Number of query heads that must stay together so that the output projection is cut between
    /// quantisation groups.
    pub heads_unit: usize,
}

impl HeadCounts {
    /// Creates the counts for heads of `head_dim` elements whose output projection is quantised in
    /// groups of `group_size` inputs; 1 if it is not quantised.
    pub fn new(heads: usize, kv_heads: usize, head_dim: usize, group_size: usize) -> HeadCounts {
        let heads_unit = lcm(head_dim, group_size) / head_dim;
        HeadCounts { heads, kv_heads, heads_unit }
    }
}

/// The heads of one rank.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HeadCut {
    /// Query heads.
    pub heads: Cut,
    /// Key and value heads; each serves the same number of this rank's query heads.
    pub kv_heads: Cut,
}

impl HeadCut {
    /// Returns the number of this rank's query heads that share a key-value head.
    pub fn heads_per_kv_head(&self) -> usize {
        self.heads.len().checked_div(self.kv_heads.len()).unwrap_or(0)
    }
}

/// Divides attention heads among all ranks: whole key-value heads with their query heads if there
/// are enough of them; else several ranks hold the same key-value head and divide its query heads.
///
/// # Panics
/// Panics if there are no key-value heads, or if the query heads are not a multiple of them.
pub fn cut_heads(counts: HeadCounts, shares: &Shares) -> Vec<HeadCut> {
    let HeadCounts { heads, kv_heads, heads_unit } = counts;
    assert!(0 < kv_heads && heads.is_multiple_of(kv_heads), "{heads} heads, {kv_heads} kv heads");
    let group = heads / kv_heads;
    let num_ranks = shares.num_ranks();
    if num_ranks <= kv_heads || !group.is_multiple_of(heads_unit) {
        let unit = lcm(group, heads_unit);
        let cuts = cut_dimension(heads, unit, shares).into_iter();
        return cuts
            .map(|cut| {
                let own = cut.own.start / group..cut.own.end / group;
                HeadCut { heads: cut, kv_heads: Cut::new(kv_heads, own) }
            })
            .collect();
    }
    let mut cuts = Vec::with_capacity(num_ranks);
    for (kv_head, ranks) in gather_ranks(shares.as_slice(), kv_heads).into_iter().enumerate() {
        let members = Shares(shares.as_slice()[ranks].to_vec());
        let parts = cut_dimension(group, heads_unit, &members);
        let num_holders = parts.iter().filter(|part| !part.is_empty()).count();
        for part in parts {
            let first = kv_head * group;
            let own = first + part.own.start..first + part.own.end;
            let own_kv = kv_head..kv_head + usize::from(!own.is_empty());
            let kv_heads = Cut { full: kv_heads, own: own_kv, is_shared: 1 < num_holders };
            cuts.push(HeadCut { heads: Cut::new(heads, own), kv_heads });
        }
    }
    cuts
}

/// Divides the ranks, in order, into `num_groups` non-empty runs such that the smallest sum of
/// shares is as large as possible.
fn gather_ranks(shares: &[u32], num_groups: usize) -> Vec<Range<usize>> {
    let num_ranks = shares.len();
    assert!(num_groups <= num_ranks, "every group has a rank");
    let mut prefix = vec![0_u64];
    for &share in shares {
        prefix.push(prefix[prefix.len() - 1] + u64::from(share));
    }
    // best[g][r]: the largest possible smallest sum over g runs that cover the first r ranks, and
    // where the last run begins.
    let mut best = vec![vec![(0, 0); num_ranks + 1]; num_groups + 1];
    best[0][0] = (u64::MAX, 0);
    for groups in 1..=num_groups {
        for end in groups..=num_ranks {
            best[groups][end] = (groups - 1..end)
                .map(|start| (best[groups - 1][start].0.min(prefix[end] - prefix[start]), start))
                .max_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)))
                .expect("the range is not empty");
        }
    }
    let mut runs = Vec::with_capacity(num_groups);
    let mut end = num_ranks;
    for groups in (1..=num_groups).rev() {
        let start = best[groups][end].1;
        runs.push(start..end);
        end = start;
    }
    runs.reverse();
    runs
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Returns the least common multiple.
fn lcm(a: usize, b: usize) -> usize {
    a / gcd(a, b) * b
}

#[cfg(test)]
mod tests;
