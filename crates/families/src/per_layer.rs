//! What layers read of the tokens beside the stream, in Gemma 3n and Gemma 4.

use super::blocks::{Linear, matrix};
use super::decoder::{Sizes, norm};
use jackalope_config::error::SpecError;
use jackalope_config::fields::dimension;
use jackalope_spec::{
    Dimension, LayerSpec, PerLayerBlock, PerLayerInputsSpec, TensorCut, TensorRole, TensorSpec,
};

/// Returns the inputs of all layers, `width` elements for each.
///
/// # Errors
/// Fails if a size is out of bounds.
pub(super) fn per_layer_inputs(
    sizes: Sizes,
    width: u32,
    vocab_size: u32,
) -> Result<PerLayerInputsSpec, SpecError> {
    let width = dimension("hidden_size_per_layer_input", width)?;
    let vocab_size = dimension("vocab_size_per_layer_input", vocab_size)?;
    let role = TensorRole::PerLayerTable;
    let rows = TensorCut::whole_column(Dimension::Vocab, vocab_size);
    let all = sizes.num_layers * width;
    let table = matrix("model.embed_tokens_per_layer", role, vec![vocab_size, all], rows);
    let role = TensorRole::PerLayerInput;
    let shape = vec![all, sizes.hidden];
    let module = "model.per_layer_model_projection";
    let projection = matrix(module, role, shape, TensorCut::Replicated);
    let norm = TensorSpec { role, ..norm("model.per_layer_projection_norm", width) };
    Ok(PerLayerInputsSpec { width, vocab_size, table, projection, norm })
}

/// Adds to a layer how it reads its inputs.
pub(super) fn with_per_layer_input(mut layer: LayerSpec, hidden: usize, width: usize) -> LayerSpec {
    let at = |name: &str| format!("{}.{name}", layer.prefix);
    let block = PerLayerBlock {
        gate: at("per_layer_input_gate"),
        projection: at("per_layer_projection"),
        norm: at("post_per_layer_input_norm"),
    };
    let role = TensorRole::Mlp;
    let linear = |output, input| Linear { role, output, input, has_bias: false };
    layer.tensors.extend(linear(width, hidden).whole(&block.gate));
    layer.tensors.extend(linear(hidden, width).whole(&block.projection));
    layer.tensors.push(norm(&block.norm, hidden));
    LayerSpec { per_layer_input: Some(block), ..layer }
}
