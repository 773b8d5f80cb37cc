//! Vectors of n-grams that a layer adds to several streams; see [`jackalope_spec::NgramSpec`].
//!
//! Each rank holds some rows of every part of the table. It finds the rows of a token that are its own, and
//! the sum over the ranks, in which one rank has each row and the others zeros, has all of them. Every rank
//! computes what follows. Of a sequence it keeps the last tokens, and the last inputs of the convolution.
//!
//! ```text
//!   tokens ─ hash ─ rows ─ sum over ranks ─┬─ keys ─ norm ─┐
//!                                          └─ values ──────┼─ gate ─┬─ norm ─ convolution ─ silu ─┐
//!   streams ─┬───────────────────── norm ──────────────────┘        └──────────────────────────── + ─┐
//!            └────────────────────────────────────────────────────────────────────────────────────── + ─▶
//! ```

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use jackalope_cache::LayerCacheShape;
use jackalope_kernels::{Elements, ElementsMut, SequenceState, Threads};
use jackalope_mlx::{Array, ArrayType, Dtype, Pinned, dim};
use jackalope_protocol::TokenId;
use jackalope_recurrence::{StateArrays, dilated_convolution, taps};
use jackalope_spec::{
    NgramConvolution, NgramHash, NgramProjections, NgramSpec, NgramTable, StackedModule, TensorSpec,
};
use jackalope_weights::{LoadError, Part, Weights};

use super::hyper::StreamShape;
use super::low_rank_gate::{silu, whole};
use super::recurrent::{StepStates, StockRows, stock_sequences};
use super::stream_norm::{StreamNorm, StreamNormKernel};
use super::token_rows::TokenRows;
use crate::split::{Cut, cut_dimension};
use crate::step::{Step, StepSpan};
use jackalope_parallel::kernel::{
    MatrixCut, MatrixKernel, OwnRows, WeightMatrix, elements, pinned, primitive,
};
use jackalope_parallel::linear::{HasBias, Linear, LinearKernel};
use jackalope_parallel::ngram_hash::{TokenNumbers, stock_rows};
use jackalope_parallel::{Compute, Parallel};

/// Least absolute value of the product under a gate's root.
const PRODUCT_MIN: f32 = 1e-6;

/// What a layer adds to the streams.
#[derive(Debug)]
pub(crate) struct Ngrams {
    hash: NgramHash,
    numbers: TokenNumbers,
    table: WeightMatrix,
    place: RowPlace,
    keys: Linear,
    values: Linear,
    /// Of keys and of the streams.
    norms: [StreamNorm; 2],
    /// Convolution of what is added; `None` if there is none.
    convolution: Option<Convolution>,
    shape: StreamShape,
    /// Number of elements of all rows of a token.
    width: usize,
    /// Number of the cache of tokens; that of the convolution follows.
    cache_idx: usize,
    dtype: Dtype,
    parallel: Parallel,
}

/// A convolution of what is added.
#[derive(Debug)]
struct Convolution {
    /// Norm of its inputs.
    norm: StreamNorm,
    /// Its weights by position, f32 `[conv_width, streams * hidden]`.
    taps: Array,
    /// Distance of the positions that it sees, and of the first from the last.
    dilation: usize,
    reach: usize,
}

impl Convolution {
    fn load(
        root: &Weights<'_>,
        spec: &NgramConvolution,
        shape: StreamShape,
    ) -> Result<Convolution, LoadError> {
        let kernels = root.at(spec.kernel.module());
        let kernels = kernels.floats_as(Dtype::F32, "weight", &spec.kernel.shape, Part::Whole)?;
        let taps = taps(&kernels.squeeze(2));
        taps.eval()?;
        let norm = StreamNorm::load(root, &spec.norm, shape)?;
        Ok(Convolution { norm, taps, dilation: spec.dilation, reach: spec.reach() })
    }
}

/// Loads the projections to keys and to values.
fn load_projections(
    root: &Weights<'_>,
    spec: &NgramProjections,
    shape: StreamShape,
) -> Result<[Linear; 2], LoadError> {
    let joint = match spec {
        NgramProjections::Apart([keys, values]) => {
            return Ok([whole(root, keys)?, whole(root, values)?]);
        }
        NgramProjections::Joint(joint) => joint,
    };
    let (full, input) = (joint.shape[0], joint.shape[1]);
    let rows = |range: Range<usize>| {
        let rows = OwnRows { full, ranges: vec![range], is_shared: true };
        Linear::of_rows(&root.at(joint.module()), input, &rows, HasBias::No)
    };
    Ok([rows(0..shape.all())?, rows(shape.all()..full)?])
}

