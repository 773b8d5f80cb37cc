"""Writes names, types and shapes of the tensors that mlx-lm gives mixtures of experts to tensors.json.

Run by `cargo xtask golden`, which brings the pinned versions. Each configuration is instantiated by
mlx-lm, once as it is in f32 and once quantised as `mlx_lm.convert` does with 4 bits in groups of 64.
No value is stored: `U32 256x16` is a tensor's type and shape.
"""

import copy
import importlib
import json
import sys
from pathlib import Path

import mlx.core as mx

mx.set_default_device(mx.cpu)

from mlx.utils import tree_flatten  # noqa: E402
from mlx_lm.utils import MODEL_REMAPPING, quantize_model  # noqa: E402

TYPES = {mx.float32: "F32", mx.uint32: "U32", mx.uint8: "U8"}

BASE = dict(
    vocab_size=512,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    max_position_embeddings=2048,
    tie_word_embeddings=False,
)
EXPERTS = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=192)
LOCAL = dict(num_local_experts=8, num_experts_per_tok=2)
ROUTED = dict(
    moe_intermediate_size=192,
    n_routed_experts=8,
    n_shared_experts=2,
    num_experts_per_tok=2,
    first_k_dense_replace=1,
    norm_topk_prob=True,
    routed_scaling_factor=2.5,
    head_dim=32,
)

CONFIGS = [
    dict(
        BASE,
        **EXPERTS,
        model_type="qwen3_moe",
        head_dim=64,
        decoder_sparse_step=1,
        mlp_only_layers=[0],
        norm_topk_prob=True,
    ),
    dict(
        BASE,
        **EXPERTS,
        model_type="qwen3_moe",
        head_dim=32,
        decoder_sparse_step=2,
        mlp_only_layers=[],
        norm_topk_prob=True,
    ),
    dict(BASE, **EXPERTS, model_type="qwen2_moe", shared_expert_intermediate_size=320),
    dict(BASE, **LOCAL, model_type="mixtral"),
    dict(BASE, model_type="olmoe", num_experts=8, num_experts_per_tok=2, num_key_value_heads=4),
    dict(
        BASE,
        **LOCAL,
        model_type="minimax_m2",
        head_dim=64,
        rotary_dim=32,
        shared_intermediate_size=0,
        use_qk_norm=True,
    ),
    dict(BASE, **ROUTED, model_type="dots1"),
]


def tensors(model):
    flat = tree_flatten(model.parameters())
    return {k: f"{TYPES[v.dtype]} {'x'.join(map(str, v.shape))}" for k, v in sorted(flat)}


def cases(config):
    name = MODEL_REMAPPING.get(config["model_type"], config["model_type"])
    module = importlib.import_module(f"mlx_lm.models.{name}")
    model = module.Model(module.ModelArgs.from_dict(copy.deepcopy(config)))
    yield dict(config=config, tensors=tensors(model))
    model, quantised = quantize_model(model, copy.deepcopy(config), 64, 4)
    yield dict(config=quantised, tensors=tensors(model))


def main():
    lines = [json.dumps(case) for config in CONFIGS for case in cases(config)]
    text = '{"cases": [\n' + ",\n".join(lines) + "\n]}\n"
    Path(sys.argv[1]).write_text(text)


main()
