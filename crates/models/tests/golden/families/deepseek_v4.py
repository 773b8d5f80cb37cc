"""DeepSeek V4: streams, attention to a window beside pools of positions, experts that tokens name."""

from . import BASE, MXFP4, MXFP8, affine, plain, q4, without

# Sizes that have few divisors in common. Pools of 8 positions stand for those of 128.
SIZES = dict(
    num_hidden_layers=5,
    num_attention_heads=10,
    num_key_value_heads=1,
    head_dim=40,
    qk_rope_head_dim=12,
    q_lora_rank=72,
    o_groups=5,
    o_lora_rank=24,
    moe_intermediate_size=104,
    n_routed_experts=12,
    n_shared_experts=2,
    num_experts_per_tok=3,
    routed_scaling_factor=1.7,
    norm_topk_prob=True,
    scoring_func="sqrtsoftplus",
    topk_method="noaux_tc",
    num_hash_layers=2,
    swiglu_limit=0.7,
    compress_ratios=[0, 4, 8, 4, 8],
    compress_rope_theta=16000.0,
    rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=32, beta_slow=1),
    sliding_window=9,
    index_n_heads=3,
    index_head_dim=20,
    index_topk=4,
    hc_mult=3,
    hc_eps=1e-5,
    hc_sinkhorn_iters=6,
    tie_word_embeddings=False,
)

# Rows and columns of all matrices are whole groups of a quantisation.
WIDE = dict(
    num_attention_heads=6,
    head_dim=64,
    qk_rope_head_dim=32,
    q_lora_rank=64,
    o_groups=3,
    o_lora_rank=64,
    moe_intermediate_size=128,
    index_head_dim=64,
    hc_mult=4,
    hc_eps=1e-6,
    hc_sinkhorn_iters=20,
)


def config(**more):
    return without(BASE, "intermediate_size") | dict(model_type="deepseek_v4") | SIZES | more


def as_published(path):
    """As mlx-vlm quantises it."""
    if ".ffn.switch_mlp." in path:
        return MXFP4
    is_float = ".ffn.shared_experts." in path or ".attn.w" in path or ".attn.indexer.wq" in path
    return MXFP8 if is_float else affine(8, 64)


# Rounding to 16 bits chooses others of the experts and pools.
SETTLED = dict(num_experts_per_tok=12, index_topk=16)


def cases():
    yield "deepseek_v4-f32", config(), "F32", plain
    one = dict(num_hash_layers=0, n_shared_experts=1, rope_scaling=None, swiglu_limit=10.0)
    yield "deepseek_v4-noratio4-f32", config(compress_ratios=[0, 8, 16, 8, 0], **one), "F32", plain
    yield "deepseek_v4-q4-f32", config(**WIDE), "F32", q4
    yield "deepseek_v4-mixed-f32", config(**WIDE), "F32", as_published
    yield "deepseek_v4-mixed-bf16", config(**WIDE | SETTLED), "BF16", as_published
    yield "deepseek_v4-original-f32", config(hc_mult=2, o_groups=2, index_topk=3), "F32", plain
