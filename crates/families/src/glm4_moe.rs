//! GLM-4.5 and later with experts, Solar Open, and dots.llm1: dense layers first, then experts with
//! one that every token passes.

mod config;

use serde_json::Value;

use self::config::{Config, attention, router};
use super::blocks::{ExpertCounts, ExpertNames, ExpertSizes, experts, mlp};
use super::decoder::Description;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{count, dimension, parse, unsupported};
use jackalope_spec::{AttentionSpec, MlpSpec, QkNorm};

const NAMES: ExpertNames = ExpertNames {
    score_bias: Some("gate.e_score_correction_bias"),
    shared: "shared_experts",
    ..ExpertNames::QWEN
};

/// Stacked experts have the name that single ones have elsewhere.
const DOTS_NAMES: ExpertNames = ExpertNames { stacked: "experts", ..NAMES };

/// Reads GLM-4.5 and Solar Open. `rope_scaling` is ignored, as in mlx-lm.
pub(super) fn read(config: &Value) -> Result<Description, SpecError> {
    let config: Config = parse(config)?;
    let head_dim = config.decoder.sizes()?.head_dim_or(config.head_dim)?;
    let rope = &config.decoder.rope;
    let rope = rope.unscaled(rope.rotated_dims(head_dim, None)?)?;
    let qk_norm = config.use_qk_norm.then_some(QkNorm::PerHead);
    let attention = attention(&config, qk_norm, config.attention_bias, rope)?;
    // A layer that predicts a second token.
    let extra = format!("model.layers.{}.", config.decoder.sizes()?.num_layers);
    let description = describe(&config, &NAMES, &attention)?.with_stored_head();
    Ok(description.without([extra]))
}

/// Reads the text part of `glm4v_moe`, whose rotation is a plain one on text, as that of `glm4v`. Norms of
/// queries and keys are refused, because the reference has none (mlx-vlm 0.7.10,
/// models/glm4v_moe/language.py).
pub(super) fn read_vision(config: &Value) -> Result<Description, SpecError> {
    let stated: Config = parse(config)?;
    if stated.use_qk_norm {
        return Err(unsupported("use_qk_norm", &true, &["false"]));
    }
    stated.decoder.rope.require(&["default", "mrope"])?;
    read(config)
}

/// Reads dots.llm1.
pub(super) fn read_dots(config: &Value) -> Result<Description, SpecError> {
    let config: Config = parse(config)?;
    let head_dim = config.decoder.sizes()?.head_dim_or(config.head_dim)?;
    let rope = config.decoder.rope.spec(head_dim, None)?;
    let attention = attention(&config, Some(QkNorm::PerHead), false, rope)?;
    describe(&config, &DOTS_NAMES, &attention)
}

fn describe(
    config: &Config,
    names: &ExpertNames,
    attention: &AttentionSpec,
) -> Result<Description, SpecError> {
    let sizes = config.decoder.sizes()?;
    let inner = dimension("intermediate_size", config.intermediate_size)?;
    let dense = MlpSpec::plain(inner);
    let inner = dimension("moe_intermediate_size", config.moe_intermediate_size)?;
    let counts =
        ExpertCounts::new("n_routed_experts", config.n_routed_experts, config.num_experts_per_tok)?;
    let router = router(config, counts.num_experts)?;
    let shared = config.n_shared_experts.map(|number| count("n_shared_experts", number));
    let sparse = ExpertSizes {
        shared_inner: shared.transpose()?.map(|number| inner * number),
        ..ExpertSizes::plain(counts, inner, router)
    };
    Ok(config.decoder.repeated(sizes, attention, |layer_idx, prefix| {
        let module = format!("{prefix}.mlp");
        if layer_idx < config.first_k_dense_replace {
            mlp(&module, sizes.hidden, dense.clone())
        } else {
            experts(&module, sizes.hidden, names, sparse)
        }
    }))
}