/// Loads this rank's rows of a table: the same of each of its parts.
fn load_table(
    root: &Weights<'_>,
    table: &NgramTable,
    output: &Cut,
) -> Result<WeightMatrix, LoadError> {
    let cut = MatrixCut::Output { output, input: table.width };
    let Some(parts) = &table.parts else {
        return WeightMatrix::load(&root.at(&table.module), cut);
    };
    let each = [parts.clone(), String::new()];
    let module = StackedModule { stacked: table.module.clone(), each, fused: Vec::new() };
    let experts = root.experts(&module, table.num_parts);
    WeightMatrix::load_experts(&experts, table.num_parts, cut)
}

/// Where rows of the table are on this rank.
#[derive(Clone, Debug)]
struct RowPlace {
    /// Rows of each part that are here.
    own: Cut,
}

impl RowPlace {
    /// Returns the place of a row of the whole table; `None` if another rank has it.
    fn of(&self, row: usize) -> Option<usize> {
        let Range { start, end } = self.own.own;
        let (part, row) = (row / self.own.full, row % self.own.full);
        (start..end).contains(&row).then(|| part * (end - start) + row - start)
    }

    /// Computes [`RowPlace::of`] with MLX for i64 `rows`. Returns a mask of the rows that this rank has, or
    /// `None` if it has all of them, and the places of the rows; those of other rows are arbitrary.
    fn stock(&self, rows: &Array) -> (Option<Array>, Array) {
        if self.own.len() == self.own.full {
            return (None, rows.clone());
        }
        let scalar = |value: usize| Array::from_slice(&[value as i64], &[1]);
        let full = scalar(self.own.full);
        let (part, row) = (rows.floor_divide(&full), rows.remainder(&full));
        let Range { start, end } = self.own.own;
        let is_here = row.greater_equal(&scalar(start)).logical_and(&row.less(&scalar(end)));
        let place = part.mul(&scalar(self.own.len())).add(&row.sub(&scalar(start)));
        let place = Array::where_(&is_here, &place, &scalar(0));
        (Some(is_here), place)
    }
}

impl Ngrams {
    /// Loads this rank's rows of the table, and the rest. `cache_idx` is the number of the first of the two
    /// caches.
    ///
    /// # Errors
    /// Fails if a tensor cannot be read.
    pub(crate) fn load(
        root: &Weights<'_>,
        spec: &NgramSpec,
        shape: StreamShape,
        cache_idx: usize,
        parallel: &Parallel,
    ) -> Result<Ngrams, LoadError> {
        let shares = parallel.shares();
        let own = cut_dimension(spec.table.part_rows, 1, shares).swap_remove(parallel.rank());
        let table = load_table(root, &spec.table, &own)?;
        let [keys, values] = load_projections(root, &spec.projections, shape)?;
        let norm = |norm: &TensorSpec| StreamNorm::load(root, norm, shape);
        let convolution = spec.convolution.as_ref().map(|it| Convolution::load(root, it, shape));
        let (hash, numbers) = TokenNumbers::of(spec, root.token_map());
        Ok(Ngrams {
            table,
            place: RowPlace { own },
            keys,
            values,
            norms: [norm(&spec.norms[0])?, norm(&spec.norms[1])?],
            convolution: convolution.transpose()?,
            shape,
            width: hash.moduli.len() * spec.table.width,
            hash,
            numbers,
            cache_idx,
            dtype: root.dtype(),
            parallel: parallel.clone(),
        })
    }

    /// Returns what is kept of a sequence: the last tokens, and the last inputs of the convolution.
    pub(crate) fn cache_shapes(&self) -> impl Iterator<Item = LayerCacheShape> {
        let inputs = self.convolution.as_ref().map(|it| it.reach * self.shape.all());
        let elements = [self.hash.num_earlier()].into_iter().chain(inputs);
        elements.map(|elements| LayerCacheShape::State { elements })
    }

