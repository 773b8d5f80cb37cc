//! Searches for shares, and for stages, with which no rank needs more memory than it may use.

use std::ops::Range;

use jackalope_protocol::split::Split;

use super::SplitKind;
use super::dealing::{RankNeed, need, needs};
use super::model::PlacementModel;

/// Steps into which the largest share is divided, coarse first: small numbers are easiest to read,
/// and equal machines should get equal shares whatever else runs on them.
const STEPS_BY_MEMORY: [u64; 3] = [8, 16, 100];

/// Like [`STEPS_BY_MEMORY`], for shares proportional to the memory that is left beside the parts
/// that every rank holds.
const STEPS_BY_ROOM: [u64; 3] = [16, 100, 1000];

/// By number of ranks: before a model is refused, all shares whose sum is at most this are tried.
pub(super) const GRID_SUM_MAX: [u32; 9] = [0, 1, 128, 24, 20, 16, 14, 13, 12];

/// A split, and what each rank needs with it.
type Attempt = (Split, Vec<RankNeed>);

/// Returns true if no rank needs more than it may use.
pub(super) fn fits(needs: &[RankNeed], caps: &[u64]) -> bool {
    needs.iter().zip(caps).all(|(need, cap)| need.total() <= *cap)
}

/// Returns the best split of a kind; `None` if there are more ranks than layers, or than stages into
/// which the layers can be cut.
pub(super) fn best(
    model: &PlacementModel,
    kind: SplitKind,
    caps: &[u64],
    context_tokens: u32,
) -> Option<Attempt> {
    match kind {
        SplitKind::Tensor => Some(best_shares(model, caps, context_tokens)),
        SplitKind::Pipeline => best_stages(model, caps, context_tokens),
    }
}

/// Returns the stages with which the fullest machine has the most memory left, relative to what it
/// may use.
fn best_stages(model: &PlacementModel, caps: &[u64], context_tokens: u32) -> Option<Attempt> {
    let (num_ranks, num_layers) = (caps.len(), model.num_layers());
    if num_layers < num_ranks || num_ranks == 0 {
        return None;
    }
    // fill[end], from the first layer on and so from the last rank on: how full the fullest machine
    // is if the ranks so far hold the layers up to `end`, and where the last of these stages
    // begins.
    let mut tables: Vec<Vec<(f64, usize)>> = Vec::new();
    // Layers that read the cache of another one stay on its rank.
    let can_begin: Vec<bool> =
        (0..num_layers).map(|layer_idx| model.layout.can_begin_stage(layer_idx)).collect();
    for (stage_idx, cap) in caps.iter().rev().enumerate() {
        let fill = |layers: Range<usize>| {
            let need = need(model, &model.layout.stage_shard(layers), context_tokens);
            need.total() as f64 / (*cap).max(1) as f64
        };
        let row = (0..=num_layers).map(|end| {
            let starts = match tables.last() {
                None => 0..usize::from(0 < end),
                Some(_) => stage_idx..end,
            };
            let ways = starts.filter(|start| can_begin[*start]).map(|start| {
                let before = tables.last().map_or(0.0, |before| before[start].0);
                (before.max(fill(start..end)), start)
            });
            ways.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((f64::INFINITY, 0))
        });
        let row = row.collect();
        tables.push(row);
    }
    if tables.last().is_none_or(|table| table[num_layers].0.is_infinite()) {
        return None;
    }
    let mut layers = Vec::with_capacity(num_ranks);
    let mut end = num_layers;
    for table in tables.iter().rev() {
        let start = table[end].1;
        layers.push(u32::try_from(end - start).expect("config.json bounds the number of layers"));
        end = start;
    }
    let split = Split::Pipeline(layers);
    let needs = needs(model, &split, context_tokens);
    Some((split, needs))
}

