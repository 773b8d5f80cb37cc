//! Checkpoints as the makers of the models publish them: what `sanitize` of mlx-lm 0.32.2 makes
//! conversions from. A family that is added with experts needs a row here.

use std::collections::BTreeSet;

use jackalope_families::model_spec;
use jackalope_protocol::split::Shares;
use jackalope_spec::{ElementType, NumberEdit, TensorHeader, TensorHeaders, UnusedPart};

use crate::checkpoints::{Sample, sample, samples};

/// How originals store the experts of a layer.
#[derive(Clone, Copy)]
enum Stored {
    /// A tensor for each expert, with these names of gate, up and down.
    Each([&'static str; 3]),
    /// One tensor of gate and up, and one of down: `[experts, rows, input]`.
    Rows([&'static str; 2]),
    /// The same, `[experts, input, rows]`.
    Columns([&'static str; 2]),
}

const EACH: Stored = Stored::Each(["gate_proj", "up_proj", "down_proj"]);
const NUMBERED: Stored = Stored::Each(["w1", "w3", "w2"]);
const FUSED: [&str; 2] = ["experts.gate_up_proj", "experts.down_proj"];

/// What each family's originals have.
const EXPERTS: &[(&str, Stored)] = &[
    ("qwen3_moe", EACH),
    ("qwen2_moe", EACH),
    ("mixtral", NUMBERED),
    ("olmoe", EACH),
    ("glm4_moe", EACH),
    ("solar_open", EACH),
    ("dots1", EACH),
    ("ernie4_5_moe", EACH),
    // In MXFP4, gate and up row by row; transposed, column by column, without quantisation, which
    // mlx-lm does not read. Both have tests of their own.
    ("gpt_oss", EACH),
    ("granitemoe", Stored::Rows(["input_linear.weight", "output_linear.weight"])),
    ("granitemoehybrid", Stored::Rows(["input_linear.weight", "output_linear.weight"])),
    ("nemotron_h", EACH),
    ("hunyuan", EACH),
    ("bailing_moe", EACH),
    ("bailing_hybrid", EACH),
    ("bailing_moe_linear", EACH),
    ("llama4", Stored::Columns(FUSED)),
    // Published in FP8 only, which is refused by its name.
    ("minimax", NUMBERED),
    ("minimax_m2", NUMBERED),
    ("minimax_m3", NUMBERED),
    ("minimax_m3_vl", NUMBERED),
    ("qwen3_next", EACH),
    ("qwen3_5_moe", Stored::Rows(FUSED)),
    ("qwen4_exp", Stored::Rows(FUSED)),
    ("deepseek_v2", EACH),
    ("deepseek_v3", EACH),
    ("deepseek_v32", EACH),
    ("glm_moe_dsa", EACH),
    ("glm5_next", EACH),
    ("deepseek_v4", NUMBERED),
    ("deepseek_v41", NUMBERED),
    ("longcat_flash", EACH),
    // Its blocks of experts have another name; see the test of names.
    ("kimi_linear", NUMBERED),
    // Published with packed experts; conversions join the projections of its delta attention.
    ("kimi_k3", NUMBERED),
    ("kimi_k2", EACH),
    ("kimi_k25", EACH),
    ("kimi_vl", EACH),
    ("glm4_moe_lite", EACH),
    ("mistral3", Stored::Rows(FUSED)),
    ("mistral4", Stored::Rows(FUSED)),
    ("qwen3_vl_moe", Stored::Columns(FUSED)),
    ("qwen3_omni_moe", EACH),
    ("phimoe", NUMBERED),
    ("lfm2_moe", NUMBERED),
    ("glm4v_moe", EACH),
    ("mimo_v2_flash", EACH),
    ("mimo_v2", EACH),
    ("exaone_moe", EACH),
    ("afmoe", EACH),
    ("laguna", EACH),
    // Published stacked under other names; golden values show that they are found.
    ("step3p5", EACH),
    ("step3p7", EACH),
    ("gemma4_text", Stored::Rows(FUSED)),
    ("gemma4_unified", Stored::Rows(FUSED)),
];

/// Names of the projections in conversions: gate, up and down are 0, 1 and 2.
const PROJECTIONS: [(usize, &str); 5] =
    [(0, "gate_proj"), (1, "up_proj"), (2, "down_proj"), (1, "fc1"), (2, "fc2")];

/// Returns the tensors with experts as in an original.
fn original(headers: &TensorHeaders, stored: Stored) -> TensorHeaders {
    let mut found = TensorHeaders::new();
    for (name, header) in headers {
        let stacked = PROJECTIONS.into_iter().find_map(|(idx, projection)| {
            let ends = [".switch_mlp.", ".experts.switch_glu.", ".experts."];
            let place = ends.iter().find_map(|end| name.find(&format!("{end}{projection}.")))?;
            Some((idx, &name[..place], name.rsplit_once('.')?.1))
        });
        let Some((idx, block, kind)) = stacked else {
            found.insert(name.clone(), header.clone());
            continue;
        };
        let own = &header.shape[1..];
        let with = |shape: Vec<usize>| TensorHeader { shape, ..header.clone() };
        let fused = |names: [&str; 2]| format!("{block}.{}", names[idx / 2]);
        let rows = if idx == 2 { own[0] } else { 2 * own[0] };
        match stored {
            Stored::Each(names) => found.extend((0..header.shape[0]).map(|expert| {
                let name = format!("{block}.experts.{expert}.{}.{kind}", names[idx]);
                (name, with(own.to_vec()))
            })),
            Stored::Rows(names) => {
                drop(found.insert(fused(names), with(vec![header.shape[0], rows, own[1]])));
            }
            Stored::Columns(names) => {
                drop(found.insert(fused(names), with(vec![header.shape[0], own[1], rows])));
            }
        }
    }
    found
}

fn family(sample: &Sample) -> &str {
    sample.config["model_type"].as_str().unwrap()
}

/// Whether a sample is a conversion whose experts may be in the form that originals have: a fused
/// tensor is never quantised.
fn is_convertible(sample: &Sample, stored: Stored) -> bool {
    let is_quantized = sample.headers.keys().any(|name| name.ends_with(".scales"));
    let is_conversion = sample.headers.keys().any(|name| {
        PROJECTIONS.iter().any(|(_, projection)| {
            name.ends_with(&format!("switch_mlp.{projection}.weight"))
                || name.ends_with(&format!("experts.{projection}.weight"))
                || name.ends_with(&format!("switch_glu.{projection}.weight"))
        })
    });
    is_conversion && (!is_quantized || matches!(stored, Stored::Each(_)))
}

#[test]
fn every_family_with_experts_loads_as_its_makers_publish_it() {
    let mut checked: BTreeSet<String> = BTreeSet::new();
    for mut sample in samples() {
        let spec = model_spec(&sample.config).unwrap();
        if spec.layers.iter().all(|layer| layer.experts().is_none()) {
            continue;
        }
        let row = EXPERTS.iter().find(|(name, _)| *name == family(&sample));
        let (name, stored) = row.unwrap_or_else(|| panic!("no row for {}", family(&sample)));
        if !is_convertible(&sample, *stored) {
            continue;
        }
        let expected = sample.layout().tensor_shards(&Shares::new(vec![3, 1]).unwrap());
        sample.headers = original(&sample.headers, *stored);
        let found = sample.layout().tensor_shards(&Shares::new(vec![3, 1]).unwrap());
        assert_eq!(found, expected, "{}", sample.name);
        checked.insert((*name).to_owned());
    }
    let rows: BTreeSet<String> = EXPERTS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(checked, rows, "a row without a sample");
}

#[test]
fn tensors_of_one_stack_have_one_type() {
    let is_stacked = |sample: &Sample| matches!(family(sample), "qwen3_moe" | "stablelm");
    let mut num_refused = 0;
    for mut sample in samples().into_iter().filter(is_stacked) {
        sample.headers = original(&sample.headers, EACH);
        let second =
            |name: &&String| name.contains("experts.1.up_proj.") || name.contains("norms.1.");
        let names: Vec<String> = sample.headers.keys().filter(second).cloned().collect();
        let spec = model_spec(&sample.config).unwrap();
        for name in names {
            let mut headers = sample.headers.clone();
            let header = headers.get_mut(&name).expect("it was just listed");
            if !header.element_type.is_float() {
                continue;
            }
            let is_f16 = header.element_type == ElementType::F16;
            header.element_type = if is_f16 { ElementType::F32 } else { ElementType::F16 };
            let refusal = spec.layout(&headers).expect_err("the types differ").to_string();
            assert!(refusal.contains(&name) && refusal.contains("same stack"), "{refusal}");
            num_refused += 1;
        }
    }
    assert!(8 < num_refused, "{num_refused} tensors");
}

#[test]
fn language_models_beside_others_are_found_under_the_names_of_transformers() {
    let mut checked = 0;
    for mut sample in samples() {
        if !sample.headers.keys().any(|name| name.starts_with("language_model.model.")) {
            continue;
        }
        let expected = sample.layout();
        let renamed = sample.headers.iter().map(|(name, header)| {
            let name = name.replacen("language_model.model.", "model.language_model.", 1);
            (name.replacen("language_model.lm_head.", "lm_head.", 1), header.clone())
        });
        sample.headers = renamed.collect();
        assert_eq!(sample.layout(), expected, "{}", sample.name);
        checked += 1;
    }
    assert!(10 < checked, "{checked} samples");
}

#[test]
fn kimi_linear_is_found_under_the_names_of_its_makers() {
    let mut sample = sample("kimi_linear-f32");
    let expected = sample.layout().tensor_shards(&Shares::even(1));
    let names = [
        (".mlp.e_score", ".block_sparse_moe.gate.e_score"),
        (".mlp.gate.", ".block_sparse_moe.gate."),
        (".mlp.experts.", ".block_sparse_moe.experts."),
        (".mlp.shared_experts.", ".block_sparse_moe.shared_experts."),
        (".q_conv.conv.", ".q_conv1d."),
        (".k_conv.conv.", ".k_conv1d."),
        (".v_conv.conv.", ".v_conv1d."),
    ];
    let headers = original(&sample.headers, NUMBERED);
    let renamed = headers.into_iter().map(|(name, mut header)| {
        let pair = names.iter().find(|(ours, _)| name.contains(ours));
        if name.contains("_conv.") {
            header.shape.swap(1, 2);
        }
        (pair.map_or(name.clone(), |(ours, theirs)| name.replace(ours, theirs)), header)
    });
    sample.headers = renamed.collect();
    assert!(sample.headers.keys().any(|name| name.contains("block_sparse_moe.experts.3.w2")));
    assert_eq!(sample.layout().tensor_shards(&Shares::even(1)), expected);
}

#[test]
fn norms_are_shifted_in_originals_only() {
    let norms = |name: &str| {
        let sample = sample(name);
        let layout = sample.layout();
        let spec = model_spec(&sample.config).unwrap();
        let names = spec.tensors(true).map(|it| it.name.clone());
        names.filter(|name| layout.edit(name) == Some(&NumberEdit::AddOne)).collect::<Vec<_>>()
    };
    assert_eq!(norms("qwen3_5-f32"), [""; 0]);
    let found = norms("qwen3_5-original-f32");
    assert!(found.contains(&"model.norm.weight".to_owned()), "{found:?}");
    assert!(found.contains(&"model.layers.1.self_attn.q_norm.weight".to_owned()), "{found:?}");
    assert!(!found.contains(&"model.layers.0.linear_attn.norm.weight".to_owned()), "{found:?}");
    assert_eq!(found.len(), 1 + 2 * 2 + 2, "{found:?}");
    // Step's originals show by their names.
    assert_eq!(norms("step3p5-f32"), [""; 0]);
    let found = norms("step3p5-original-f32");
    assert!(found.contains(&"model.layers.3.self_attn.k_norm.weight".to_owned()), "{found:?}");
    assert_eq!(found.len(), 1 + 4 * 4, "{found:?}");
}

#[test]
fn tensors_that_are_not_used_are_counted_by_part() {
    let mut sample = sample("qwen3_5-original-f32");
    let header = |element_type, shape| TensorHeader { element_type, shape };
    sample.headers.insert("mtp.fc.weight".to_owned(), header(ElementType::Bf16, vec![3, 2]));
    let spec = model_spec(&sample.config).unwrap();
    let unused = spec.unused_tensors(&sample.headers);
    let found: Vec<String> =
        unused.iter().map(|it| it.describe(|bytes| format!("{bytes} B"))).collect();
    let expected = [
        "1 tensor of image encoders (32 B) is not used",
        "2 tensors of multi-token prediction (44 B) are not used",
    ];
    assert_eq!(found, expected);
    let sample = self::sample("deepseek_v3-f32");
    let spec = model_spec(&sample.config).unwrap();
    assert_eq!(spec.unused_part("model.layers.3.enorm.weight"), Some(UnusedPart::Prediction));
    assert_eq!(spec.unused_part("model.layers.2.input_layernorm.weight"), None);
}

/// Before anything but the index is known.
#[test]
fn names_alone_show_what_is_missing_or_unexpected() {
    for sample in samples() {
        let spec = model_spec(&sample.config).unwrap();
        let report = spec.check_names(sample.headers.keys().map(String::as_str));
        assert_eq!(report.problems, [], "{}", sample.name);
    }
    let sample = sample("qwen3_moe-f32");
    let spec = model_spec(&sample.config).unwrap();
    let names = sample.headers.keys().map(|name| name.replace(".switch_mlp.", ".mixture."));
    let names: Vec<String> = names.collect();
    let report = spec.check_names(names.iter().map(String::as_str)).to_string();
    assert!(report.contains("switch_mlp.gate_proj.weight"), "{report}");
}
