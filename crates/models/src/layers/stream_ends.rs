//! The streams before the first layer and after the last one.

use jackalope_mlx::{Array, Dtype, dim};
use jackalope_spec::StreamsSpec;
use jackalope_weights::LoadError;
use jackalope_weights::Weights;

use super::altup::AltUpEnds;
use super::hyper::{StreamShape, StreamSum};
use super::low_rank_gate::LowRankGate;
use jackalope_parallel::Parallel;

/// Makes several streams from the embedding, and one from the streams.
#[derive(Debug)]
pub(crate) enum StreamEnds {
    AltUp(AltUpEnds),
    /// Streams that begin as copies, and end as a sum or as their mean.
    Copies(usize, Option<StreamSum>),
    /// Streams that begin as copies and end in a gate, on ranks that have the last layer.
    Gated(Option<Box<LowRankGate>>, usize),
}

impl StreamEnds {
    /// Loads what this rank needs.
    ///
    /// # Errors
    /// Fails if a tensor cannot be read.
    pub(crate) fn load(
        root: &Weights<'_>,
        spec: &StreamsSpec,
        shape: StreamShape,
        parallel: &Parallel,
    ) -> Result<StreamEnds, LoadError> {
        Ok(match spec {
            StreamsSpec::AltUp(spec) => {
                StreamEnds::AltUp(AltUpEnds::load(root, spec, shape.hidden, parallel)?)
            }
            StreamsSpec::HyperConnections { num_streams, end } => {
                let end = end.as_ref().filter(|_| parallel.has_last_layer());
                let sum = end.map(|end| StreamSum::load(root, end, shape, parallel));
                StreamEnds::Copies(*num_streams, sum.transpose()?)
            }
            StreamsSpec::Gated { num_streams, end } => {
                let load = || LowRankGate::load(root, end, shape, parallel).map(Box::new);
                let gate = parallel.has_last_layer().then(load).transpose()?;
                StreamEnds::Gated(gate, *num_streams)
            }
        })
    }

    /// Returns the streams `[tokens, streams * hidden]` of the embedding `[tokens, hidden]`.
    pub(crate) fn begin(&self, h: &Array) -> Array {
        match self {
            StreamEnds::AltUp(ends) => ends.begin(h),
            StreamEnds::Copies(number, _) | StreamEnds::Gated(_, number) => {
                Array::concatenate(&vec![h; *number], 1)
            }
        }
    }

    /// Returns what follows the last layer, `[tokens, hidden]`.
    pub(crate) fn end(&self, streams: &Array) -> Array {
        match self {
            StreamEnds::AltUp(ends) => ends.end(streams),
            StreamEnds::Gated(gate, _) => {
                gate.as_ref().expect("this rank has the last layer").read(streams)
            }
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
