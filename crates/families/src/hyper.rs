//! The tensors of hyper-connections.

use super::blocks::vector;
use super::latent::plain;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{count, factor};
use jackalope_spec::{
    HyperConnectionSpec, LayerSpec, LayerStreams, StreamEndSpec, TensorCut, TensorRole, TensorSpec,
};

/// Returns how both blocks of a layer with this prefix read several streams and add to them.
///
/// # Errors
/// Fails if a number is out of bounds.
pub(super) fn connections(
    prefix: &str,
    iterations: u32,
    eps: f32,
) -> Result<[HyperConnectionSpec; 2], SpecError> {
    let iterations = count("hc_sinkhorn_iters", iterations)?;
    let eps = factor("hc_eps", eps)?;
    let of = |name| HyperConnectionSpec { module: format!("{prefix}.{name}"), iterations, eps };
    Ok(["attn_hc", "ffn_hc"].map(of))
}

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

/// Returns the weights at `module` of the sum of all streams, on ranks that have the head.
pub(super) fn stream_end(
    module: &str,
    eps: f32,
    num_streams: usize,
    hidden: usize,
) -> StreamEndSpec {
    let at = |name: &str| format!("{module}.{name}");
    let own = |name: &str, len| vector(&at(name), TensorRole::Head, len, TensorCut::Replicated);
    let projection = plain(&at("fn"), [num_streams, num_streams * hidden]);
    let tensors = [
        TensorSpec { role: TensorRole::Head, ..projection },
        own("base", num_streams),
        own("scale", 1),
    ];
    StreamEndSpec { module: module.to_owned(), tensors, eps }
}
