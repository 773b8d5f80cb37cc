//! Granite 4 (Granite team 2025): state spaces with some layers of attention, each followed by
//! experts, of which every token passes one, or by a dense block; factors as in Granite 3.

mod config;

use jackalope_protocol::counted;
use serde_json::Value;

use self::config::{Config, gqa, space};
use super::blocks::{
    Block, ExpertCounts, ExpertNames, ExpertSizes, FusedNames, FusedOrder, MixerBlock,
    SharedProjections, attention, dense, experts,
};
use super::decoder::{Description, LayerBuilder, Sizes};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, dimension, factor, or_absent, parse, setting};
use jackalope_config::names::TensorNames;
use jackalope_config::rope_parameters::with_base_of_parameters;
use jackalope_spec::{
    FusedForm, HeadTable, InwardModules, LogitsSpec, MlpModules, MlpSpec, RouterScores, RouterSpec,
};

/// Relative to the layer, because the shared expert is beside the block of the others.
const NAMES: ExpertNames = ExpertNames {
    router: "block_sparse_moe.router.layer",
    stacked: "block_sparse_moe.switch_mlp",
    each: "block_sparse_moe.experts",
    fused: &[FusedNames {
        gate_up: "block_sparse_moe.input_linear.weight",
        down: "block_sparse_moe.output_linear.weight",
        form: FusedForm::Rows,
        order: FusedOrder::Halves,
    }],
    shared: "shared_mlp",
    shared_projections: SharedProjections::Stacked(["input_linear", "output_linear"]),
    ..ExpertNames::QWEN
};

pub(super) fn read(value: &Value) -> Result<Description, SpecError> {
    let value = &with_base_of_parameters(value);
    let config: Config = parse(value)?;
    let sizes = config.decoder.sizes()?;
    setting("norm", config.normalization_function.as_deref(), &["rmsnorm"])?;
    if config.layer_types.len() != sizes.num_layers {
        let expected = counted(sizes.num_layers, "type");
        return Err(bad_value("layer_types", config.layer_types.len(), expected));
    }
    let gqa = gqa(&config, sizes)?;
    let has_spaces = config.layer_types.iter().any(|kind| kind == "mamba");
    let space = has_spaces.then(|| space(value, &config)).transpose()?;
    let mixer = |prefix: &str, kind: &str| match (kind, &space) {
        ("attention", _) => {
            Ok(attention(&format!("{prefix}.self_attn"), sizes.hidden, gqa.clone()))
        }
        ("mamba", Some(space)) => Ok(space.at(&format!("{prefix}.mamba"), sizes.hidden)),
        _ => Err(SpecError::Setting {
            what: "layer type",
            found: kind.to_owned(),
            supported: &["mamba", "attention"],
        }),
    };
    let block = feed_forward(&config, sizes)?;
    let residual_factor = factor("residual_multiplier", config.residual_multiplier)?;
    let layers = config.layer_types.iter().enumerate().map(|(layer_idx, kind)| {
        let prefix = format!("model.layers.{layer_idx}");
        let mixer: MixerBlock = mixer(&prefix, kind)?;
        let block = block(&prefix);
        let layer = LayerBuilder::pre_norm(prefix, sizes.hidden);
        Ok(LayerBuilder { residual_factor, ..layer }.build(mixer, block))
    });
    let layers = layers.collect::<Result<_, SpecError>>()?;
    let scale = 1.0 / factor("logits_scaling", config.logits_scaling)?;
    let plain = config.decoder.with_layers(sizes, layers);
    let is_own = plain.head_table == HeadTable::Own;
    // Originals have other names for the dense block.
    let is_dense = config.num_local_experts.is_none_or(|number| number == 0);
    let names = if is_dense { TensorNames::GRANITE_DENSE } else { TensorNames::PLAIN };
    Ok(Description {
        names,
        embedding_scale: Some(factor("embedding_multiplier", config.embedding_multiplier)?),
        logits: LogitsSpec { scale, soft_cap: None },
        head_table: if is_own { HeadTable::Own } else { HeadTable::Tied },
        ..plain
    })
}

/// Returns what gives each layer its feed-forward block.
fn feed_forward(config: &Config, sizes: Sizes) -> Result<impl Fn(&str) -> Block, SpecError> {
    let inner = dimension("intermediate_size", config.intermediate_size)?;
    let dense = MlpSpec { has_bias: config.mlp_bias, ..MlpSpec::plain(inner) };
    let sparse = match config.num_local_experts {
        None | Some(0) => None,
        Some(number) => {
            let per_token = config.num_experts_per_tok.unwrap_or(0);
            let counts = ExpertCounts::new("num_local_experts", number, per_token)?;
            let field = "shared_intermediate_size";
            let shared = config.shared_intermediate_size;
            let shared =
                shared.ok_or_else(|| bad_value(field, or_absent(None::<u32>), "a number"))?;
            let scores = RouterScores::SoftmaxOfChosen;
            let router = RouterSpec { scores, ..RouterSpec::SOFTMAX };
            let shared_inner = Some(dimension(field, shared)?);
            Some(ExpertSizes { shared_inner, ..ExpertSizes::plain(counts, inner, router) })
        }
    };
    Ok(move |prefix: &str| match sparse {
        Some(sparse) => experts(prefix, sizes.hidden, &NAMES, sparse),
        None => dense_at(&format!("{prefix}.mlp"), sizes.hidden, &dense),
    })
}

/// Returns a dense block, whose gate and what it multiplies originals have in one tensor.
fn dense_at(module: &str, hidden: usize, spec: &MlpSpec) -> Block {
    let at = |name: &str| format!("{module}.{name}");
    let (apart, stacked) = (["gate_proj", "up_proj"].map(at), at("input_linear"));
    let inward = InwardModules::Either { apart, stacked };
    let modules = MlpModules { inward, ..MlpModules::gated_at(module) };
    dense(hidden, MlpSpec { modules, ..spec.clone() })
}
