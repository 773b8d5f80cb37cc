//! Vectors of pools of positions; see [`jackalope_spec::PoolSpec`].
//!
//! A vector is computed once, when the last position of its pool is written, from the projections and gates of
//! its positions. Those are read from the cache, rounded, so that nothing depends on how a prompt is cut into
//! chunks.

use std::rc::Rc;

use jackalope_kernels::{Angles, Elements, ElementsMut, PoolRule, Threads};
use jackalope_mlx::{Array, Dtype, dim};
use jackalope_spec::{NormKind, PoolSpec};
use jackalope_weights::{LoadError, Part, Weights};

use crate::split::Cut;
use crate::step::EndedPools;
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

    /// Returns the vectors of pools, `[pools, 1, 1, dim]`, with MLX, from what is kept of the positions that they
    /// are computed from, `[pools, positions, raw_dim]`.
    pub(super) fn stock(&self, raw: &Array, pools: &EndedPools) -> Array {
        let &PoolRule { len, dim: width, lanes, ref places } = &self.rule;
        let (len, width, all) = (dim(len), dim(width), dim(lanes * width));
        let places = Array::from_slice(places, &[len, all]);
        // Positions before the own ones belong to the first lane.
        let lane = |lane: i32| {
            let first = raw.dim(1) - (dim(lanes) - lane) * len;
            let rows = raw.slice_axis(1, first, first + len).astype(Dtype::F32);
            let part =
                |x: &Array, at: i32| x.slice_axis(-1, at + lane * width, at + (lane + 1) * width);
            [part(&rows, 0), part(&rows, all).add(&part(&places, 0))]
        };
        let [mut values, mut gates] = lane(0);
        if lanes == 2 {
            let [own_values, own_gates] = lane(1);
            if let Some(has_earlier) = &pools.has_earlier {
                gates = Array::where_(has_earlier, &gates, &Array::scalar(f32::NEG_INFINITY));
            }
            values = Array::concatenate(&[&values, &own_values], 1);
            gates = Array::concatenate(&[&gates, &own_gates], 1);
        }
        let mean = gates.softmax(1).mul(&values).sum(1, false).astype(raw.dtype());
        let vectors = self.norm.stock(&mean).expand_dims(1).expand_dims(1);
        self.rope.stock(&vectors, pools.place())
    }

    /// Returns what computes vectors inside a primitive.
    pub(super) fn kernel(&self) -> PoolVectorsKernel {
        let PoolVectors { ref rule, ref norm, ref rope, .. } = *self;
        PoolVectorsKernel { rule: rule.clone(), norm: norm.kernel(), angles: rope.angles() }
    }
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