    /// Adds the vectors of the step's tokens to the streams, `[tokens, streams * hidden]`.
    pub(crate) fn add_to(
        &self,
        streams: &Array,
        tokens: &TokenRows,
        step: &mut Step<'_, '_>,
    ) -> Array {
        match self.parallel.compute() {
            Compute::Kernels(threads) => {
                let rows = self.kernel_rows(streams, tokens, step, threads);
                let rows = self.parallel.all_sum(&rows);
                let kernel = self.kernel(tokens, step);
                let (inputs, out) = ([streams, &rows], streams.array_type());
                primitive("ngrams", &inputs, out, threads, move |inputs, out, threads| {
                    kernel.add(inputs.elements(), inputs.elements(), out, threads);
                })
            }
            Compute::Stock => {
                let rows = self.stock_rows(tokens, step).after(&[streams]);
                let rows = self.parallel.all_sum(&rows);
                self.stock_add(streams, &rows, tokens, step)
            }
        }
    }

    /// Returns the rows of the step's tokens, `[tokens, width]`; zeros for those of other ranks. They are
    /// computed after `streams`, because collectives have an order.
    fn kernel_rows(
        &self,
        streams: &Array,
        tokens: &TokenRows,
        step: &mut Step<'_, '_>,
        threads: &Arc<Threads>,
    ) -> Array {
        let table = (!self.table.is_empty()).then(|| self.table.kernel());
        let kernel = TableKernel {
            hash: self.hash.clone(),
            numbers: self.numbers.clone(),
            table,
            place: self.place.clone(),
            tokens: Arc::clone(&tokens.host),
            states: StepStates::new(self.cache_idx, step),
        };
        let out =
            ArrayType { shape: vec![streams.dim(0), dim(self.width)], dtype: streams.dtype() };
        primitive("ngram_rows", &[streams], out, threads, move |_, out, threads| {
            kernel.rows(out, threads);
        })
    }

    fn kernel(&self, tokens: &TokenRows, step: &mut Step<'_, '_>) -> AdditionKernel {
        AdditionKernel {
            projections: [&self.keys, &self.values].map(Linear::kernel),
            norms: self.norms.each_ref().map(StreamNorm::kernel),
            convolution: self.convolution.as_ref().map(|it| ConvolutionKernel {
                norm: it.norm.kernel(),
                taps: pinned(&it.taps),
                dilation: it.dilation,
                reach: it.reach,
                all: self.shape.all(),
                spans: step.spans.clone(),
                states: StepStates::new(self.cache_idx + 1, step),
            }),
            shape: self.shape,
            numbers: self.numbers.clone(),
            tokens: Arc::clone(&tokens.host),
        }
    }

    /// As [`Ngrams::kernel_rows`], with MLX.
    fn stock_rows(&self, tokens: &TokenRows, step: &mut Step<'_, '_>) -> Array {
        let tokens = tokens.device.as_ref().expect("MLX's operations get tokens as an array");
        // A state of zeros is that of an empty sequence.
        let tokens = tokens.astype(Dtype::F32).add(&Array::scalar(1.0)).expand_dims(1);
        let num_earlier = dim(self.hash.num_earlier());
        let empty =
            || StateArrays { inputs: Array::zeros(&[1, num_earlier, 1], Dtype::F32), state: None };
        let scan = |StockRows { projected, held }: StockRows| {
            let tokens = Array::concatenate(&[&held.inputs, &projected[0]], 1);
            let seq = projected[0].dim(1);
            let inputs = tokens.slice_axis(1, seq, seq + num_earlier).contiguous();
            let rows = stock_rows(&self.hash, &self.numbers.stock(&tokens.squeeze(2)));
            (rows, StateArrays { inputs, state: None })
        };
        let rows = stock_sequences(step, self.cache_idx, &[tokens], empty, scan);
        let (num_tokens, rows) = (rows.dim(0), rows.flatten(0, 1));
        let shape = [num_tokens, dim(self.width)];
        if self.table.is_empty() {
            return Array::zeros(&shape, self.dtype);
        }
        let (is_here, places) = self.place.stock(&rows);
        let found = self.table.stock_rows(&places.astype(Dtype::I32), self.dtype);
        let found = match is_here {
            Some(is_here) => {
                let zero = Array::scalar_of(0.0, self.dtype);
                Array::where_(&is_here.expand_dims(1), &found, &zero)
            }
            None => found,
        };
        found.reshape(&shape)
    }

