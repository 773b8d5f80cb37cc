//! The streams of Gemma 3n.

use serde::Deserialize;

use super::blocks::{Linear, matrix, vector};
use super::decoder::{Sizes, norm};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, count, dimension, factor};
use jackalope_spec::{
    AltUpLayer, AltUpSpec, LayerSpec, LayerStreams, TensorCut, TensorRole, TensorSpec,
};

/// The fields that concern the streams.
#[derive(Debug, Deserialize)]
pub(super) struct StreamsConfig {
    altup_num_inputs: u32,
    altup_active_idx: usize,
    altup_coef_clip: Option<f32>,
    altup_correct_scale: bool,
    laurel_rank: u32,
}

/// Returns the streams.
///
/// # Errors
/// Fails if a number is out of bounds.
pub(super) fn altup(config: &StreamsConfig, sizes: Sizes) -> Result<AltUpSpec, SpecError> {
    let num_streams = count("altup_num_inputs", config.altup_num_inputs)?;
    let active = config.altup_active_idx;
    if num_streams <= active {
        let expected = format!("less than {num_streams}");
        return Err(bad_value("altup_active_idx", active, expected));
    }
    let clip = config.altup_coef_clip;
    let projections = |name: &str, role| {
        let shape = vec![sizes.hidden, sizes.hidden];
        let each = |idx| {
            let module = format!("model.{name}.{idx}");
            matrix(&module, role, shape.clone(), TensorCut::Replicated)
        };
        (0..num_streams - 1).map(each).collect::<Vec<TensorSpec>>()
    };
    Ok(AltUpSpec {
        num_streams,
        active,
        coef_clip: clip.map(|clip| factor("altup_coef_clip", clip)).transpose()?,
        projections: projections("altup_projections", TensorRole::PerLayerInput),
        unembeds: projections("altup_unembed_projections", TensorRole::Head),
    })
}

/// Adds to a layer how it predicts and corrects the streams.
///
/// # Errors
/// Fails if a number is out of bounds.
pub(super) fn with_altup(
    mut layer: LayerSpec,
    config: &StreamsConfig,
    sizes: Sizes,
) -> Result<LayerSpec, SpecError> {
    let at = |name: &str| format!("{}.{name}", layer.prefix);
    let laurel_rank = dimension("laurel_rank", config.laurel_rank)?;
    let altup = AltUpLayer {
        router_norm: at("altup.router_norm"),
        router: at("altup.modality_router"),
        prediction: at("altup.prediction_coefs"),
        correction: at("altup.correction_coefs"),
        output_scale: at("altup.correct_output_scale"),
        scales_output: config.altup_correct_scale,
        laurel_rank,
        laurel: ["laurel.linear_left", "laurel.linear_right"].map(at),
        laurel_norm: at("laurel.post_laurel_norm"),
    };
    let (streams, hidden, role) = (config.altup_num_inputs as usize, sizes.hidden, TensorRole::Mlp);
    let linear = |output, input| Linear { role, output, input, has_bias: false };
    let whole = TensorCut::Replicated;
    // Their rows are too short to be quantised.
    let coefficients = |module: &str, rows: usize| TensorSpec {
        shape: vec![rows, streams],
        ..vector(&format!("{module}.weight"), role, rows, TensorCut::Replicated)
    };
    layer.tensors.push(norm(&altup.router_norm, hidden));
    layer.tensors.extend(linear(streams, hidden).whole(&altup.router));
    layer.tensors.push(coefficients(&altup.prediction, streams * streams));
    layer.tensors.push(coefficients(&altup.correction, streams));
    layer.tensors.push(vector(&altup.output_scale, role, hidden, whole));
    layer.tensors.extend(linear(laurel_rank, hidden).whole(&altup.laurel[0]));
    layer.tensors.extend(linear(hidden, laurel_rank).whole(&altup.laurel[1]));
    layer.tensors.push(norm(&altup.laurel_norm, hidden));
    Ok(LayerSpec { streams: Some(LayerStreams::AltUp(altup)), ..layer })
}
