//! Names in a `config.json` that this version's ranks load. The coordinator, which does not link
//! MLX, refuses other checkpoints by the same lists before anything is fetched or started.

/// The values of `model_type` that load.
pub const ARCHITECTURES: &[&str] = &["llama", "mistral", "qwen2", "qwen3"];

/// The values of `quantization_config.quant_method` that load: MLX lays their tensors out alike.
pub const QUANT_METHODS: &[&str] = &["mxfp4", "mxfp8"];
