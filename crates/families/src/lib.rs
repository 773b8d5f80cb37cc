//! The families of models: for each `model_type`, what its fields in `config.json` say of its
//! layers. One file per family; the table below is the only list of what is supported.
//!
//! This crate is the only interpreter of `config.json`'s structure. It returns a [`ModelSpec`]: ranks load a
//! model by it, and the crates that plan, check or download a model compute sizes from it.
//!
//! Pure: it parses values that others have read, and computes nothing of the model.

mod afmoe;
mod altup;
mod apertus;
mod bailing_hybrid;
mod bailing_moe;
mod biased;
mod blocks;
mod cohere;
mod cohere2;
mod decoder;
mod deepseek;
mod deepseek_v4;
mod deepseek_v41;
mod dense;
mod ernie4_5_moe;
mod exaone;
mod exaone4;
mod exaone_moe;
mod falcon_h1;
mod gated_delta;
mod gates;
mod gemma;
mod gemma3;
mod gemma3n;
mod gemma4;
mod glm;
mod glm4_moe;
mod gpt_oss;
mod granite;
mod granitemoe;
mod granitemoehybrid;
mod hunyuan;
mod hunyuan_dense;
mod hyper;
mod internlm;
mod kimi;
mod laguna;
mod latent;
mod lfm2;
mod lfm2_moe;
mod lightning;
mod llama;
mod llama4;
mod mamba2;
mod mimo_v2_flash;
mod minicpm;
mod minicpm3;
mod minimax;
mod minimax_m3;
mod ministral3;
mod mistral3;
mod mixtral;
mod nemotron;
mod nemotron_h;
mod ngrams;
mod olmo2;
mod olmo3;
mod olmo_hybrid;
mod olmoe;
mod per_layer;
mod phi3;
mod phimoe;
mod pooled;
mod qwen;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_5;
mod qwen3_moe;
mod qwen3_next;
mod qwen4_exp;
mod random;
mod short_conv;
mod smollm3;
mod stablelm;
mod starcoder2;
mod state_space;
mod step3p5;
mod text_part;
mod windows;

use serde::Deserialize;
use serde_json::Value;

use jackalope_config::error::SpecError;
use jackalope_config::fields::{null_as_false, parse};
use jackalope_config::quantization::QuantizationMap;
use jackalope_spec::ModelSpec;

use self::decoder::Description;

/// A value of `model_type`.
struct Family {
    model_type: &'static str,
    read: fn(&Value) -> Result<Description, SpecError>,
}

