//! Vectors of pools of positions; see [`jackalope_spec::PoolSpec`].
//!
//! A vector is computed once, when the last position of its pool is written, from the projections and gates of
//! its positions. Those are read from the cache, rounded, so that nothing depends on how a prompt is cut into
//! chunks.

use std::rc::Rc;

use jackalope_cache::float;
use jackalope_kernels::{Angles, CodeFormat, Elements, ElementsMut, Floats, PoolRule, Threads};
use jackalope_mlx::{Array, Dtype, dim};
use jackalope_spec::{NormKind, PoolForm};
use jackalope_weights::{LoadError, Part, Weights};

use crate::split::Cut;
use crate::step::EndedPools;
use jackalope_parallel::Parallel;
use jackalope_parallel::codes::stock_rounded;
use jackalope_parallel::linear::{HasBias, Linear, LinearKernel};
use jackalope_parallel::norm::{Norm, NormKernel, NormSettings};
use jackalope_parallel::rope::Rope;

/// Computes vectors of pools.
#[derive(Debug)]
pub(crate) struct PoolVectors {
    /// Projections from the stream, `[lanes * dim]`: to what is weighted, and to gates if there are any.
    pub(super) projections: Vec<Linear>,
    norm: Norm,
    rule: PoolRule,
    place: VectorPlace,
}

/// How the normalised vector of a pool becomes what is kept.
#[derive(Clone, Debug)]
pub(crate) struct VectorPlace {
    /// Rotation as the first position of a pool.
    pub(crate) rope: Rc<Rope>,
    /// Number of positions of a pool.
    pub(crate) len: usize,
    /// To what its elements are rounded, if they are.
    pub(crate) codes: Option<CodeFormat>,
}

/// Settings of what computes vectors of pools.
pub(crate) struct PoolSettings {
    /// Width of the stream.
    pub(crate) hidden: usize,
    /// Width of a vector.
    pub(crate) dim: usize,
    pub(crate) norm_eps: f32,
    pub(crate) form: PoolForm,
    pub(crate) place: VectorPlace,
}

impl VectorPlace {
    /// Rotates vectors of pools, `[pools, 1, 1, dim]`, with MLX, and rounds them.
    fn stock(&self, vectors: &Array, pools: &EndedPools) -> Array {
        let placed = self.rope.stock(vectors, pools.positions());
        self.codes.map_or(placed.clone(), |codes| stock_rounded(codes, &placed))
    }

    fn kernel(&self) -> VectorPlaceKernel {
        VectorPlaceKernel { angles: self.rope.angles(), len: self.len, codes: self.codes }
    }
}

/// [`VectorPlace`] for the kernels.
#[derive(Debug)]
struct VectorPlaceKernel {
    angles: Angles,
    len: usize,
    codes: Option<CodeFormat>,
}

impl VectorPlaceKernel {
    /// Rotates the vector of a pool, and rounds it.
    fn apply(&self, vector: &mut [f32], pool: usize) {
        self.angles.rotate(vector, pool * self.len);
        if let Some(codes) = self.codes {
            codes.round(vector);
        }
    }
}

impl PoolVectors {
    /// Loads what computes vectors of `dim` elements.
    ///
    /// # Errors
    /// Fails if a tensor cannot be read.
    pub(crate) fn load(
        w: &Weights<'_>,
        settings: PoolSettings,
        parallel: &Parallel,
    ) -> Result<PoolVectors, LoadError> {
        let PoolSettings { hidden, dim, norm_eps: eps, form, place } = settings;
        let (len, width) = (place.len, form.lanes() * dim);
        let linear =
            |name| Linear::column(&w.at(name), hidden, &Cut::of_all_ranks(width), HasBias::No);
        let mut projections = vec![linear("wkv")?];
        if form.has_gates(len) {
            projections.push(linear("wgate")?);
        }
        let places = match form {
            PoolForm::Placed { .. } => {
                w.floats_as(Dtype::F32, "ape", &[len, width], Part::Whole)?.to_vec::<f32>()?
            }
            PoolForm::Plain => vec![0.0; len * width],
        };
        let settings = NormSettings { kind: NormKind::default(), eps };
        Ok(PoolVectors {
            projections,
            norm: Norm::load(&w.at("norm"), dim, settings, parallel)?,
            rule: PoolRule { len, dim, lanes: form.lanes(), places: places.into() },
            place,
        })
    }

    /// Returns the number of elements that are kept of a position.
    pub(super) fn raw_dim(&self) -> usize {
        self.projections.len() * self.rule.lanes * self.rule.dim
    }

    /// Returns the width of a vector.
    pub(super) fn dim(&self) -> usize {
        self.rule.dim
    }

    /// Returns what is kept of the positions of `x` `[tokens, hidden]`, with MLX: `[tokens, raw_dim]`.
    pub(super) fn stock_raw(&self, x: &Array) -> Array {
        let products: Vec<Array> = self.projections.iter().map(|it| it.stock(x)).collect();
        Array::concatenate(&products.iter().collect::<Vec<_>>(), 1)
    }

