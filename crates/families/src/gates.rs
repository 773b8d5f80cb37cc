//! The tensors of gates of low rank that read several streams.

use super::blocks::{matrix, vector};
use jackalope_spec::{
    GatedConnectionSpec, LayerSpec, LayerStreams, StreamGate, TensorCut, TensorRole,
};

/// Sizes of streams and gates.
#[derive(Clone, Copy, Debug)]
pub(super) struct GateSizes {
    pub(super) num_streams: usize,
    pub(super) hidden: usize,
    pub(super) rank: usize,
}

impl GateSizes {
    /// Returns the width of all streams.
    pub(super) fn all(self) -> usize {
        self.num_streams * self.hidden
    }

    /// Returns the gate at `module`, whose tensors have these roles.
    fn gate(self, module: &str, role: TensorRole, of_norm: TensorRole) -> StreamGate {
        let at = |name: &str| format!("{module}.{name}");
        let (all, cut) = (self.all(), TensorCut::Replicated);
        let linear = |name, shape| matrix(&at(name), role, shape, cut.clone());
        StreamGate {
            norm: vector(&at("hc_norm.weight"), of_norm, all, cut.clone()),
            down: linear("input_mix_weight_down", vec![self.rank, all]),
            up: linear("input_mix_weight_up", vec![all, self.rank]),
        }
    }

    /// Returns the gate at `module` after the last layer; the rank that has the head has it.
    pub(super) fn end(self, module: &str) -> StreamGate {
        self.gate(module, TensorRole::Head, TensorRole::Head)
    }

    /// Adds to a layer how its blocks read streams and add to them.
    pub(super) fn connect(self, mut layer: LayerSpec) -> LayerSpec {
        let connection = |name: &str| {
            let module = format!("{}.{name}", layer.prefix);
            let add = format!("{module}.block_inject_weight");
            let shape = vec![self.num_streams, self.all()];
            let add = matrix(&add, TensorRole::Mixer, shape, TensorCut::Replicated);
            let gate = self.gate(&module, TensorRole::Mixer, TensorRole::Norm);
            GatedConnectionSpec { gate, add }
        };
        let connections = ["attn_hyper_connection", "mlp_hyper_connection"].map(connection);
        for GatedConnectionSpec { gate: StreamGate { norm, down, up }, add } in &connections {
            layer.tensors.extend([norm, down, up, add].map(Clone::clone));
        }
        LayerSpec { streams: Some(LayerStreams::Gated(Box::new(connections))), ..layer }
    }
}
