//! EXAONE 3 and 3.5 (LG AI Research 2024): Llama under other names.

use serde_json::{Value, json};

use super::decoder::{DecoderNames, Description};
use super::dense::{DenseConfig, DenseLayer, Inward, LayerModules, Qkv};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{completed, parse};

const MODULES: LayerModules = LayerModules {
    layers: "transformer.h",
    qkv: Qkv::Apart(["attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj"]),
    output: "attn.attention.out_proj",
    inward: Inward::Apart(["mlp.c_fc_0", "mlp.c_fc_1"]),
    down: "mlp.c_proj",
    norms: [Some("ln_1"), None, Some("ln_2"), None],
    ..LayerModules::LLAMA
};

const NAMES: DecoderNames =
    DecoderNames { embedding: "transformer.wte", norm: "transformer.ln_f", head: "lm_head" };

pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let renames = [("num_layers", "num_hidden_layers"), ("layer_norm_epsilon", "rms_norm_eps")];
    let config: DenseConfig = parse(&completed(config, &renames, &json!({})))?;
    let sizes = config.decoder.sizes()?;
    let rope = config.decoder.rope.spec(config.head_dim(sizes)?, None)?;
    let layer = DenseLayer::new(MODULES, config.attention(sizes, rope)?, config.mlp()?);
    Ok(Description { modules: NAMES, ..layer.repeated(sizes, &config.decoder) })
}