/// Returns the first shares that fit: proportional to memory, then to the memory left, then the
/// best of all small ones. Parts are cut at whole heads and groups, so that small shares may fit
/// where a finer division does not after rounding. If none fit, returns the attempt that lacks the
/// least.
fn best_shares(model: &PlacementModel, caps: &[u64], context_tokens: u32) -> Attempt {
    let attempt = |shares: Vec<u32>| -> Attempt {
        let split = Split::Tensor(shares);
        let needs = needs(model, &split, context_tokens);
        (split, needs)
    };
    let by_memory = STEPS_BY_MEMORY.iter().map(|&steps| proportional(caps, steps));
    let rooms = rooms(model, caps, context_tokens);
    let by_room = STEPS_BY_ROOM.iter().map(|&steps| proportional(&rooms, steps));
    let mut least: Option<(u64, Attempt)> = None;
    for shares in by_memory.chain(by_room) {
        let found = attempt(shares);
        if fits(&found.1, caps) {
            return found;
        }
        let missing = missing_bytes(&found.1, caps);
        if least.as_ref().is_none_or(|(least, _)| missing < *least) {
            least = Some((missing, found));
        }
    }
    let (_, least) = least.expect("there was an attempt");
    let sum_max = GRID_SUM_MAX.get(caps.len()).copied().unwrap_or(0);
    let mut grid = Vec::new();
    for sum in 1..=sum_max {
        compositions(sum, caps.len(), &mut Vec::new(), &mut |shares| {
            // Shares with a common divisor were tried with a smaller sum.
            if shares.iter().copied().fold(0, gcd) == 1 {
                grid.extend(Some(attempt(shares.to_vec())).filter(|it| fits(&it.1, caps)));
            }
        });
    }
    // Choose the shares with which the fullest machine has the most memory left.
    let fullest = |needs: &[RankNeed]| {
        let parts = needs.iter().zip(caps);
        let fill = |(need, cap): (&RankNeed, &u64)| need.total() as f64 / (*cap).max(1) as f64;
        parts.map(fill).fold(0.0, f64::max)
    };
    grid.into_iter().min_by(|a, b| fullest(&a.1).total_cmp(&fullest(&b.1))).unwrap_or(least)
}

fn missing_bytes(needs: &[RankNeed], caps: &[u64]) -> u64 {
    needs.iter().zip(caps).map(|(need, cap)| need.total().saturating_sub(*cap)).sum()
}

/// Returns the memory of each machine less the fixed need of a rank, which it has even if it holds
/// next to nothing of the parts that are cut.
fn rooms(model: &PlacementModel, caps: &[u64], context_tokens: u32) -> Vec<u64> {
    let alone = needs(model, &Split::Tensor(vec![1]), context_tokens)[0];
    let cut = alone.weights_bytes - model.replicated_bytes() + alone.kv_bytes / 4 * 5;
    let fixed = alone.total().saturating_sub(cut);
    caps.iter().map(|cap| cap.saturating_sub(fixed)).collect()
}

/// Returns shares proportional to `sizes`, with `steps` as the largest; none is zero.
fn proportional(sizes: &[u64], steps: u64) -> Vec<u32> {
    let largest = sizes.iter().copied().max().unwrap_or(0).max(1);
    let share = |size: u64| {
        let rounded = (u128::from(size) * u128::from(steps) * 2 + u128::from(largest))
            / (u128::from(largest) * 2);
        u32::try_from(rounded).expect("at most the number of steps").max(1)
    };
    reduced(sizes.iter().map(|&size| share(size)).collect())
}

/// Reduces the shares by their greatest common divisor.
fn reduced(mut shares: Vec<u32>) -> Vec<u32> {
    let divisor = shares.iter().copied().fold(0, gcd).max(1);
    for share in &mut shares {
        *share /= divisor;
    }
    shares
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Visits every way to write `steps` as a sum of `len` positive numbers.
fn compositions(steps: u32, len: usize, head: &mut Vec<u32>, visit: &mut impl FnMut(&[u32])) {
    let Some(rest) = len.checked_sub(1) else { return };
    if rest == 0 {
        if 0 < steps {
            head.push(steps);
            visit(head);
            head.pop();
        }
        return;
    }
    for first in 1..steps {
        head.push(first);
        compositions(steps - first, rest, head, visit);
        head.pop();
    }
}
