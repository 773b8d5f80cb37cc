//! The streams before the first layer and after the last one.

use jackalope_mlx::{Array, Dtype, dim};
use jackalope_spec::StreamsSpec;
use jackalope_weights::LoadError;
use jackalope_weights::Weights;

use super::altup::AltUpEnds;
use super::hyper::{StreamShape, StreamSum};
use jackalope_parallel::Parallel;

/// Width of a stream, and the epsilon with which streams are normalised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamWidth {
    pub(crate) hidden: usize,
    pub(crate) norm_eps: f32,
}

/// Makes several streams from the embedding, and one from the streams.
#[derive(Debug)]
pub(crate) enum StreamEnds {
    AltUp(AltUpEnds),
    /// Streams that begin as copies, and end as a sum or as their mean.
    Copies(usize, Option<StreamSum>),
}

impl StreamEnds {
    /// Loads what this rank needs.
    ///
    /// # Errors
    /// Fails if a tensor cannot be read.
    pub(crate) fn load(
        root: &Weights<'_>,
        spec: &StreamsSpec,
        StreamWidth { hidden, norm_eps }: StreamWidth,
        parallel: &Parallel,
    ) -> Result<StreamEnds, LoadError> {
        Ok(match spec {
            StreamsSpec::AltUp(spec) => {
                StreamEnds::AltUp(AltUpEnds::load(root, spec, hidden, parallel)?)
            }
            StreamsSpec::HyperConnections { num_streams, end } => {
                let shape = StreamShape { num_streams: *num_streams, hidden, norm_eps };
                let end = end.as_ref().filter(|_| parallel.has_last_layer());
                let sum = end.map(|end| StreamSum::load(root, end, shape, parallel));
                StreamEnds::Copies(*num_streams, sum.transpose()?)
            }
        })
    }

    /// Returns the streams `[tokens, streams * hidden]` of the embedding `[tokens, hidden]`.
    pub(crate) fn begin(&self, h: &Array) -> Array {
        match self {
            StreamEnds::AltUp(ends) => ends.begin(h),
            StreamEnds::Copies(number, _) => Array::concatenate(&vec![h; *number], 1),
        }
    }

    /// Returns the sum or the mean of the streams, `[tokens, hidden]`.
    pub(crate) fn end(&self, streams: &Array) -> Array {
        match self {
            StreamEnds::AltUp(ends) => ends.end(streams),
            StreamEnds::Copies(_, Some(sum)) => sum.of(streams),
            StreamEnds::Copies(number, None) => {
                // Each of these operations rounds correctly, so no bit depends on the other tokens.
                let (number, wide) = (dim(*number), streams.astype(Dtype::F32));
                let hidden = streams.dim(1) / number;
                let each =
                    (0..number).map(|idx| wide.slice_axis(1, idx * hidden, (idx + 1) * hidden));
                let sum = each.reduce(|sum, stream| sum.add(&stream)).expect("there are streams");
                (&sum * (1.0 / number as f32)).astype(streams.dtype())
            }
        }
    }
}
