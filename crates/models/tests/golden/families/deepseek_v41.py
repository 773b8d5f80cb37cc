"""DeepSeek V4.1: DeepSeek V4 with pools and choices that later layers share, rounded keys, weights of streams
that blocks pass on, and tables of n-grams."""

from . import BASE, MXFP4, MXFP8, affine, plain, q4, without

# Sizes that have few divisors in common. The prompt has more pools than are chosen, and more blocks.
SIZES = dict(
    rms_norm_eps=1e-20,
    num_hidden_layers=5,
    num_attention_heads=10,
    num_key_value_heads=1,
    head_dim=32,
    qk_rope_head_dim=12,
    q_lora_rank=72,
    o_groups=5,
    o_lora_rank=24,
    moe_intermediate_size=104,
    n_routed_experts=12,
    num_experts_per_tok=3,
    # With other factors some element may be so near the middle between two values that it is rounded to that
    # an order of additions decides.
    routed_scaling_factor=2.09,
    norm_topk_prob=True,
    scoring_func="sqrtsoftplus",
    swiglu_limit=0.7,
    sliding_window=9,
    compress_ratios=[0, 2, 2, 1, 1],
    compress_rope_theta=16000.0,
    rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=32, beta_slow=1),
    kv_source_layer_ids=[1, 3],
    index_source_layer_ids=[1, 3, 4],
    candidate_source_layer_id=3,
    candidate_topk_blocks=4,
    candidate_block_size=3,
    index_n_heads=5,
    index_head_dim=32,
    index_topk=8,
    hc_mult=3,
    hc_eps=1e-5,
    hc_sinkhorn_iters=6,
    engram_layer_ids=[1, 3],
    engram_num_embeddings=[242, 312],
    engram_max_ngram_size=3,
    engram_vocab_size=50,
    engram_n_heads=2,
    engram_head_dim=24,
    engram_pad_token_id=4,
    engram_compressed_vocab_size=100,
    # It occurs in the prompt.
    image_token_id=101,
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
    engram_head_dim=64,
    routed_scaling_factor=1.86,
)

# mlx-lm computes these.
WITHOUT_TABLES = dict(engram_layer_ids=[], engram_num_embeddings=[])


def config(**more):
    return without(BASE, "intermediate_size") | dict(model_type="deepseek_v41") | SIZES | more


def experts_in_mxfp4(path):
    return MXFP4 if ".switch_mlp." in path else q4(path)


def as_published(path):
    """Experts in 4 bits, what else is of floats in 8."""
    if ".switch_mlp." in path:
        return MXFP4
    is_float = ".attn.w" in path or ".shared_experts." in path or ".engram." in path or ".indexer.wq" in path
    return MXFP8 if is_float else affine(8, 64)


# Rounding to 16 bits chooses others of the experts and pools.
SETTLED = dict(num_experts_per_tok=12, index_topk=40, candidate_topk_blocks=14)


def cases():
    yield "deepseek_v41-f32", config(), "F32", plain
    later = dict(
        qk_rope_head_dim=16,
        routed_scaling_factor=1.58,
        compress_ratios=[0, 4, 1, 1, 1],
        kv_source_layer_ids=[1, 2],
        index_source_layer_ids=[1, 2, 3],
        engram_layer_ids=[0, 4],
        engram_max_ngram_size=4,
        engram_num_embeddings=[440, 611],
        engram_vocab_size=60,
        rope_scaling=None,
        swiglu_limit=10.0,
        candidate_source_layer_id=-1,
    )
    yield "deepseek_v41-later-f32", config(**later), "F32", plain
    yield "deepseek_v41-untabled-f32", config(**WITHOUT_TABLES, routed_scaling_factor=1.51), "F32", plain
    yield "deepseek_v41-q4-f32", config(**WIDE), "F32", experts_in_mxfp4
    yield "deepseek_v41-mixed-f32", config(**WIDE | dict(routed_scaling_factor=1.7)), "F32", as_published
    yield "deepseek_v41-untabled-q4-f32", config(**WIDE | WITHOUT_TABLES | dict(routed_scaling_factor=1.7)), "F32", experts_in_mxfp4
    yield "deepseek_v41-mixed-bf16", config(**WIDE | SETTLED), "BF16", as_published
    yield "deepseek_v41-original-f32", config(hc_mult=2, o_groups=2, qk_rope_head_dim=16, routed_scaling_factor=1.75), "F32", plain
