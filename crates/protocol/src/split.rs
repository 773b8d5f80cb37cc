//! Which part of a model each rank holds: a part of every layer (tensor parallel), or whole layers
//! (pipeline parallel).
//!
//! For tensor parallelism a dimension is cut at whole *units* only: a unit of attention is a key-value head with its query
//! heads, a unit of an MLP a quantisation group, so that packed words and scales stay whole. The
//! ranks' shares decide how many units each of them gets. A rank may get none.
//!
//! Pure arithmetic: every rank computes the same cuts for all ranks.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Vocabulary rows that are not divided.
pub const VOCAB_UNIT: usize = 32;

/// Indivisible inner elements of a small MLP without quantisation: whole vector registers.
const PLAIN_UNIT: usize = 32;

/// Minimum number of units of a larger MLP, enough for shares of any kind.
const INNER_UNITS_MIN: usize = 12;

/// Maximum number of inner elements of a unit.
const INNER_UNIT_MAX: usize = 512;

/// Number of indivisible inner elements of an MLP with `full` inner elements, quantised in groups
/// of `group_size`. A unit is also the number of products that are added before their sum is
/// rounded (see `divisible` in the kernels). It is as large as a fine division allows, because
/// fewer roundings take less time.
pub fn inner_unit(full: usize, group_size: Option<usize>) -> usize {
    let mut unit = group_size.unwrap_or(PLAIN_UNIT);
    while unit * 2 <= INNER_UNIT_MAX && INNER_UNITS_MIN * unit * 2 <= full {
        unit *= 2;
    }
    unit
}

/// How a model is divided over its ranks.
///
/// The two do not exclude each other: stages whose layers are cut again over ranks of their own
/// would be a third case.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Split {
    /// Every rank holds a part of every layer: the weight of each rank, by rank. None is zero.
    Tensor(Vec<u32>),
    /// Every rank holds whole layers, a *stage*: the number of layers of each rank, by rank. None
    /// is zero. The last rank has the first layers and rank 0 the last ones, for it draws; mlx-lm
    /// does the same.
    Pipeline(Vec<u32>),
}

impl Split {
    /// As many numbers as there are ranks.
    pub fn num_ranks(&self) -> usize {
        self.numbers().len()
    }

    /// The shares, or the numbers of layers, by rank.
    pub fn numbers(&self) -> &[u32] {
        match self {
            Split::Tensor(numbers) | Split::Pipeline(numbers) => numbers,
        }
    }
}

/// The layers of each rank, by rank: the last rank has the first ones. `None` unless every rank has
/// some and together they have all.
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

/// The weight of each rank in every cut, by rank.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Shares(
    // Never empty, none zero.
    Vec<u32>,
);

impl Shares {
    /// One positive number per rank; `None` for an empty vector or a zero.
    pub fn new(shares: Vec<u32>) -> Option<Shares> {
        (!shares.is_empty() && !shares.contains(&0)).then_some(Shares(shares))
    }

    /// The same share for each of `num_ranks` ranks.
    ///
    /// # Panics
    /// If there is no rank.
    #[track_caller]
    pub fn even(num_ranks: usize) -> Shares {
        assert!(0 < num_ranks, "a group has at least one rank");
        Shares(vec![1; num_ranks])
    }

    /// Number of ranks.
    pub fn num_ranks(&self) -> usize {
        self.0.len()
    }

    /// The share of each rank.
    pub fn as_slice(&self) -> &[u32] {
        &self.0
    }

    /// Cuts `0..num_units` into one range per rank, in the order of the ranks.
    ///
    /// Units are dealt one by one to the rank that is then least loaded for its share, which makes
    /// the largest load per share as small as it can be, and never takes a unit from a rank whose
    /// share grows.
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

/// Units per rank, by D'Hondt's method; the lower rank wins a tie.
fn deal(shares: &[u32], num_units: usize) -> Vec<usize> {
    let total: u128 = shares.iter().map(|&share| u128::from(share)).sum();
    // Nobody gets less than the quota rounded down of one unit less per rank: deal that at once.
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

/// A dimension of which a rank holds `own`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Cut {
    /// Length of the whole dimension.
    pub full: usize,
    /// The part of this rank.
    pub own: Range<usize>,
    /// True if another rank holds the same part.
    pub is_shared: bool,
}

impl Cut {
    /// A part that no other rank holds.
    pub fn new(full: usize, own: Range<usize>) -> Cut {
        Cut { full, own, is_shared: false }
    }

    /// Length of this rank's part.
    pub fn len(&self) -> usize {
        self.own.len()
    }

    /// True if this rank has no part.
    pub fn is_empty(&self) -> bool {
        self.own.is_empty()
    }

    /// True if this rank holds everything.
    pub fn is_whole(&self) -> bool {
        self.own == (0..self.full)
    }

    /// The same part of a dimension in which each element of this one stands for `factor`.
    pub fn scaled(&self, factor: usize) -> Cut {
        let own = self.own.start * factor..self.own.end * factor;
        Cut { full: self.full * factor, own, is_shared: self.is_shared }
    }

    /// The same part of a dimension in which `divisor` elements of this one are one.
    ///
    /// # Panics
    /// If the cut is not at multiples of `divisor`.
    #[track_caller]
    pub fn divided(&self, divisor: usize) -> Cut {
        let Range { start, end } = self.own;
        let is_aligned = [self.full, start, end].iter().all(|n| n.is_multiple_of(divisor));
        assert!(is_aligned, "{self:?} is not cut at multiples of {divisor}");
        let (full, own) = (self.full / divisor, start / divisor..end / divisor);
        Cut { full, own, is_shared: self.is_shared }
    }
}

/// One cut per rank of a dimension of `full` elements in units of `unit`. The last unit may be
/// short.
pub fn cut_dimension(full: usize, unit: usize, shares: &Shares) -> Vec<Cut> {
    let ranges = shares.cut(full.div_ceil(unit)).into_iter();
    ranges
        .map(|units| Cut::new(full, (units.start * unit).min(full)..(units.end * unit).min(full)))
        .collect()
}

/// The attention heads of a model.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HeadCounts {
    /// Query heads; a multiple of `kv_heads`.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Query heads that must stay together so that the output projection is cut between
    /// quantisation groups.
    pub heads_unit: usize,
}

impl HeadCounts {
    /// Heads of `head_dim` elements whose output projection is quantised in groups of `group_size`
    /// inputs; 1 if it is plain.
    pub fn new(
        heads: usize,
        kv_heads: usize,
        (head_dim, group_size): (usize, usize),
    ) -> HeadCounts {
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
    /// Query heads of this rank that share a key-value head.
    pub fn heads_per_kv_head(&self) -> usize {
        self.heads.len().checked_div(self.kv_heads.len()).unwrap_or(0)
    }
}

/// Cuts attention heads: whole key-value heads with their query heads as long as there are enough
/// of them, else key-value heads are held by several ranks that divide the query heads.
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

/// Divides the ranks, in order, into `num_groups` non-empty runs whose smallest sum of shares is as
/// large as it can be.
fn gather_ranks(shares: &[u32], num_groups: usize) -> Vec<Range<usize>> {
    let num_ranks = shares.len();
    assert!(num_groups <= num_ranks, "every group has a rank");
    let mut prefix = vec![0_u64];
    for &share in shares {
        prefix.push(prefix[prefix.len() - 1] + u64::from(share));
    }
    // best[g][r]: the smallest sum over g runs that cover the first r ranks, and where the last
    // run begins.
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

/// The least common multiple.
fn lcm(a: usize, b: usize) -> usize {
    a / gcd(a, b) * b
}

#[cfg(test)]
mod tests;
