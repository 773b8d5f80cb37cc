//! Positions that an indexer chooses in groups of neighbours; see [`jackalope_spec::IndexerSpec`] and
//! [`jackalope_spec::PoolChoice`].
//!
//! The key of a pool is computed once, when its last position is written, from the keys and perhaps gates of
//! its positions. Those are read from the cache, rounded, so that nothing depends on how a prompt is cut into
//! chunks. They are needed no longer than until the pool ends, and are freed as windows are; a sequence can be
//! cut where the keys and gates of the last pool are held.

use std::rc::Rc;
use std::sync::Arc;

use jackalope_kernels::{Angles, Elements, ElementsMut, Float, Floats, PoolRule, Threads};
use jackalope_mlx::{Array, Dtype, dim};
use jackalope_weights::LoadError;
use jackalope_weights::{Part, Weights};

use crate::step::{EndedPools, PoolKind};
use jackalope_cache::{Page, PoolShape};
use jackalope_parallel::norm::{Norm, NormKernel};
use jackalope_parallel::rope::Rope;
use jackalope_parallel::wide_matrix::{WideMatrix, WideMatrixKernel};

/// Pools of positions, of which an indexer chooses some.
#[derive(Debug)]
pub(crate) struct IndexPools {
    pub(super) shape: PoolShape,
    keys: PoolKeys,
}

/// How the keys of pools are computed.
#[derive(Debug)]
enum PoolKeys {
    /// As a mean that is weighted by gates.
    Gated {
        /// Projection from the residual stream to gates, `[head_dim]`.
        gates: WideMatrix,
        /// What is added to the gates of each position, `[len, head_dim]`.
        places: Arc<[f32]>,
    },
    /// As a mean, which is normalised and then rotated as the pool's first position.
    Mean { norm: Norm, rope: Rc<Rope> },
}

impl IndexPools {
    /// Loads pools of `len` positions.
    ///
    /// # Errors
    /// Fails if a tensor cannot be read.
    pub(crate) fn load(
        w: &Weights<'_>,
        len: usize,
        head_dim: usize,
        hidden: usize,
    ) -> Result<IndexPools, LoadError> {
        let places = "index_kpool_compress_ape";
        let places = w.floats_as(Dtype::F32, places, &[len, head_dim], Part::Whole)?;
        let gates = WideMatrix::load(w, "index_kpool_compress_gate", [head_dim, hidden])?;
        let (shape, places) = (PoolShape { len, dim: head_dim }, places.to_vec::<f32>()?.into());
        Ok(IndexPools { shape, keys: PoolKeys::Gated { gates, places } })
    }

    /// Creates pools whose keys are normalised and rotated means.
    pub(crate) fn of_means(shape: PoolShape, norm: Norm, rope: Rc<Rope>) -> IndexPools {
        IndexPools { shape, keys: PoolKeys::Mean { norm, rope } }
    }

    /// Returns what is kept of the positions of `x` `[tokens, hidden]` with these keys
    /// `[tokens, head_dim]`, with MLX: keys, and gates beside them if there are any.
    pub(super) fn stock_kept(&self, x: &Array, keys: &Array) -> Array {
        let PoolKeys::Gated { gates, .. } = &self.keys else { return keys.clone() };
        let gates = gates.stock(&x.astype(Dtype::F32)).astype(keys.dtype());
        Array::concatenate(&[keys, &gates], 1)
    }

    /// Returns which pools these are.
    pub(super) fn kind(&self) -> PoolKind {
        PoolKind { len: self.shape.len, overlaps: false }
    }

    /// Returns the keys of pools, `[pools, 1, 1, head_dim]`, with MLX, from what is kept of their positions,
    /// `[pools, positions, kept_dim]`.
    pub(super) fn stock_keys(&self, kept: &Array, pools: &EndedPools) -> Array {
        let (len, head_dim) = (dim(self.shape.len), dim(self.shape.dim));
        let wide = kept.astype(Dtype::F32);
        let keys = match &self.keys {
            PoolKeys::Gated { places, .. } => {
                let places = Array::from_slice(places, &[len, head_dim]);
                let gates = wide.slice_axis(2, head_dim, 2 * head_dim).add(&places);
                gates.softmax(1).mul(&wide.slice_axis(2, 0, head_dim)).sum(1, false)
            }
            PoolKeys::Mean { .. } => wide.mean(1, false),
        };
        let keys = keys.astype(kept.dtype());
        let apart = |keys: &Array| keys.expand_dims(1).expand_dims(1);
        match &self.keys {
            PoolKeys::Gated { .. } => apart(&keys),
            PoolKeys::Mean { norm, rope } => {
                rope.stock(&apart(&norm.stock(&keys)), pools.positions())
            }
        }
    }

    /// Returns which positions queries attend to, boolean `[…, positions]`, with MLX. `visible` is what
    /// they see, if it is not everything; `choose` returns which pools they choose, `[…, pools]`, given
    /// those that they see.
    pub(super) fn stock_chosen(
        &self,
        num_positions: i32,
        visible: Option<&Array>,
        choose: impl FnOnce(Option<&Array>) -> Array,
    ) -> Array {
        let len = dim(self.shape.len);
        let num_pools = num_positions / len;
        // A pool is seen with its last position.
        let seen = visible.map(|visible| {
            let whole = visible.slice_axis(-1, 0, num_pools * len);
            let mut shape = visible.shape();
            shape.pop();
            shape.extend([num_pools, len]);
            let pools = whole.reshape(&shape);
            pools.slice_axis(-1, len - 1, len).squeeze(-1)
        });
        let chosen = choose(seen.as_ref());
        let everything = |shape: &[i32]| Array::zeros(shape, Dtype::I32).less(&Array::scalar(1.0));
        let attended = match &seen {
            Some(seen) => Array::where_(seen, &chosen, &everything(&[1])),
            None => chosen,
        };
        let attended = attended.repeat(len, -1);
        let mut rest = attended.shape();
        *rest.last_mut().expect("it has pools") = num_positions - num_pools * len;
        let attended = Array::concatenate(&[&attended, &everything(&rest)], -1);
        visible.map_or(attended.clone(), |visible| attended.logical_and(visible))
    }

