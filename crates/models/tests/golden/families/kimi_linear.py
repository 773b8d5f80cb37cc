"""Kimi Linear: Kimi delta attention, latent attention without rotation, experts."""

from . import BASE, plain, q4_experts

SIZES = dict(
    num_hidden_layers=3,
    num_attention_heads=5,
    num_key_value_heads=5,
    head_dim=24,
    kv_lora_rank=88,
    qk_nope_head_dim=24,
    qk_rope_head_dim=12,
    v_head_dim=40,
    mla_use_nope=True,
    model_max_length=2048,
    num_experts=12,
    num_experts_per_token=3,
    num_shared_experts=2,
    moe_intermediate_size=128,
    first_k_dense_replace=1,
    routed_scaling_factor=2.5,
)

WIDE = dict(
    num_attention_heads=6,
    num_key_value_heads=6,
    kv_lora_rank=128,
    qk_nope_head_dim=64,
    qk_rope_head_dim=32,
    v_head_dim=32,
)


def linear(layers, heads, head_dim, width):
    return dict(
        kda_layers=layers,
        full_attn_layers=[],
        num_heads=heads,
        head_dim=head_dim,
        short_conv_kernel_size=width,
    )


def config(**more):
    return dict(BASE, **SIZES) | dict(model_type="kimi_linear", tie_word_embeddings=False) | more


def cases():
    small = linear([1, 3], 5, 24, 4)
    yield "kimi_linear-f32", config(linear_attn_config=small), "F32", plain
    wide = linear([1, 2], 4, 64, 3)
    groups = dict(num_expert_group=4, topk_group=2)
    yield "kimi_linear-q4-f32", config(**WIDE, linear_attn_config=wide, **groups), "F32", q4_experts
    # A token passes all experts, because rounding to 16 bits would change choices.
    settled = dict(num_experts_per_token=12, num_hidden_layers=2, linear_attn_config=linear([1], 4, 64, 4))
    yield "kimi_linear-q4-bf16", config(**WIDE, **settled), "BF16", q4_experts
    scores = dict(moe_router_activation_func="softmax", moe_renormalize=False, num_shared_experts=0)
    yield "kimi_linear-softmax-f32", config(linear_attn_config=small, **scores), "F32", plain
