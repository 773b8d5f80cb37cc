//! Vectors of pools of positions; see [`jackalope_spec::PoolSpec`].
//!
//! With our kernels a vector is computed once, when the last position of its pool is written, from the
//! projections and gates of its positions. Those are read from the pages, rounded, so that nothing depends
//! on how a prompt is cut into chunks. MLX's operations keep the projections and gates of all positions, and
//! compute the vectors of all pools in each step.

use std::rc::Rc;

use jackalope_kernels::{Angles, Elements, ElementsMut, PoolRule, Threads};
use jackalope_mlx::fast::RopeOffset;
use jackalope_mlx::{Array, Dtype, dim};
use jackalope_spec::{NormKind, PoolSpec};
use jackalope_weights::{LoadError, Part, Weights};

use crate::split::Cut;
use jackalope_parallel::Parallel;
use jackalope_parallel::linear::{HasBias, Linear};
use jackalope_parallel::norm::{Norm, NormKernel, NormSettings};
use jackalope_parallel::rope::Rope;

/// Computes vectors of pools.
#[derive(Debug)]
pub(crate) struct PoolVectors {
    /// Projections from the stream, `[lanes * dim]`: to what is weighted, and to gates.
    pub(super) projections: [Linear; 2],
    norm: Norm,
    rule: PoolRule,
    /// Rotation as the first position of a pool.
    rope: Rc<Rope>,
}

/// Settings of what computes vectors of pools.
pub(crate) struct PoolSettings {
    /// Width of the stream.
    pub(crate) hidden: usize,
    /// Width of a vector.
    pub(crate) dim: usize,
    pub(crate) norm_eps: f32,
    /// Rotation as the first position of a pool.
    pub(crate) rope: Rc<Rope>,
}

impl PoolVectors {
    /// Loads what computes vectors of `dim` elements.
    ///
    /// # Errors
    /// Fails if a tensor cannot be read.
    pub(crate) fn load(
        w: &Weights<'_>,
        spec: &PoolSpec,
        settings: PoolSettings,
        parallel: &Parallel,
    ) -> Result<PoolVectors, LoadError> {
        let PoolSettings { hidden, dim, norm_eps: eps, rope } = settings;
        let width = spec.projected(dim);
        let linear =
            |name| Linear::column(&w.at(name), hidden, &Cut::of_all_ranks(width), HasBias::No);
        let places = w.floats_as(Dtype::F32, "ape", &[spec.len, width], Part::Whole)?;
        let settings = NormSettings { kind: NormKind::default(), eps };
        let rule = PoolRule {
            len: spec.len,
            dim,
            lanes: width / dim,
            places: places.to_vec::<f32>()?.into(),
        };
        Ok(PoolVectors {
            projections: [linear("wkv")?, linear("wgate")?],
            norm: Norm::load(&w.at("norm"), dim, settings, parallel)?,
            rule,
            rope,
        })
    }

    /// Returns the number of elements that are kept of a position.
    pub(super) fn raw_dim(&self) -> usize {
        2 * self.rule.lanes * self.rule.dim
    }

    /// Returns the width of a vector.
    pub(super) fn dim(&self) -> usize {
        self.rule.dim
    }

    /// Returns what is kept of the positions of `x` `[tokens, hidden]`, with MLX: `[tokens, raw_dim]`.
    pub(super) fn stock_raw(&self, x: &Array) -> Array {
        let [values, gates] = self.projections.each_ref().map(|it| it.stock(x));
        Array::concatenate(&[&values, &gates], 1)
    }

    /// Returns the vectors of whole pools, `[sequences, 1, pools, dim]`, with MLX, from what is kept,
    /// `[sequences, 1, positions, raw_dim]`. There is at least one.
    pub(super) fn stock(&self, raw: &Array) -> Array {
        let &PoolRule { len, dim: width, lanes, ref places } = &self.rule;
        let (sequences, num_pools) = (raw.dim(0), raw.dim(2) / dim(len));
        let all = dim(lanes * width);
        let whole = raw.slice_axis(2, 0, num_pools * dim(len));
        let whole = whole.reshape(&[sequences, num_pools, dim(len), 2 * all]).astype(Dtype::F32);
        let places = Array::from_slice(places, &[dim(len), all]);
        let values = whole.slice_axis(3, 0, all);
        let gates = whole.slice_axis(3, all, 2 * all).add(&places);
        let (values, gates) = match lanes {
            1 => (values, gates),
            _ => {
                let shape = [sequences, 1, dim(len), dim(width)];
                let nothing = Array::full(&shape, f32::NEG_INFINITY, Dtype::F32);
                let zeros = Array::zeros(&shape, Dtype::F32);
                (joined(&values, &zeros), joined(&gates, &nothing))
            }
        };
        let mean = gates.softmax(2).mul(&values).sum(2, false).astype(raw.dtype());
        let vectors = self.norm.stock(&mean).expand_dims(1);
        self.rope.stock_strided(&vectors, RopeOffset::First(0), len)
    }

    /// Returns what computes vectors inside a primitive.
    pub(super) fn kernel(&self) -> PoolVectorsKernel {
        let PoolVectors { ref rule, ref norm, ref rope, .. } = *self;
        PoolVectorsKernel { rule: rule.clone(), norm: norm.kernel(), angles: rope.angles() }
    }
}

/// Puts the first lane of each pool beside the last one of the next: `[…, pools, len, 2 * dim]` becomes
/// `[…, pools, 2 * len, dim]`, with `first` before the first pool.
fn joined(lanes: &Array, first: &Array) -> Array {
    let (num_pools, width) = (lanes.dim(1), lanes.dim(3) / 2);
    let earlier = lanes.slice_axis(3, 0, width).slice_axis(1, 0, num_pools - 1);
    let earlier = Array::concatenate(&[first, &earlier], 1);
    Array::concatenate(&[&earlier, &lanes.slice_axis(3, width, 2 * width)], 2)
}

/// Computes vectors of pools inside a primitive.
#[derive(Debug)]
pub(super) struct PoolVectorsKernel {
    rule: PoolRule,
    norm: NormKernel,
    angles: Angles,
}

impl PoolVectorsKernel {
    /// Returns the vector of a pool. `rows` are what is kept of its positions and, if pools overlap, of those
    /// of the pool before it, in order; in each, what this reads begins at `first`.
    pub(super) fn vector(
        &self,
        pool: usize,
        rows: &[Vec<f32>],
        first: usize,
        threads: &Threads,
    ) -> Vec<f32> {
        let mean = self.rule.mean(rows, first);
        let mut vector = vec![0.0; mean.len()];
        self.norm.norm(Elements::F32(&mean), ElementsMut::F32(&mut vector), threads);
        self.angles.rotate(&mut vector, pool * self.rule.len);
        vector
    }
}
