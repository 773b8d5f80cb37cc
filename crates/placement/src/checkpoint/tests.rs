//! Checkpoints of several families, made of headers and zeros, and damaged files.

use serde_json::{Map, json};

use super::*;

/// A directory below the system's temporary one; removed when dropped.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let name = format!("jackalope-plan-{}-{name}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    fn write(self, config: &Value, tensors: &[(&str, &[usize], &str)]) -> Dir {
        std::fs::write(self.0.join("config.json"), config.to_string()).unwrap();
        let (mut header, mut offset) = (Map::new(), 0);
        for (name, shape, dtype) in tensors {
            let element_bytes = if *dtype == "BF16" { 2 } else { 4 };
            let end = offset + shape.iter().product::<usize>() * element_bytes;
            let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [offset, end]});
            header.insert((*name).to_owned(), entry);
            offset = end;
        }
        let header = Value::Object(header).to_string();
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.bytes());
        file.extend(vec![0; offset]);
        std::fs::write(self.0.join("model.safetensors"), file).unwrap();
        self
    }

    fn facts(&self) -> ModelFacts {
        ModelFacts::read(&self.0).unwrap()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// An unquantised Qwen2 with one layer; the biases of q, k and v are cut together with their rows.
#[test]
fn a_dense_model_is_exact() {
    let config = json!({
        "model_type": "qwen2", "hidden_size": 64, "num_hidden_layers": 1, "vocab_size": 96,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128,
        "max_position_embeddings": 4096, "tie_word_embeddings": false,
    });
    let tensors: &[(&str, &[usize], &str)] = &[
        ("lm_head.weight", &[96, 64], "BF16"),
        ("model.embed_tokens.weight", &[96, 64], "BF16"),
        ("model.layers.0.input_layernorm.weight", &[64], "BF16"),
        ("model.layers.0.mlp.down_proj.weight", &[64, 128], "BF16"),
        ("model.layers.0.mlp.gate_proj.weight", &[128, 64], "BF16"),
        ("model.layers.0.mlp.up_proj.weight", &[128, 64], "BF16"),
        ("model.layers.0.self_attn.k_proj.bias", &[32], "BF16"),
        ("model.layers.0.self_attn.k_proj.weight", &[32, 64], "BF16"),
        ("model.layers.0.self_attn.o_proj.bias", &[64], "BF16"),
        ("model.layers.0.self_attn.o_proj.weight", &[64, 64], "BF16"),
        ("model.layers.0.self_attn.q_proj.weight", &[64, 64], "BF16"),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", &[8], "F32"),
        ("model.norm.weight", &[64], "BF16"),
    ];
    let model = Dir::new("dense").write(&config, tensors).facts();
    assert!(model.is_exact && !model.is_tied);
    assert_eq!((model.head_dim, model.element_bytes, model.quantization), (16, 2, None));
    assert_eq!(model.bytes_of(PartKind::Embedding), 96 * 64 * 2);
    assert_eq!(model.bytes_of(PartKind::Attention), (64 * 64 * 2 + 32 * 64 + 32) * 2);
    assert_eq!(model.bytes_of(PartKind::Mlp), 3 * 128 * 64 * 2);
    assert_eq!(model.replicated_bytes(), 3 * 64 * 2, "two norms and the bias of a sum");
    assert_eq!(model.kv_bytes_per_token(), 2 * 2 * 16 * 2);
    let inner = PartCut::Inner { full: 128, unit: 32 };
    assert!(model.parts.iter().any(|part| part.cut == inner));
}

/// Latent attention and routed experts, which no rank computes yet.
#[test]
fn an_unknown_model_is_counted_and_marked_as_an_estimate() {
    let config = json!({
        "model_type": "deepseek_v3", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 96,
        "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 128,
        "kv_lora_rank": 32, "qk_rope_head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 2,
        "quantization": {"bits": 4, "group_size": 32},
    });
    let tensors: &[(&str, &[usize], &str)] = &[
        ("lm_head.weight", &[96, 8], "U32"),
        ("model.embed_tokens.weight", &[96, 8], "U32"),
        ("model.layers.1.mlp.gate.weight", &[8, 64], "BF16"),
        ("model.layers.1.mlp.switch_mlp.up_proj.weight", &[8, 32, 8], "U32"),
        ("model.layers.1.self_attn.kv_a_layernorm.weight", &[32], "BF16"),
        ("model.layers.1.self_attn.kv_a_proj_with_mqa.weight", &[48, 8], "U32"),
        ("model.norm.weight", &[64], "BF16"),
    ];
    let model = Dir::new("experts").write(&config, tensors).facts();
    assert!(!model.is_exact);
    assert_eq!(model.active_experts, 0.25);
    assert_eq!(model.bytes_of(PartKind::Experts), 8 * 32 * 8 * 4);
    assert_eq!(model.kv, KvShape::Whole { bytes_per_token: 2 * 48 * 2 });
    let all: usize = 2 * 96 * 8 * 4 + 8 * 64 * 2 + 8 * 32 * 8 * 4 + 32 * 2 + 48 * 8 * 4 + 64 * 2;
    assert_eq!(model.weights_bytes(), all as u64);
}

#[test]
fn the_text_part_of_a_model_that_sees_is_found() {
    let config = json!({
        "model_type": "sees", "text_config": {
            "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
            "layer_types": ["linear_attention", "linear_attention", "full_attention", "full_attention"],
        },
    });
    let tensors: &[(&str, &[usize], &str)] = &[
        ("language_model.model.layers.3.mlp.strange.weight", &[64, 64], "F32"),
        ("language_model.model.norm.weight", &[64], "F32"),
        ("vision_tower.blocks.0.weight", &[64, 64], "F32"),
    ];
    let model = Dir::new("sees").write(&config, tensors).facts();
    assert!(!model.is_exact);
    assert_eq!((model.num_layers, model.element_bytes), (4, 4));
    assert_eq!(model.kv, KvShape::PerHead { num_layers: 2 });
    assert_eq!(model.context_tokens, CONTEXT_TOKENS_UNKNOWN);
}

#[test]
fn numbers_that_no_model_has_are_not_believed() {
    let huge = u64::MAX;
    let config = json!({
        "model_type": "huge", "hidden_size": huge, "num_hidden_layers": huge, "vocab_size": -1,
        "num_attention_heads": 7, "num_key_value_heads": 3, "head_dim": huge,
        "intermediate_size": huge, "max_position_embeddings": huge,
        "quantization": {"bits": huge, "group_size": 0},
    });
    let tensors: &[(&str, &[usize], &str)] =
        &[("model.layers.99999999999.self_attn.q_proj.weight", &[4, 4], "F32")];
    let model = Dir::new("huge").write(&config, tensors).facts();
    assert_eq!((model.num_layers, model.heads, model.kv_bytes_per_token()), (0, None, 0));
}

#[test]
fn damaged_files_are_named() {
    let dir = Dir::new("damaged").write(&json!({"model_type": "llama"}), &[("a", &[64], "F32")]);
    let weights = dir.0.join("model.safetensors");
    let whole = std::fs::read(&weights).unwrap();
    let told = || ModelFacts::read(&dir.0).unwrap_err().to_string();
    for len in [whole.len() - 1, 20, 4, 0] {
        std::fs::write(&weights, &whole[..len]).unwrap();
        assert!(told().contains("model.safetensors: "), "{}", told());
    }
    std::fs::write(&weights, [0xff; 64]).unwrap();
    assert!(told().contains("a header of 18446744073709551615 bytes"), "{}", told());
    std::fs::remove_file(&weights).unwrap();
    assert!(told().contains("no model*.safetensors\nhint:"), "{}", told());
    std::fs::write(dir.0.join("config.json"), "{}").unwrap();
    assert!(told().ends_with("config.json: no model_type"), "{}", told());
}
