"""EXAONE with experts: windows with a rotation, other layers without one."""

from . import BASE, plain, q4_experts

SIZES = dict(
    model_type="exaone_moe",
    num_hidden_layers=4,
    num_attention_heads=6,
    num_key_value_heads=3,
    head_dim=24,
    moe_intermediate_size=96,
    num_experts=10,
    num_experts_per_tok=3,
    num_shared_experts=2,
    sliding_window=9,
    layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    is_moe_layer=[False, True, True, True],
    routed_scaling_factor=2.5,
)
WIDE = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=32, moe_intermediate_size=64)


def config(**more):
    return dict(BASE, **SIZES) | dict(tie_word_embeddings=False) | more


def cases():
    yield "exaone_moe-f32", config(), "F32", plain
    groups = dict(num_experts=12, n_group=4, topk_group=2)
    yield "exaone_moe-q4-f32", config(**WIDE, **groups), "F32", q4_experts
    # Without windows all layers have a rotation.
    full = dict(layer_types=["full_attention"] * 4, tie_word_embeddings=True, num_shared_experts=0)
    scaled = dict(rope_scaling=dict(rope_type="yarn", factor=2.0, original_max_position_embeddings=32))
    yield "exaone_moe-full-f32", config(**full, **scaled, norm_topk_prob=False), "F32", plain
    # A token passes all experts, because rounding to 16 bits would change choices.
    yield "exaone_moe-bf16", config(num_experts_per_tok=10), "BF16", plain
