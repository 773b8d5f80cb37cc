"""Laguna: other numbers of heads and other rotations in windows, gates of heads, capped routers."""

from . import BASE, affine, plain

YARN = dict(rope_type="yarn", rope_theta=500000.0, factor=8.0, original_max_position_embeddings=16)
SIZES = dict(
    model_type="laguna",
    num_hidden_layers=4,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=24,
    sliding_window=10,
    layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    num_attention_heads_per_layer=[6, 8, 8, 6],
    rope_parameters=dict(
        full_attention=YARN | dict(beta_fast=64.0, beta_slow=1.0, partial_rotary_factor=0.5),
        sliding_attention=dict(rope_type="default", rope_theta=20000.0),
    ),
    num_experts=10,
    num_experts_per_tok=3,
    moe_intermediate_size=96,
    shared_expert_intermediate_size=80,
    moe_routed_scaling_factor=2.5,
    moe_router_logit_softcapping=3.0,
)
DENSE_FIRST = dict(mlp_layer_types=["dense", "sparse", "sparse", "sparse"])
WIDE = dict(num_attention_heads=4, head_dim=32, moe_intermediate_size=64, shared_expert_intermediate_size=128)


def config(**more):
    return dict(BASE, **SIZES) | dict(tie_word_embeddings=False) | more


def q4(path):
    return affine(8 if path.endswith("mlp.gate.proj") else 4, 64)


def cases():
    yield "laguna-f32", config(**DENSE_FIRST), "F32", plain
    wide = dict(num_attention_heads_per_layer=[4, 8, 8, 4], moe_router_score_func="sqrtsoftplus")
    yield "laguna-q4-f32", config(**WIDE, **wide, **DENSE_FIRST), "F32", q4
    bare = dict(gating=False, qkv_bias=True, attention_bias=True, moe_router_logit_softcapping=0.0)
    sparse = dict(mlp_layer_types=["sparse", "dense", "sparse", "sparse"], partial_rotary_factor=0.5)
    yield "laguna-biases-f32", config(**bare, **sparse, tie_word_embeddings=True), "F32", plain
    # A token passes all experts, because rounding to 16 bits would change choices.
    yield "laguna-bf16", config(**DENSE_FIRST, num_experts_per_tok=10), "BF16", plain
