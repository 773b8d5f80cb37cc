"""AFM with experts: windows with a rotation, gates of attention, norms around each block."""

from . import BASE, affine, plain

SIZES = dict(
    model_type="afmoe",
    num_hidden_layers=4,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=24,
    moe_intermediate_size=96,
    num_experts=10,
    num_experts_per_tok=3,
    num_shared_experts=2,
    num_dense_layers=1,
    sliding_window=11,
    layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
)
WIDE = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=32, moe_intermediate_size=64)


def config(**more):
    return dict(BASE, **SIZES) | dict(tie_word_embeddings=False) | more


def q4(path):
    return affine(8 if "router.gate" in path else 4, 64)


def cases():
    yield "afmoe-f32", config(), "F32", plain
    groups = dict(num_experts=12, n_group=4, topk_group=2, num_shared_experts=1)
    yield "afmoe-q4-f32", config(**WIDE, **groups), "F32", q4
    other = dict(score_func="softmax", route_norm=False, mup_enabled=False, num_shared_experts=0)
    yield "afmoe-softmax-f32", config(**other, tie_word_embeddings=True), "F32", plain
    # A token passes all experts, because rounding to 16 bits would change choices.
    yield "afmoe-bf16", config(num_experts_per_tok=10), "BF16", plain
