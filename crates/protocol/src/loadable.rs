//! Names in a `config.json` that this version's ranks can load. The coordinator, which does not
//! link MLX, refuses other checkpoints by the same lists before anything is downloaded or started.

/// Supported values of `model_type`.
pub const ARCHITECTURES: &[&str] = &["llama", "mistral", "qwen2", "qwen3"];

/// Supported values of `quantization_config.quant_method`, whose tensors have the layout that MLX
/// uses.
pub const QUANT_METHODS: &[&str] = &["mxfp4", "mxfp8"];