    /// Returns the projection to gates for use inside a primitive; `None` if there are none.
    pub(super) fn gates(&self) -> Option<WideMatrixKernel> {
        match &self.keys {
            PoolKeys::Gated { gates, .. } => Some(gates.kernel()),
            PoolKeys::Mean { .. } => None,
        }
    }

    /// Returns how pools get their keys, for use inside a primitive.
    pub(super) fn places(&self) -> PoolPlaces {
        let rule = match &self.keys {
            PoolKeys::Gated { places, .. } => KeyRule::Gated(Arc::clone(places)),
            PoolKeys::Mean { norm, rope } => {
                KeyRule::Mean { norm: norm.kernel(), angles: rope.angles() }
            }
        };
        PoolPlaces { shape: self.shape, rule }
    }
}

/// The positions of pools, and how their keys are computed.
#[derive(Clone, Debug)]
pub(super) struct PoolPlaces {
    pub(super) shape: PoolShape,
    rule: KeyRule,
}

#[derive(Clone, Debug)]
enum KeyRule {
    /// What is added to the gates of the positions, `[len, dim]`.
    Gated(Arc<[f32]>),
    Mean {
        norm: NormKernel,
        angles: Angles,
    },
}

impl PoolPlaces {
    /// Whether keys are means, without gates.
    pub(super) fn has_means(&self) -> bool {
        matches!(self.rule, KeyRule::Mean { .. })
    }

    /// Returns the key of the pool that ends at `last`, from the pages of its positions.
    pub(super) fn key(&self, pages: &[Arc<Page>], last: usize, threads: &Threads) -> Vec<f32> {
        let (norm, angles) = match &self.rule {
            KeyRule::Gated(places) => return self.gated_key(places, pages, last),
            KeyRule::Mean { norm, angles } => (norm, angles),
        };
        let PoolShape { len, dim } = self.shape;
        let mut mean = vec![0.0_f64; dim];
        for position in last + 1 - len..=last {
            let row = kept_row(pages, position, dim);
            mean.iter_mut().zip(row).for_each(|(mean, value)| *mean += f64::from(value));
        }
        let mean: Vec<f32> = mean.iter().map(|sum| (sum / len as f64) as f32).collect();
        let mut key = vec![0.0; dim];
        norm.norm(Elements::F32(&mean), ElementsMut::F32(&mut key), threads);
        angles.rotate(&mut key, last + 1 - len);
        key
    }

    /// As [`PoolPlaces::key`], with gates.
    fn gated_key(&self, places: &Arc<[f32]>, pages: &[Arc<Page>], last: usize) -> Vec<f32> {
        let PoolShape { len, dim } = self.shape;
        let positions = last + 1 - len..=last;
        let rows: Vec<Vec<f32>> = positions.map(|it| kept_row(pages, it, 2 * dim)).collect();
        let rule = PoolRule { len, dim, lanes: 1, places: Arc::clone(places) };
        rule.mean(&rows, 0)
    }

    /// Returns the keys of the first pools of a sequence, `[pools, head_dim]`.
    pub(super) fn keys(&self, pages: &[Arc<Page>], num_pools: usize) -> Floats {
        let float = pages.first().map_or(Float::F32, |page| page.index().float());
        let mut keys = Floats::zeros(float, num_pools * self.shape.dim);
        (0..num_pools)
            .for_each(|pool| keys.store(pool * self.shape.dim, &Page::pool_of(pages, pool)));
        keys
    }

    /// Returns the positions that a query at `position` attends to with these pools, in ascending order.
    pub(super) fn positions(&self, pools: &[usize], position: usize) -> Vec<usize> {
        let chosen =
            pools.iter().flat_map(|pool| pool * self.shape.len..(pool + 1) * self.shape.len);
        let num_whole = (position + 1) / self.shape.len;
        chosen.chain(num_whole * self.shape.len..position + 1).collect()
    }
}

/// Returns what is kept of a position.
fn kept_row(pages: &[Arc<Page>], position: usize, width: usize) -> Vec<f32> {
    let page_tokens = pages.first().map_or(1, |page| page.index().len() / width);
    let mut row = vec![0.0; width];
    pages[position / page_tokens].index().load(position % page_tokens * width, &mut row);
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(len: usize, values: &[f32]) -> PoolPlaces {
        let shape = PoolShape { len, dim: values.len() / len };
        PoolPlaces { shape, rule: KeyRule::Gated(values.into()) }
    }

    #[test]
    fn a_query_attends_to_whole_pools_and_to_what_follows_the_last_one() {
        let places = places(3, &[0.0; 3]);
        assert_eq!(places.positions(&[0, 2], 10), [0, 1, 2, 6, 7, 8, 9, 10]);
        assert_eq!(places.positions(&[1, 3], 11), [3, 4, 5, 9, 10, 11]);
    }
}