    /// Adds what follows from `rows` `[tokens, width]` to the streams, with MLX.
    fn stock_add(
        &self,
        streams: &Array,
        rows: &Array,
        tokens: &TokenRows,
        step: &mut Step<'_, '_>,
    ) -> Array {
        let [of_keys, of_streams] = &self.norms;
        let keys = of_keys.stock(&self.keys.stock(rows));
        let products = keys.mul(&of_streams.stock(streams));
        let products = self.shape.stock_streams(&products).sum(2, true);
        let products = &products * (self.shape.hidden as f32).powf(-0.5);
        let zero = Array::scalar(0.0);
        let one = |it: Array| it.astype(Dtype::F32);
        let sign = one(products.greater(&zero)).sub(&one(products.less(&zero)));
        let roots = products.abs().maximum(&Array::scalar(PRODUCT_MIN)).sqrt();
        let gates = sign.mul(&roots).sigmoid();
        let tokens = tokens.device.as_ref().expect("MLX's operations get tokens as an array");
        let gates = match self.numbers.stock_are_read(tokens) {
            Some(are_read) => gates.mul(&one(are_read).expand_dims(1).expand_dims(2)),
            None => gates,
        };
        let values = self.values.stock(rows).astype(Dtype::F32).expand_dims(1);
        let added = gates.mul(&values).reshape(&streams.shape());
        let sum = streams.astype(Dtype::F32).add(&added);
        let sum = match &self.convolution {
            Some(it) => sum.add(&self.stock_convolved(it, &added, step).silu()),
            None => sum,
        };
        sum.astype(streams.dtype())
    }

    /// Returns the convolution of what is added, with MLX.
    fn stock_convolved(
        &self,
        convolution: &Convolution,
        added: &Array,
        step: &mut Step<'_, '_>,
    ) -> Array {
        let normed = convolution.norm.stock(added);
        let (reach, all) = (dim(convolution.reach), added.dim(1));
        let empty =
            || StateArrays { inputs: Array::zeros(&[1, reach, all], Dtype::F32), state: None };
        let scan = |StockRows { projected, held }: StockRows| {
            let seq = projected[0].dim(1);
            let inputs = Array::concatenate(&[&held.inputs, &projected[0]], 1);
            let after = inputs.slice_axis(1, seq, seq + reach).contiguous();
            let out = dilated_convolution(&inputs, &convolution.taps, dim(convolution.dilation));
            (out, StateArrays { inputs: after, state: None })
        };
        stock_sequences(step, self.cache_idx + 1, &[normed], empty, scan)
    }
}

/// Finds the rows of tokens, for the kernels.
struct TableKernel {
    hash: NgramHash,
    numbers: TokenNumbers,
    /// `None` if this rank has no rows.
    table: Option<Arc<MatrixKernel>>,
    place: RowPlace,
    tokens: Arc<OnceLock<Vec<TokenId>>>,
    states: StepStates,
}

impl TableKernel {
    /// Writes the rows of all tokens, and stores the last tokens of each sequence.
    fn rows(&self, mut out: ElementsMut<'_>, threads: &Threads) {
        let num_earlier = self.hash.num_earlier();
        let rows = self.states.update(num_earlier, |sequences| {
            let mut tokens = self.tokens.get().expect("they come before the streams").as_slice();
            let mut rows = Vec::new();
            for SequenceState { num_rows, state } in sequences {
                let (own, others) = tokens.split_at(num_rows);
                tokens = others;
                // A state of zeros is that of an empty sequence.
                let held = state.iter().map(|held| self.numbers.of_held(*held as TokenId));
                let own_numbers = own.iter().map(|token| self.numbers.of_held(token + 1));
                rows.extend(self.hash.rows(&held.chain(own_numbers).collect::<Vec<u32>>()));
                let all: Vec<f32> = state
                    .iter()
                    .copied()
                    .chain(own.iter().map(|token| (token + 1) as f32))
                    .collect();
                state.copy_from_slice(&all[num_rows..]);
            }
            rows
        });
        let Some(table) = &self.table else {
            out.store(0, &vec![0.0; out.len()]);
            return;
        };
        // No row of this rank has the last number.
        let place = |row: usize| self.place.of(row).map_or(u32::MAX, |place| place as u32);
        let places: Vec<u32> = rows.into_iter().map(place).collect();
        table.gather(&places, 0, out, threads);
    }
}

/// Adds to the streams what follows from rows, for the kernels.
struct AdditionKernel {
    /// To keys and to values.
    projections: [LinearKernel; 2],
    norms: [StreamNormKernel; 2],
    convolution: Option<ConvolutionKernel>,
    shape: StreamShape,
    numbers: TokenNumbers,
    tokens: Arc<OnceLock<Vec<TokenId>>>,
}

/// A convolution of what is added, for the kernels.
struct ConvolutionKernel {
    norm: StreamNormKernel,
    /// `[width, streams * hidden]`.
    taps: Pinned,
    dilation: usize,
    reach: usize,
    /// Width of all streams.
    all: usize,
    spans: Vec<StepSpan>,
    states: StepStates,
}

