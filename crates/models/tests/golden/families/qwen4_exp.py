"""Qwen4: streams with gates of low rank, gated delta nets, attention to chosen blocks, tables of n-grams."""

from . import BASE, affine, plain, q4_experts, without

SIZES = dict(
    num_hidden_layers=4,
    layer_types=["linear_attention", "full_attention"] * 2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=24,
    linear_num_key_heads=2,
    linear_num_value_heads=6,
    linear_key_head_dim=20,
    linear_value_head_dim=28,
    linear_conv_kernel_dim=3,
    num_experts=10,
    num_experts_per_tok=3,
    moe_intermediate_size=104,
    shared_expert_intermediate_size=72,
    hc_count=3,
    hc_lowrank=40,
    ple_layer_ids=[1, 3],
    ple_embed_dim=96,
    ple_conv_kernel_size=4,
    ngram_size=3,
    heads_per_ngram=2,
    ngram_vocab_size_base=50,
    make_ngram_vocab_size_divisible_by=12,
    split_ngram_parts=3,
    indexer_n_heads=5,
    indexer_head_dim=20,
    indexer_budget=12,
    indexer_compress_ratio=3,
    # It occurs in the prompt.
    eos_token_id=101,
    rope_parameters=dict(type="default", rope_theta=1e5, partial_rotary_factor=0.5, mrope_section=[2, 2, 2]),
    tie_word_embeddings=False,
)

# Rows and columns of all matrices are whole groups of a quantisation.
WIDE = dict(
    head_dim=64,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=32,
    linear_value_head_dim=64,
    linear_conv_kernel_dim=4,
    moe_intermediate_size=128,
    shared_expert_intermediate_size=64,
    hc_count=4,
    hc_lowrank=64,
    ple_layer_ids=[3],
    ple_embed_dim=128,
    indexer_head_dim=64,
    indexer_budget=16,
    indexer_compress_ratio=4,
    rope_parameters=dict(type="default", rope_theta=1e7, partial_rotary_factor=0.25, mrope_section=[3, 3, 2]),
)


def config(**more):
    base = without(BASE, "num_hidden_layers", "rope_theta", "intermediate_size")
    return dict(model_type="qwen4_exp", text_config=base | dict(model_type="qwen4_exp_text") | SIZES | more)


def tables_in_small_groups(path):
    """As mlx-vlm quantises it: rows of tables may be narrower than a group of 64."""
    return affine(4, 32) if ".ngram_embedding." in path else q4_experts(path)


def cases():
    yield "qwen4_exp-f32", config(), "F32", plain
    stated = dict(
        layer_types=["linear_attention"] * 2 + ["qwen_sparse_attention"] * 2,
        ple_layer_ids=[2],
        ngram_size=2,
        heads_per_ngram=3,
        seed=7,
        ple_conv_kernel_size=3,
        split_ngram_parts=1,
        eos_token_id=[33, 101],
        output_gate_type="silu",
        norm_topk_prob=False,
        hc_count=2,
        indexer_compress_ratio=1,
        indexer_budget=9,
    )
    yield "qwen4_exp-stated-f32", config(**stated), "F32", plain
    yield "qwen4_exp-q4-f32", config(**WIDE), "F32", tables_in_small_groups
    # Rounding to 16 bits chooses others of the experts and blocks; among many, one matters little.
    settled = dict(num_experts_per_tok=10, indexer_budget=60)
    yield "qwen4_exp-q4-bf16", config(**WIDE | settled), "BF16", tables_in_small_groups
    yield "qwen4_exp-original-f32", config(hc_count=2, full_attention_interval=2, layer_types=None), "F32", plain
