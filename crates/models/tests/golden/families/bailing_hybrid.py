"""Ling 2.5 and Ring-linear: lightning attention, then latent or grouped-query attention; experts."""

from . import BASE, affine, plain

SHARED = dict(
    num_hidden_layers=4,
    layer_group_size=3,
    moe_intermediate_size=64,
    num_experts=12,
    num_shared_experts=2,
    norm_topk_prob=True,
    num_experts_per_tok=3,
    first_k_dense_replace=1,
    routed_scaling_factor=2.5,
    tie_word_embeddings=False,
)

LATENT = dict(kv_lora_rank=88, qk_nope_head_dim=24, qk_rope_head_dim=12, v_head_dim=40)
WIDE = dict(kv_lora_rank=128, qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=32, q_lora_rank=64)


def hybrid(**more):
    own = dict(
        model_type="bailing_hybrid",
        num_attention_heads=6,
        num_key_value_heads=6,
        head_dim=24,
        group_norm_size=3,
        n_group=4,
        topk_group=2,
    )
    return dict(BASE, **SHARED) | own | LATENT | more


def newest(**more):
    own = dict(
        architectures=["BailingMoeV3ForCausalLM"],
        moe_shared_expert_intermediate_size=48,
        short_conv_kernel_size=3,
        kda_lower_bound=-4.0,
        q_lora_rank=40,
        head_dim=24,
    )
    return hybrid(num_hidden_layers=5) | own | more


def q4_newest(path):
    kept = ("_proj_with_mqa", "q_a_proj", "q_b_proj", "b_proj", "embed_q", "unembed_out", "lm_head", "embeddings")
    return None if path.endswith(kept) else affine(4, 64)


def linear(**more):
    own = dict(
        model_type="bailing_moe_linear",
        num_attention_heads=4,
        num_key_value_heads=2,
        group_norm_size=2,
        partial_rotary_factor=0.5,
        use_qk_norm=True,
    )
    return dict(BASE, **SHARED) | own | more


def q4(path):
    if path.endswith(("embed_q", "unembed_out")):
        return None
    return affine(8 if path.endswith("mlp.gate.gate_proj") else 4, 64)


def cases():
    yield "bailing_hybrid-f32", hybrid(), "F32", plain
    # Heads that are no power of two, all of them in one norm.
    uneven = dict(num_attention_heads=5, num_key_value_heads=5, group_norm_size=1, use_qkv_bias=True)
    plain_rope = dict(rope_interleave=False, use_qk_norm=False, moe_shared_expert_intermediate_size=96)
    yield "bailing_hybrid-uneven-f32", hybrid(**uneven, **plain_rope), "F32", plain
    wide = dict(head_dim=64, num_attention_heads=4, num_key_value_heads=4, group_norm_size=4)
    yield "bailing_hybrid-q4-f32", hybrid(**WIDE, **wide), "F32", q4
    # A token passes all experts, because rounding to 16 bits would change choices.
    settled = dict(num_experts_per_tok=12, n_group=1, topk_group=1)
    yield "bailing_hybrid-bf16", hybrid(**settled), "BF16", plain
    yield "bailing_hybrid-v3-f32", newest(), "F32", plain
    wide = dict(head_dim=64, num_attention_heads=4, layer_group_size=2, q_lora_rank=None)
    wide |= dict(moe_shared_expert_intermediate_size=64, num_key_value_heads=4)
    yield "bailing_hybrid-v3-q4-f32", newest(**WIDE | wide), "F32", q4_newest
    yield "bailing_hybrid-v3-bf16", newest(num_hidden_layers=3, **settled), "BF16", plain
    yield "bailing_moe_linear-f32", linear(), "F32", plain
    sigmoid = dict(score_function="sigmoid", moe_router_enable_expert_bias=True, n_group=4, topk_group=2)
    yield "bailing_moe_linear-sigmoid-q4-f32", linear(rope_traditional=True, **sigmoid), "F32", q4