impl AdditionKernel {
    /// Computes the streams after the addition, from `streams` and `rows` `[tokens, width]`.
    fn add(
        &self,
        streams: Elements<'_>,
        rows: Elements<'_>,
        out: ElementsMut<'_>,
        threads: &Threads,
    ) {
        let [of_keys, of_streams] = &self.norms;
        let [keys, values] = LinearKernel::products(&self.projections, rows, threads);
        let keys = of_keys.norm(Elements::F32(&keys), threads);
        let queries = of_streams.norm(streams, threads);
        let added = self.gated([&keys, &queries], &values, threads);
        let convolution = self.convolution.as_ref().map(|convolution| {
            let normed = convolution.norm.norm(Elements::F32(&added), threads);
            (convolution, convolution.inputs(&normed))
        });
        let all = self.shape.all();
        let rows = out.chunks(all).into_iter().enumerate().collect();
        threads.for_each(rows, |(row, mut out): (usize, ElementsMut<'_>)| {
            let mut sum = vec![0.0; all];
            streams.load(row * all, &mut sum);
            let added = &added[row * all..(row + 1) * all];
            match &convolution {
                Some((convolution, inputs)) => {
                    let terms = added.iter().zip(silu(&convolution.convolved(inputs, row)));
                    sum.iter_mut()
                        .zip(terms)
                        .for_each(|(sum, (added, value))| *sum += added + value);
                }
                None => sum.iter_mut().zip(added).for_each(|(sum, added)| *sum += added),
            }
            out.store(0, &sum);
        });
    }

    /// Returns the values of each token, gated for each stream, `[tokens, streams * hidden]`.
    fn gated(&self, compared: [&[f32]; 2], values: &[f32], threads: &Threads) -> Vec<f32> {
        let StreamShape { num_streams, hidden, .. } = self.shape;
        let [keys, queries] = compared;
        let tokens = self.tokens.get().expect("they come before the streams");
        let mut gated = vec![0.0; keys.len()];
        let rows = gated.chunks_exact_mut(hidden).enumerate().collect();
        threads.for_each(rows, |(row, out): (usize, &mut [f32])| {
            let own = row * hidden..(row + 1) * hidden;
            let terms = keys[own.clone()].iter().zip(&queries[own]);
            let product: f64 = terms.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            let product = (product / (hidden as f64).sqrt()) as f32;
            let sign = if product == 0.0 { 0.0 } else { product.signum() };
            let mut gate = [sign * product.abs().max(PRODUCT_MIN).sqrt()];
            jackalope_kernels::sigmoid(&mut gate);
            if !self.numbers.is_read(tokens[row / num_streams]) {
                gate = [0.0];
            }
            let values = &values[row / num_streams * hidden..][..hidden];
            out.iter_mut().zip(values).for_each(|(out, value)| *out = gate[0] * value);
        });
        gated
    }
}

impl ConvolutionKernel {
    /// Returns the inputs of the convolution for each sequence, the kept ones first, and keeps the last
    /// ones.
    fn inputs(&self, normed: &[f32]) -> Vec<Vec<f32>> {
        let (all, len) = (self.all, self.reach * self.all);
        self.states.update(len, |sequences| {
            let sequences = sequences.into_iter().zip(&self.spans);
            let inputs = sequences.map(|(SequenceState { state, .. }, span)| {
                let own = &normed[span.rows.start * all..span.rows.end * all];
                let inputs = [&*state, own].concat();
                state.copy_from_slice(&inputs[own.len()..]);
                inputs
            });
            inputs.collect()
        })
    }

    /// Returns the convolution at a row of the step.
    fn convolved(&self, inputs: &[Vec<f32>], row: usize) -> Vec<f32> {
        let all = self.all;
        let sequence = self.spans.partition_point(|span| span.rows.end <= row);
        let first = row - self.spans[sequence].rows.start;
        let Elements::F32(taps) = elements(&self.taps) else {
            panic!("weights of convolutions are in single precision")
        };
        let mut sum = vec![0.0; all];
        for (tap, weights) in taps.chunks_exact(all).enumerate() {
            let inputs = &inputs[sequence][(first + tap * self.dilation) * all..][..all];
            let terms = weights.iter().zip(inputs);
            sum.iter_mut().zip(terms).for_each(|(sum, (weight, input))| *sum += weight * input);
        }
        sum
    }
}
