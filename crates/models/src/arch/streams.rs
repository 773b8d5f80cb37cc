//! The streams of the residual, and how the blocks of a layer read them and add to them.

use jackalope_spec::{self as spec, AltUpLayer, HyperConnectionSpec, ModelSpec, StreamsSpec};
use jackalope_weights::LoadError;

use super::parts::LayerParts;
use crate::layers::{
    AltUp, AltUpParts, GatedConnection, HyperConnection, NormSettings, PerLayerReader, StreamShape,
};

/// The streams of the residual, and how the layer's blocks read them and add to them.
#[derive(Debug)]
pub(super) enum LayerStreams {
    /// There is one. After the blocks the layer's input beside it is read, if it has one.
    One(Option<Box<PerLayerReader>>),
    AltUp(Box<AltUp>),
    /// Of the mixer and of the feed-forward block.
    HyperConnections(Box<[HyperConnection; 2]>),
    /// As `HyperConnections`, of blocks that pass on the weights with which streams are read.
    Passing(Box<[HyperConnection; 2]>),
    /// As `HyperConnections`, through gates.
    Gated(Box<[GatedConnection; 2]>),
}

impl LayerStreams {
    /// Loads what a layer does with the streams; `reader` reads its input beside them.
    ///
    /// # Errors
    /// Fails if a tensor cannot be read.
    pub(super) fn load(
        parts: &LayerParts<'_, '_>,
        reader: Option<PerLayerReader>,
    ) -> Result<LayerStreams, LoadError> {
        Ok(match (&parts.spec.streams, reader) {
            (None, reader) => LayerStreams::One(reader.map(Box::new)),
            (Some(spec::LayerStreams::AltUp(layer)), Some(reader)) => {
                LayerStreams::AltUp(Box::new(altup(parts, layer, reader)?))
            }
            (Some(spec::LayerStreams::HyperConnections([mixer, rest])), None) => {
                let both = [hyper_connection(parts, mixer)?, hyper_connection(parts, rest)?];
                let both = Box::new(both);
                if parts.model.streams.as_ref().is_some_and(StreamsSpec::passes_weights) {
                    LayerStreams::Passing(both)
                } else {
                    LayerStreams::HyperConnections(both)
                }
            }
            (Some(spec::LayerStreams::Gated(connections)), None) => {
                let load = |it| GatedConnection::load(parts.root, it, shape(parts), parts.parallel);
                let [mixer, rest] = &**connections;
                LayerStreams::Gated(Box::new([load(mixer)?, load(rest)?]))
            }
            (Some(_), _) => panic!("only alternating updates read inputs, and they do"),
        })
    }
}

fn altup(
    parts: &LayerParts<'_, '_>,
    layer: &AltUpLayer,
    reader: PerLayerReader,
) -> Result<AltUp, LoadError> {
    let ModelSpec { hidden_size: hidden, norm_kind: kind, norm_eps: eps, .. } = *parts.model;
    let Some(StreamsSpec::AltUp(spec)) = &parts.model.streams else {
        panic!("the layer's model has such streams")
    };
    let settings = NormSettings { kind, eps };
    AltUp::load(parts.root, AltUpParts { spec, layer, reader, hidden, settings }, parts.parallel)
}

/// Returns the shape of the streams.
pub(super) fn shape(parts: &LayerParts<'_, '_>) -> StreamShape {
    StreamShape::of(parts.model)
}

fn hyper_connection(
    parts: &LayerParts<'_, '_>,
    spec: &HyperConnectionSpec,
) -> Result<HyperConnection, LoadError> {
    HyperConnection::load(parts.root, spec, shape(parts), parts.parallel)
}
