//! The streams before the first layer and after the last one.

use jackalope_mlx::{Array, Dtype, dim};
use jackalope_spec::StreamsSpec;
use jackalope_weights::LoadError;
use jackalope_weights::Weights;

use super::altup::AltUpEnds;
use jackalope_parallel::Parallel;

/// Makes several streams from the embedding, and one from the streams.
#[derive(Debug)]
pub(crate) enum StreamEnds {
    AltUp(AltUpEnds),
    /// Streams that begin as copies and end as their mean.
    Copies(usize),
}

impl StreamEnds {
    /// Loads what this rank needs.
    ///
    /// # Errors
    /// Fails if a tensor cannot be read.
    pub(crate) fn load(
        root: &Weights<'_>,
        spec: &StreamsSpec,
        hidden: usize,
        parallel: &Parallel,
    ) -> Result<StreamEnds, LoadError> {
        Ok(match spec {
            StreamsSpec::AltUp(spec) => {
                StreamEnds::AltUp(AltUpEnds::load(root, spec, hidden, parallel)?)
            }
            StreamsSpec::HyperConnections { num_streams } => StreamEnds::Copies(*num_streams),
        })
    }

    /// Returns the streams `[tokens, streams * hidden]` of the embedding `[tokens, hidden]`.
    pub(crate) fn begin(&self, h: &Array) -> Array {
        match self {
            StreamEnds::AltUp(ends) => ends.begin(h),
            StreamEnds::Copies(number) => Array::concatenate(&vec![h; *number], 1),
        }
    }

    /// Returns the mean of the streams, `[tokens, hidden]`.
    pub(crate) fn end(&self, streams: &Array) -> Array {
        match self {
            StreamEnds::AltUp(ends) => ends.end(streams),
            StreamEnds::Copies(number) => {
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
