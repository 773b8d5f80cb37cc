//! The streams before the first layer and after the last one.

use jackalope_mlx::{Array, Dtype, dim};
use jackalope_spec::{ConnectionsEnd, StreamsSpec};
use jackalope_weights::LoadError;
use jackalope_weights::Weights;

use super::altup::AltUpEnds;
use super::hyper::{StreamShape, StreamSum, sum_with_weights};
use super::low_rank_gate::LowRankGate;
use super::residual::Residual;
use jackalope_parallel::Parallel;

/// Makes several streams from the embedding, and one from the streams.
#[derive(Debug)]
pub(crate) enum StreamEnds {
    AltUp(AltUpEnds),
    /// Streams that begin as copies, and end as a sum or as their mean.
    Copies(usize, Option<StreamSum>),
    /// Streams that begin as copies; each block passes on the weights with which they are read next, after the
    /// last one too.
    Passing(usize, Parallel),
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
                let end = match end {
                    ConnectionsEnd::OfLastBlock => {
                        return Ok(StreamEnds::Passing(*num_streams, parallel.clone()));
                    }
                    ConnectionsEnd::Weighted(end) => Some(end),
                    ConnectionsEnd::Mean => None,
                };
                let end = end.filter(|_| parallel.has_last_layer());
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
    pub(crate) fn begin(&self, embedding: Residual) -> Residual {
        let copies = |number: usize| move |h: Array| Array::concatenate(&vec![&h; number], 1);
        match self {
            StreamEnds::AltUp(ends) => embedding.replaced(|h| ends.begin(&h)),
            StreamEnds::Copies(number, _) | StreamEnds::Gated(_, number) => {
                embedding.replaced(copies(*number))
            }
            StreamEnds::Passing(number, parallel) => {
                let streams = embedding.finish();
                let first = Array::from_slice(&[0], &[1]);
                let weights = Array::arange(dim(*number), Dtype::I32).equal(&first);
                let weights = weights.astype(Dtype::F32).expand_dims(0);
                let weights = weights.broadcast_to(&[streams.dim(0), dim(*number)]).contiguous();
                Residual::new(copies(*number)(streams), parallel).with_weights(Some(weights))
            }
        }
    }

    /// Returns what follows the last layer, `[tokens, hidden]`.
    pub(crate) fn end(&self, residual: Residual) -> Array {
        let weights = residual.weights();
        let streams = &residual.finish();
        match self {
            StreamEnds::Passing(_, parallel) => {
                sum_with_weights(&weights.expect("of the last block"), streams, parallel)
            }
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
