"""What mlx-vlm's DeepSeek V4.1 does and mlx-lm's does not: it rounds the input of every product to 8 bits, and
multiplies what experts read for their last product by their weights. It routes tokens that stand for images by
another bias, which no text needs. mlx-lm lacks tables of n-grams, so mlx-vlm is the reference of models that have
them, without these three."""

import importlib

import mlx.core as mx

# A list of numbers of tokens beside the checkpoint.
TOKEN_MAP = "engram_token_map.json"


def files(config, vocab):
    """The files beside a checkpoint, by name."""
    if not config.get("engram_layer_ids"):
        return {}
    last = config["engram_compressed_vocab_size"] - 1
    return {TOKEN_MAP: [min(token // 2, last) for token in range(vocab)]}


def repair(language):
    """Computes as mlx-lm does."""
    attention, rounded = language.DeepseekV41Attention, language.fake_quant_fp8_ue8m0
    if hasattr(attention, "own_window_part"):
        return
    engram = importlib.import_module("mlx_vlm.models.deepseek_v41.engram")
    as_it_is = engram.fake_quant_fp8_ue8m0 = language.fake_quant_fp8_ue8m0 = lambda x: x
    attention.own_window_part = attention._window_part

    def window_part(self, x, start_pos, cache):
        # What it rounds second are keys.
        steps = iter((as_it_is, rounded))
        language.fake_quant_fp8_ue8m0 = lambda x: next(steps)(x)
        part = self.own_window_part(x, start_pos, cache)
        language.fake_quant_fp8_ue8m0 = as_it_is
        return part

    attention._window_part = window_part
    language.DeepseekV41MoE.__call__ = experts


def experts(self, x, image_mask=None):
    chosen, weights = self.gate(x)
    routed = self.switch_mlp(x, chosen, mx.ones_like(weights)).astype(mx.float32)
    routed = (routed * weights[..., None]).sum(-2)
    return (routed + self.shared_experts(x).astype(mx.float32)).astype(x.dtype)


def sanitized(loaded, config, weights):
    """The tensors of a conversion, from those of a conversion or an original."""
    language = importlib.import_module("mlx_vlm.models.deepseek_v41.language")
    unused = ("mtp.", "vision.")
    renamed = {
        "embed_tokens." + name.removeprefix("embed.") if name.startswith("embed.") else name: value
        for name, value in weights.items()
        if not name.startswith(unused)
    }
    for layer_idx in range(config["num_hidden_layers"]):
        path = f"layers.{layer_idx}.ffn"
        renamed = language.sanitize_moe_weights(renamed, path, config["n_routed_experts"])
        groups = f"layers.{layer_idx}.attn.wo_a.weight"
        shape = config["o_groups"], config["o_lora_rank"], -1
        renamed[groups] = renamed[groups].reshape(shape) if renamed[groups].ndim == 2 else renamed[groups]
    return renamed