/// Every known `model_type`.
const FAMILIES: &[Family] = &[
    family("llama", llama::read),
    family("mistral", llama::read),
    family("qwen2", qwen2::read),
    family("qwen3", qwen3::read),
    family("qwen3_moe", qwen3_moe::read),
    family("qwen2_moe", qwen2_moe::read),
    family("mixtral", mixtral::read),
    family("phimoe", phimoe::read),
    family("step3p5", step3p5::read),
    family("step3p7", text_part::read_step3p7),
    family("mimo_v2_flash", mimo_v2_flash::read),
    family("mimo_v2", text_part::read_mimo_v2),
    family("olmoe", olmoe::read),
    family("glm4_moe", glm4_moe::read),
    family("solar_open", glm4_moe::read),
    family("dots1", glm4_moe::read_dots),
    family("ernie4_5_moe", ernie4_5_moe::read),
    family("gpt_oss", gpt_oss::read),
    family("smollm3", smollm3::read),
    family("ministral3", ministral3::read),
    family("granitemoe", granitemoe::read),
    family("hunyuan", hunyuan::read),
    family("bailing_moe", bailing_moe::read),
    family("llama4", llama4::read),
    family("exaone4", exaone4::read),
    family("exaone_moe", exaone_moe::read),
    family("afmoe", afmoe::read),
    family("laguna", laguna::read),
    family("olmo3", olmo3::read),
    family("cohere2", cohere2::read),
    family("minimax", minimax::read),
    family("minimax_m2", minimax::read),
    family("minimax_m3", minimax_m3::read),
    family("minimax_m3_vl", minimax_m3::read),
    family("qwen3_next", qwen3_next::read),
    family("lfm2", lfm2::read),
    family("lfm2_moe", lfm2_moe::read),
    family("lfm2-vl", lfm2::read_vision),
    family("lfm2_vl", lfm2::read_vision),
    family("olmo_hybrid", olmo_hybrid::read),
    family("qwen3_5", qwen3_5::read),
    family("qwen3_5_moe", qwen3_5::read),
    family("qwen4_exp", qwen4_exp::read),
    family("mamba2", mamba2::read),
    family("granitemoehybrid", granitemoehybrid::read),
    family("nemotron_h", nemotron_h::read),
    family("falcon_h1", falcon_h1::read),
    family("deepseek_v2", deepseek::read_v2),
    family("deepseek_v3", deepseek::read_v3),
    family("deepseek_v32", deepseek::read_v32),
    family("glm_moe_dsa", deepseek::read_glm_dsa),
    family("glm5_next", deepseek::read_glm_next),
    family("deepseek_v4", deepseek_v4::read),
    family("deepseek_v41", deepseek_v41::read),
    family("kimi_k2", deepseek::read_v3),
    family("longcat_flash", deepseek::read_longcat),
    family("kimi_linear", kimi::read),
    family("kimi_k3", kimi::read_k3),
    family("bailing_hybrid", bailing_hybrid::read),
    family("bailing_moe_linear", bailing_hybrid::read_linear),
    family("kimi_k25", deepseek::read_kimi_k25),
    family("kimi_vl", deepseek::read_kimi_k25),
    family("glm4_moe_lite", deepseek::read_glm_lite),
    family("mistral3", mistral3::read),
    family("mistral4", deepseek::read_mistral),
    family("phi3", phi3::read),
    family("glm", glm::read),
    family("glm4", glm::read_glm4),
    family("granite", granite::read),
    family("olmo2", olmo2::read),
    family("minicpm", minicpm::read),
    family("minicpm3", minicpm3::read),
    family("exaone", exaone::read),
    family("internlm2", internlm::read2),
    family("internlm3", internlm::read3),
    family("seed_oss", biased::read_seed_oss),
    family("mimo", biased::read_mimo),
    family("ernie4_5", biased::read_ernie),
    family("helium", biased::read_helium),
    family("hunyuan_v1_dense", hunyuan_dense::read),
    family("cohere", cohere::read),
    family("starcoder2", starcoder2::read),
    family("stablelm", stablelm::read),
    family("nemotron", nemotron::read),
    family("apertus", apertus::read),
    family("qwen", qwen::read),
    family("gemma", gemma::read),
    family("gemma2", gemma::read2),
    family("gemma3_text", gemma3::read_text),
    family("gemma3", gemma3::read),
    family("gemma3n", gemma3n::read),
    family("gemma4_text", gemma4::read_text),
    family("gemma4", gemma4::read),
    family("gemma4_unified", gemma4::read),
    family("qwen2_vl", text_part::read_qwen2),
    family("qwen2_5_vl", text_part::read_qwen2),
    family("qwen3_vl", text_part::read_qwen3),
    family("qwen3_vl_moe", text_part::read_qwen3_moe),
    family("qwen3_omni_moe", text_part::read_qwen3_omni),
    family("glm4v", text_part::read_glm4v),
    family("glm4v_moe", text_part::read_glm4v_moe),
    family("llava", mistral3::read),
    family("pixtral", text_part::read_pixtral),
];

const fn family(
    model_type: &'static str,
    read: fn(&Value) -> Result<Description, SpecError>,
) -> Family {
    Family { model_type, read }
}

/// Returns every `model_type` that this version computes.
pub fn computed_types() -> Vec<&'static str> {
    FAMILIES.iter().map(|family| family.model_type).collect()
}

/// The fields that every `config.json` has, whatever the architecture.
#[derive(Deserialize)]
struct Header {
    model_type: String,
    #[serde(default)]
    model_file: Option<String>,
}

/// Reads the description of a model from a parsed `config.json`.
///
/// # Errors
/// Fails if the configuration is malformed, or describes a model that this version does not
/// compute.
pub fn model_spec(config: &Value) -> Result<ModelSpec, SpecError> {
    let Header { model_type, model_file } = parse(config)?;
    if let Some(found) = model_file {
        let supported: &[&str] = &["architectures built into jackalope"];
        let what = "model code in the checkpoint";
        return Err(SpecError::Setting { what, found, supported });
    }
    let Some(family) = FAMILIES.iter().find(|family| family.model_type == model_type) else {
        let mut supported = computed_types();
        supported.sort_unstable();
        return Err(SpecError::Architecture { found: model_type, supported });
    };
    let quantization = QuantizationMap::from_config(config)?;
    let config = null_as_false(config);
    Ok((family.read)(&config)?.into_model(model_type, quantization))
}
