//! The families of models: for each `model_type`, what its fields in `config.json` say of its
//! layers. One file per family; the table below is the only list of what is supported.

mod apertus;
mod bailing_moe;
mod biased;
mod blocks;
mod cohere;
mod cohere2;
mod decoder;
mod deepseek;
mod dense;
mod ernie4_5_moe;
mod exaone;
mod exaone4;
mod gated_delta;
mod gemma;
mod gemma3;
mod glm;
mod glm4_moe;
mod gpt_oss;
mod granite;
mod granitemoe;
mod hunyuan;
mod hunyuan_dense;
mod internlm;
mod latent;
mod llama;
mod llama4;
mod minicpm;
mod minimax;
mod ministral3;
mod mistral3;
mod mixtral;
mod nemotron;
mod olmo2;
mod olmo3;
mod olmoe;
mod phi3;
mod qwen;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_5;
mod qwen3_moe;
mod qwen3_next;
mod smollm3;
mod stablelm;
mod starcoder2;
mod text_part;
mod windows;

use serde::Deserialize;
use serde_json::Value;

use crate::config::parse;
use crate::error::SpecError;
use crate::model::{ModelSpec, Support};
use crate::quantization::QuantizationMap;

use self::decoder::Description;

/// A value of `model_type`.
struct Family {
    model_type: &'static str,
    support: Support,
    read: fn(&Value) -> Result<Description, SpecError>,
}

/// Every known `model_type`.
const FAMILIES: &[Family] = &[
    computed("llama", llama::read),
    computed("mistral", llama::read),
    computed("qwen2", qwen2::read),
    computed("qwen3", qwen3::read),
    computed("qwen3_moe", qwen3_moe::read),
    computed("qwen2_moe", qwen2_moe::read),
    computed("mixtral", mixtral::read),
    computed("olmoe", olmoe::read),
    computed("glm4_moe", glm4_moe::read),
    computed("solar_open", glm4_moe::read),
    computed("dots1", glm4_moe::read_dots),
    computed("ernie4_5_moe", ernie4_5_moe::read),
    computed("gpt_oss", gpt_oss::read),
    computed("smollm3", smollm3::read),
    computed("ministral3", ministral3::read),
    computed("granitemoe", granitemoe::read),
    computed("hunyuan", hunyuan::read),
    computed("bailing_moe", bailing_moe::read),
    computed("llama4", llama4::read),
    computed("exaone4", exaone4::read),
    computed("olmo3", olmo3::read),
    computed("cohere2", cohere2::read),
    computed("minimax", minimax::read),
    computed("minimax_m2", minimax::read),
    computed("qwen3_next", qwen3_next::read),
    computed("qwen3_5", qwen3_5::read),
    computed("qwen3_5_moe", qwen3_5::read),
    computed("deepseek_v2", deepseek::read_v2),
    computed("deepseek_v3", deepseek::read_v3),
    computed("kimi_k2", deepseek::read_v3),
    computed("kimi_k25", deepseek::read_kimi_k25),
    computed("kimi_vl", deepseek::read_kimi_k25),
    computed("glm4_moe_lite", deepseek::read_glm_lite),
    computed("mistral3", mistral3::read),
    computed("mistral4", deepseek::read_mistral),
    computed("phi3", phi3::read),
    computed("glm", glm::read),
    computed("glm4", glm::read_glm4),
    computed("granite", granite::read),
    computed("olmo2", olmo2::read),
    computed("minicpm", minicpm::read),
    computed("exaone", exaone::read),
    computed("internlm2", internlm::read2),
    computed("internlm3", internlm::read3),
    computed("seed_oss", biased::read_seed_oss),
    computed("mimo", biased::read_mimo),
    computed("ernie4_5", biased::read_ernie),
    computed("helium", biased::read_helium),
    computed("hunyuan_v1_dense", hunyuan_dense::read),
    computed("cohere", cohere::read),
    computed("starcoder2", starcoder2::read),
    computed("stablelm", stablelm::read),
    computed("nemotron", nemotron::read),
    computed("apertus", apertus::read),
    computed("qwen", qwen::read),
    computed("gemma", gemma::read),
    computed("gemma2", gemma::read2),
    computed("gemma3_text", gemma3::read_text),
    computed("gemma3", gemma3::read),
    computed("qwen2_vl", text_part::read_qwen2),
    computed("qwen2_5_vl", text_part::read_qwen2),
    computed("qwen3_vl", text_part::read_qwen3),
    computed("qwen3_vl_moe", text_part::read_qwen3_moe),
    computed("llava", mistral3::read),
    computed("pixtral", text_part::read_pixtral),
];

const fn computed(
    model_type: &'static str,
    read: fn(&Value) -> Result<Description, SpecError>,
) -> Family {
    Family { model_type, support: Support::Computed, read }
}

/// Returns every `model_type` that this version computes.
pub fn computed_types() -> Vec<&'static str> {
    types(Support::Computed)
}

/// Returns every `model_type` whose tensors and memory are known, but which is not computed yet.
pub fn described_types() -> Vec<&'static str> {
    types(Support::Described)
}

fn types(support: Support) -> Vec<&'static str> {
    let wanted = FAMILIES.iter().filter(|family| family.support == support);
    wanted.map(|family| family.model_type).collect()
}

/// The fields that every `config.json` has, whatever the architecture.
#[derive(Deserialize)]
struct Header {
    model_type: String,
    #[serde(default)]
    model_file: Option<String>,
}

/// Creates the error about an architecture that is unknown or not computed.
fn unsupported(found: &str) -> SpecError {
    SpecError::Architecture { found: found.to_owned(), supported: computed_types() }
}

impl ModelSpec {
    /// Reads a parsed `config.json`.
    ///
    /// # Errors
    /// Fails if the configuration is malformed, or describes a model that this version does not know.
    pub fn from_config(config: &Value) -> Result<ModelSpec, SpecError> {
        let Header { model_type, model_file } = parse(config)?;
        if let Some(found) = model_file {
            let supported: &[&str] = &["architectures built into jackalope"];
            let what = "model code in the checkpoint";
            return Err(SpecError::Setting { what, found, supported });
        }
        let Some(family) = FAMILIES.iter().find(|family| family.model_type == model_type) else {
            return Err(unsupported(&model_type));
        };
        let quantization = QuantizationMap::from_config(config)?;
        Ok((family.read)(config)?.into_model(model_type, family.support, quantization))
    }

    /// Reads a parsed `config.json` of a model that is to be loaded.
    ///
    /// # Errors
    /// As in [`ModelSpec::from_config`], and if this version cannot compute the layers.
    pub fn computed_from(config: &Value) -> Result<ModelSpec, SpecError> {
        let spec = ModelSpec::from_config(config)?;
        spec.require_computed()?;
        Ok(spec)
    }

    /// Refuses a model that is described but not computed yet.
    ///
    /// # Errors
    /// Fails if this version cannot compute the layers.
    pub fn require_computed(&self) -> Result<(), SpecError> {
        match self.support {
            Support::Computed => Ok(()),
            Support::Described => Err(unsupported(&self.model_type)),
        }
    }
}
