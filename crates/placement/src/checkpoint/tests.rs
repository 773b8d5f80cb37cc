//! Checkpoints of several families, made of headers and zeros, and damaged files.

use jackalope_spec::TensorRole;
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

    fn facts(&self) -> PlacementModel {
        PlacementModel::read(&self.0).unwrap()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// An unquantised Qwen2 with one layer; the biases of q, k and v are cut together with their rows.
#[test]
fn a_checkpoint_is_counted_by_its_description() {
    let config = json!({
        "model_type": "qwen2", "hidden_size": 64, "num_hidden_layers": 1, "vocab_size": 96,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128,
        "max_position_embeddings": 4096, "tie_word_embeddings": false, "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
    });
    let tensors: &[(&str, &[usize], &str)] = &[
        ("lm_head.weight", &[96, 64], "BF16"),
        ("model.embed_tokens.weight", &[96, 64], "BF16"),
        ("model.layers.0.input_layernorm.weight", &[64], "BF16"),
        ("model.layers.0.mlp.down_proj.weight", &[64, 128], "BF16"),
        ("model.layers.0.mlp.gate_proj.weight", &[128, 64], "BF16"),
        ("model.layers.0.mlp.up_proj.weight", &[128, 64], "BF16"),
        ("model.layers.0.post_attention_layernorm.weight", &[64], "BF16"),
        ("model.layers.0.self_attn.k_proj.bias", &[32], "BF16"),
        ("model.layers.0.self_attn.k_proj.weight", &[32, 64], "BF16"),
        ("model.layers.0.self_attn.o_proj.weight", &[64, 64], "BF16"),
        ("model.layers.0.self_attn.q_proj.bias", &[64], "BF16"),
        ("model.layers.0.self_attn.q_proj.weight", &[64, 64], "BF16"),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", &[8], "F32"),
        ("model.layers.0.self_attn.v_proj.bias", &[32], "BF16"),
        ("model.layers.0.self_attn.v_proj.weight", &[32, 64], "BF16"),
        ("model.norm.weight", &[64], "BF16"),
    ];
    let model = Dir::new("dense").write(&config, tensors).facts();
    assert!(!model.layout.is_tied);
    assert_eq!((model.element_bytes(), model.quantization), (2, None));
    assert_eq!((model.queries_size, model.inner_size), (64, 128));
    assert_eq!(model.bytes_of(TensorRole::Embedding), 96 * 64 * 2);
    let biases = 64 + 2 * 32;
    assert_eq!(model.bytes_of(TensorRole::Mixer), (2 * 64 * 64 + 2 * 32 * 64 + biases) * 2);
    assert_eq!(model.bytes_of(TensorRole::Mlp), 3 * 128 * 64 * 2);
    assert_eq!(model.replicated_bytes(), 3 * 64 * 2, "three norms");
    assert_eq!(model.kv_bytes_per_token(), 2 * 2 * 16 * 2);
    let without = Dir::new("incomplete").write(&config, &tensors[1..]);
    let err = PlacementModel::read(&without.0).unwrap_err().to_string();
    assert!(err.contains("lm_head.weight [96, 64] is missing"), "{err}");
}

#[test]
fn damaged_files_are_named() {
    let dir = Dir::new("damaged").write(&json!({"model_type": "llama"}), &[("a", &[64], "F32")]);
    let weights = dir.0.join("model.safetensors");
    let whole = std::fs::read(&weights).unwrap();
    let message = || PlacementModel::read(&dir.0).unwrap_err().to_string();
    for len in [whole.len() - 1, 20, 4, 0] {
        std::fs::write(&weights, &whole[..len]).unwrap();
        assert!(message().contains("model.safetensors: "), "{}", message());
    }
    std::fs::write(&weights, [0xff; 64]).unwrap();
    assert!(message().contains("a header of 18446744073709551615 bytes"), "{}", message());
    std::fs::remove_file(&weights).unwrap();
    assert!(message().contains("no model*.safetensors\nhint:"), "{}", message());
    std::fs::write(&weights, whole).unwrap();
    std::fs::write(dir.0.join("config.json"), "{}").unwrap();
    assert!(message().contains("config.json: missing field `model_type`"), "{}", message());
}
