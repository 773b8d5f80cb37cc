//! The residuals of Kimi K3.

use crate::blocks::vector;
use crate::decoder::norm;
use jackalope_spec::{LayerResiduals, LayerSpec, StreamReader, TensorCut, TensorRole};

/// Makes the blocks of a layer read the streams of all blocks of layers.
pub(super) fn add_residuals(layer: &mut LayerSpec, hidden: usize, starts_block: bool) {
    let at = |name: &str| format!("{}.{name}", layer.prefix);
    let residuals = LayerResiduals {
        mixer: reader(&at("self_attention_res"), hidden, !starts_block),
        feed_forward: reader(&at("mlp_res"), hidden, true),
    };
    layer.tensors.extend(residuals.mixer.tensors().map(Clone::clone));
    layer.tensors.extend(residuals.feed_forward.tensors().map(Clone::clone));
    layer.residuals = Some(residuals);
}

/// Returns what reads the streams with the tensors that begin with `name`.
pub(super) fn reader(name: &str, hidden: usize, has_current: bool) -> StreamReader {
    let projection = format!("{name}_proj.weight");
    StreamReader {
        norm: norm(&format!("{name}_norm"), hidden),
        projection: vector(&projection, TensorRole::Norm, hidden, TensorCut::Replicated),
        has_current,
    }
}