    /// Returns the vectors of pools, `[pools, 1, 1, dim]`, with MLX, from what is kept of the positions that they
    /// are computed from, `[pools, positions, raw_dim]`.
    pub(super) fn stock(&self, raw: &Array, pools: &EndedPools) -> Array {
        self.stock_placed(&self.stock_normed(raw, pools), pools)
    }

    /// Rotates and rounds what [`PoolVectors::stock_normed`] returns, as [`PoolVectors::stock`].
    pub(super) fn stock_placed(&self, normed: &Array, pools: &EndedPools) -> Array {
        self.place.stock(normed, pools)
    }

    /// As [`PoolVectors::stock`], before the rotation.
    pub(super) fn stock_normed(&self, raw: &Array, pools: &EndedPools) -> Array {
        if self.projections.len() == 1 {
            return self.norm.stock(raw).expand_dims(1);
        }
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
        self.norm.stock(&mean).expand_dims(1).expand_dims(1)
    }

    /// Returns what computes vectors inside a primitive.
    pub(super) fn kernel(&self) -> PoolVectorsKernel {
        let PoolVectors { ref rule, ref norm, ref place, .. } = *self;
        PoolVectorsKernel { rule: rule.clone(), norm: norm.kernel(), place: place.kernel() }
    }
}

/// Computes what an indexer compares from the vectors of pools before their rotation.
#[derive(Debug)]
pub(crate) struct ProjectedVectors {
    projection: Linear,
    norm: Norm,
    place: VectorPlace,
    dtype: Dtype,
}

impl ProjectedVectors {
    /// Loads what computes vectors of `dim` elements from those of `input` elements.
    ///
    /// # Errors
    /// Fails if a tensor cannot be read.
    pub(crate) fn load(
        w: &Weights<'_>,
        [input, dim]: [usize; 2],
        norm_eps: f32,
        place: VectorPlace,
        parallel: &Parallel,
    ) -> Result<ProjectedVectors, LoadError> {
        let output = Cut::of_all_ranks(dim);
        let settings = NormSettings { kind: NormKind::default(), eps: norm_eps };
        Ok(ProjectedVectors {
            projection: Linear::column(&w.at("wk"), input, &output, HasBias::No)?,
            norm: Norm::load(&w.at("k_norm"), dim, settings, parallel)?,
            place,
            dtype: w.dtype(),
        })
    }

    /// Returns the width of a vector.
    pub(super) fn dim(&self) -> usize {
        self.projection.output()
    }

    /// Returns the vectors of pools, with MLX, from theirs before their rotation, `[pools, 1, 1, input]`.
    pub(super) fn stock(&self, normed: &Array, pools: &EndedPools) -> Array {
        self.place.stock(&self.norm.stock(&self.projection.stock(normed)), pools)
    }

    /// Returns what computes vectors inside a primitive.
    pub(super) fn kernel(&self) -> ProjectedVectorsKernel {
        ProjectedVectorsKernel {
            projection: [self.projection.kernel()],
            norm: self.norm.kernel(),
            place: self.place.kernel(),
            dtype: self.dtype,
        }
    }
}

/// [`ProjectedVectors`] inside a primitive.
#[derive(Debug)]
pub(super) struct ProjectedVectorsKernel {
    projection: [LinearKernel; 1],
    norm: NormKernel,
    place: VectorPlaceKernel,
    dtype: Dtype,
}

impl ProjectedVectorsKernel {
    /// Returns the vector of a pool from its vector before the rotation.
    pub(super) fn vector(&self, pool: usize, normed: &[f32], threads: &Threads) -> Vec<f32> {
        let mut input = Floats::zeros(float(self.dtype), normed.len());
        input.store(0, normed);
        let [projected] = LinearKernel::products(&self.projection, input.elements(), threads);
        let mut vector = vec![0.0; projected.len()];
        self.norm.norm(Elements::F32(&projected), ElementsMut::F32(&mut vector), threads);
        self.place.apply(&mut vector, pool);
        vector
    }
}

/// Computes vectors of pools inside a primitive.
#[derive(Debug)]
pub(super) struct PoolVectorsKernel {
    rule: PoolRule,
    norm: NormKernel,
    place: VectorPlaceKernel,
}

impl PoolVectorsKernel {
    /// Returns the vector of a pool before its rotation. `rows` are what is kept of its positions and, if pools
    /// overlap, of those of the pool before it, in order; in each, what this reads begins at `first`.
    pub(super) fn normed(&self, rows: &[Vec<f32>], first: usize, threads: &Threads) -> Vec<f32> {
        let mean = self.rule.mean(rows, first);
        let mut vector = vec![0.0; mean.len()];
        self.norm.norm(Elements::F32(&mean), ElementsMut::F32(&mut vector), threads);
        vector
    }

    /// Rotates what [`PoolVectorsKernel::normed`] returns, and rounds it.
    pub(super) fn placed(&self, mut normed: Vec<f32>, pool: usize) -> Vec<f32> {
        self.place.apply(&mut normed, pool);
        normed
    }
}
