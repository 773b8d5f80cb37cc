//! The mean of the streams of all blocks of layers, which blocks read; see
//! [`jackalope_spec::StreamReader`].

use std::sync::Arc;

use jackalope_kernels::{Elements, Floats, Threads};
use jackalope_mlx::{Array, Dtype, dim};
use jackalope_spec::StreamReader;
use jackalope_weights::{LoadError, Part, Weights};

use jackalope_parallel::kernel::{elements, pinned};

/// Weighs the streams at the ends of earlier blocks of layers, and the current one.
#[derive(Clone, Debug)]
pub(crate) struct StreamMix {
    /// Product of the norm's weights and the projection, f32 `[hidden]`.
    weights: Array,
    /// The same for the kernels.
    plain: Arc<[f32]>,
    /// Epsilon added to the mean of a stream's squares.
    eps: f32,
    /// Whether the current stream takes part. It has nothing yet where a block of layers begins.
    has_current: bool,
}

impl StreamMix {
    /// Loads the weights, which every rank holds.
    ///
    /// # Errors
    /// Fails if a tensor cannot be read.
    pub(crate) fn load(
        root: &Weights<'_>,
        spec: &StreamReader,
        eps: f32,
    ) -> Result<StreamMix, LoadError> {
        let [norm, projection] = [&spec.norm, &spec.projection].map(|tensor| {
            let hidden = tensor.shape[tensor.shape.len() - 1];
            root.at(&tensor.name).vector_as(Dtype::F32, hidden, Part::Whole)
        });
        let weights = norm?.mul(&projection?);
        weights.eval()?;
        let plain = elements(&pinned(&weights)).to_f32().into();
        Ok(StreamMix { weights, plain, eps, has_current: spec.has_current })
    }

    /// Returns the mean of the streams `earlier` `[tokens, streams * hidden]` and the current one
    /// `[tokens, hidden]`, with MLX.
    pub(crate) fn stock(&self, earlier: &Array, h: &Array) -> Array {
        let (tokens, hidden) = (h.dim(0), h.dim(1));
        let streams = if self.has_current { beside(Some(earlier), h) } else { earlier.clone() };
        let streams = streams.astype(Dtype::F32).reshape(&[tokens, -1, hidden]);
        let squares = streams.square().mean(2, true).add(&Array::scalar(self.eps));
        let products = streams.mul(&self.weights).sum(2, true); // [tokens, streams, 1]
        let shares = products.mul(&squares.rsqrt()).softmax(1);
        streams.mul(&shares).sum(1, false).astype(h.dtype())
    }

    /// Returns the mean for use inside a primitive.
    pub(super) fn kernel(&self) -> StreamMixKernel {
        let &StreamMix { eps, has_current, .. } = self;
        StreamMixKernel { weights: Arc::clone(&self.plain), eps, has_current }
    }
}

/// Weighs the streams, for the kernels.
#[derive(Debug)]
pub(super) struct StreamMixKernel {
    weights: Arc<[f32]>,
    eps: f32,
    has_current: bool,
}

impl StreamMixKernel {
    /// As [`StreamMix::stock`]. A row is computed by itself, in f64, and rounded once.
    pub(super) fn mean(&self, earlier: Elements<'_>, h: Elements<'_>, threads: &Threads) -> Floats {
        let _span = threads.span("stream_mix", 0);
        let hidden = self.weights.len();
        let num_earlier = earlier.len() / h.len();
        let num_streams = num_earlier + usize::from(self.has_current);
        let mut out = Floats::zeros(h.float(), h.len());
        let rows = out.elements_mut().chunks(hidden).into_iter().enumerate().collect();
        threads.for_each(rows, |(row, mut out)| {
            let mut streams = vec![0.0; num_streams * hidden];
            let (before, current) = streams.split_at_mut(num_earlier * hidden);
            earlier.load(row * num_earlier * hidden, before);
            if self.has_current {
                h.load(row * hidden, current);
            }
            out.store(0, &self.row(&streams));
        });
        out
    }

    /// Returns the mean of the streams of a token.
    fn row(&self, streams: &[f32]) -> Vec<f32> {
        let hidden = self.weights.len();
        let scores = streams.chunks_exact(hidden).map(|stream| {
            let (mut product, mut squares) = (0.0, 0.0);
            for (value, weight) in stream.iter().zip(self.weights.iter()) {
                let value = f64::from(*value);
                product += value * f64::from(*weight);
                squares += value * value;
            }
            product / (squares / hidden as f64 + f64::from(self.eps)).sqrt()
        });
        let scores: Vec<f64> = scores.collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let shares: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
        let sum: f64 = shares.iter().sum();
        let mut mean = vec![0.0_f64; hidden];
        for (stream, share) in streams.chunks_exact(hidden).zip(shares) {
            let terms = stream.iter().map(|value| f64::from(*value) * (share / sum));
            mean.iter_mut().zip(terms).for_each(|(mean, term)| *mean += term);
        }
        mean.into_iter().map(|mean| mean as f32).collect()
    }
}

/// Puts streams of tokens beside one another, `[tokens, streams * hidden]`.
pub(super) fn beside(earlier: Option<&Array>, h: &Array) -> Array {
    earlier.map_or(h.clone(), |earlier| Array::concatenate(&[earlier, h], 1))
}

/// Returns the earlier streams and the current one of what [`beside`] has made of them, `hidden` elements
/// each.
pub(super) fn apart(streams: &Array, hidden: usize) -> (Option<Array>, Array) {
    let (all, own) = (streams.dim(1), dim(hidden));
    if all == own {
        return (None, streams.clone());
    }
    let h = streams.slice_axis(1, all - own, all).contiguous();
    (Some(streams.slice_axis(1, 0, all - own).contiguous()), h)
}
