//! The tensors of hyper-connections.

use super::blocks::vector;
use super::latent::plain;
use jackalope_spec::{HyperConnectionSpec, LayerSpec, LayerStreams, TensorCut, TensorRole};

/// Adds to a layer how its blocks read several streams and add to them.
pub(super) fn with_hyper_connections(
    mut layer: LayerSpec,
    connections: [HyperConnectionSpec; 2],
    num_streams: usize,
    hidden: usize,
) -> LayerSpec {
    let num_weights = (2 + num_streams) * num_streams;
    for HyperConnectionSpec { module, .. } in &connections {
        let at = |name: &str| format!("{module}.{name}");
        let own =
            |name: &str, len| vector(&at(name), TensorRole::Mixer, len, TensorCut::Replicated);
        layer.tensors.push(plain(&at("fn"), [num_weights, num_streams * hidden]));
        layer.tensors.push(own("base", num_weights));
        layer.tensors.push(own("scale", 3));
    }
    LayerSpec { streams: Some(LayerStreams::HyperConnections(connections)), ..layer }
}
