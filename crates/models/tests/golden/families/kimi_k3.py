"""Kimi K3: bounded decays, gates of latent attention, latent experts, residuals over blocks of layers."""

from . import BASE, affine, plain

SIZES = dict(
    num_hidden_layers=5,
    num_attention_heads=5,
    num_key_value_heads=5,
    q_lora_rank=48,
    kv_lora_rank=88,
    qk_nope_head_dim=24,
    qk_rope_head_dim=12,
    v_head_dim=40,
    mla_use_output_gate=True,
    num_experts=12,
    num_experts_per_token=3,
    num_shared_experts=2,
    moe_intermediate_size=96,
    first_k_dense_replace=1,
    routed_scaling_factor=2.5,
    routed_expert_hidden_size=72,
    latent_moe_use_norm=True,
    activation_situ_beta=2.0,
    activation_situ_linear_beta=3.0,
    attn_res_block_size=2,
)

WIDE = dict(
    num_attention_heads=6,
    num_key_value_heads=6,
    q_lora_rank=64,
    kv_lora_rank=128,
    qk_nope_head_dim=64,
    qk_rope_head_dim=32,
    v_head_dim=32,
    moe_intermediate_size=128,
    routed_expert_hidden_size=64,
)


def linear(layers, heads, head_dim, width, **more):
    own = dict(gate_lower_bound=-5.0, use_full_rank_gate=True) | more
    return dict(kda_layers=layers, num_heads=heads, head_dim=head_dim, short_conv_kernel_size=width) | own


def config(**more):
    text = dict(BASE, **SIZES) | dict(model_type="kimi_linear", hidden_act="situ", tie_word_embeddings=False)
    return dict(model_type="kimi_k3", text_config=text | more)


def q4(path):
    if path.endswith("res_proj"):
        return None
    return affine(8 if path.endswith("mlp.gate") else 4, 64)


def cases():
    small = linear([1, 2, 4], 3, 24, 4)
    yield "kimi_k3-f32", config(linear_attn_config=small), "F32", plain
    # Blocks of three layers of which the last is not whole, groups of experts, gates of low rank.
    wide = linear([1, 3, 4], 4, 64, 3, use_full_rank_gate=False, gate_lower_bound=-2.5)
    groups = dict(num_expert_group=4, topk_group=2, attn_res_block_size=3)
    yield "kimi_k3-q4-f32", config(**WIDE, linear_attn_config=wide, **groups), "F32", q4
    # A token passes all experts, because rounding to 16 bits would change choices.
    settled = dict(num_experts_per_token=12, num_hidden_layers=2, linear_attn_config=linear([1], 4, 64, 4))
    settled |= dict(attn_res_block_size=1)
    yield "kimi_k3-q4-bf16", config(**WIDE, **settled), "BF16", q4
    # Without what K3 added.
    old = linear([2], 5, 16, 2, gate_lower_bound=None, use_full_rank_gate=False)
    without = dict(
        attn_res_block_size=None,
        routed_expert_hidden_size=None,
        latent_moe_use_norm=False,
        mla_use_output_gate=False,
        activation_situ_linear_beta=None,
        q_lora_rank=None,
        num_shared_experts=0,
        moe_renormalize=False,
        num_hidden_layers=3,
    )
    yield "kimi_k3-plain-f32", config(linear_attn_config=old, **without), "F32", plain
