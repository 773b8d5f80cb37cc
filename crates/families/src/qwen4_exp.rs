//! Qwen4 (Qwen team 2026, "Qwen3.8-Flash-Next"): streams with gates of low rank in the place of norms;
//! gated delta nets, and in some layers attention to pools of positions; experts; tables of n-grams.

mod config;

use serde_json::Value;

use self::config::Config;
use super::blocks::{ExpertNames, FusedNames, attention, experts};
use super::decoder::{Description, LayerBuilder};
use super::gated_delta::split;
use super::text_part::text_config;
use jackalope_config::error::SpecError;
use jackalope_config::fields::parse;
use jackalope_config::names::TensorNames;
use jackalope_spec::{LayerNorms, LayerSpec, Mixer, NormKind, StreamsSpec};

const NAMES: ExpertNames = ExpertNames { fused: &[FusedNames::ROWS], ..super::qwen3_next::NAMES };

/// Reads the language model of `qwen4_exp`. What is not stated has the value of mlx-vlm.
pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let config: Config = parse(text_config(config))?;
    let sizes = config.decoder.sizes()?;
    let (attend, own) = (config.attend(sizes.num_layers)?, config.attention(sizes)?);
    let delta = config.delta.sizes()?;
    let has_logistic_gates = config.has_logistic_gates()?;
    let gates = config.gates(sizes.hidden)?;
    let sparse = config.experts()?;
    let mut tables = config.tables(&attend, sizes, gates)?.into_iter();
    let layers = (0..sizes.num_layers).map(|layer_idx| {
        let prefix = format!("model.layers.{layer_idx}");
        let mixer = if attend[layer_idx] {
            attention(&format!("{prefix}.self_attn"), sizes.hidden, own.clone())
        } else {
            let mut block = split(&format!("{prefix}.linear_attn"), sizes.hidden, delta);
            if let Mixer::GatedDelta(spec) = &mut block.mixer {
                spec.has_logistic_gates = has_logistic_gates;
            }
            block
        };
        let block = experts(&format!("{prefix}.mlp"), sizes.hidden, &NAMES, sparse);
        let builder = LayerBuilder::pre_norm(prefix, sizes.hidden);
        let norms = LayerNorms::default();
        let mut layer = gates.connect(LayerBuilder { norms, ..builder }.build(mixer, block));
        if config.has_ngrams(layer_idx) {
            let (spec, tensors) = tables.next().expect("a table for each such layer");
            layer.tensors.extend(tensors);
            layer = LayerSpec { ngrams: Some(spec), ..layer };
        }
        layer
    });
    let description = config.decoder.with_layers(sizes, layers.collect());
    let end = Box::new(gates.end("model.hyper_connection_mixer"));
    let streams = Some(StreamsSpec::Gated { num_streams: gates.num_streams, end });
    let norm_kind = NormKind { adds_one: true, ..NormKind::default() };
    Ok(Description { streams, norm_kind, ..description }.with_names(TensorNames::QWEN4))
}
