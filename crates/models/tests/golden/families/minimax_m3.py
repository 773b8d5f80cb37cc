"""MiniMax M3: attention to blocks of positions that an indexer chooses for each key-value head."""

from . import BASE, plain, q4_experts, without

SIZES = dict(
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=24,
    intermediate_size=96,
    dense_intermediate_size=160,
    shared_intermediate_size=80,
    num_local_experts=10,
    num_experts_per_tok=3,
    hidden_act="swigluoai",
    swiglu_limit=1.5,
    routed_scaling_factor=1.7,
    moe_layer_freq=[0, 1, 1, 1],
    tie_word_embeddings=False,
)
# As MiniMax publishes it.
CHOICE = dict(
    use_sparse_attention=True,
    sparse_num_index_heads=4,
    sparse_index_dim=20,
    sparse_block_size=4,
    sparse_topk_blocks=3,
    sparse_local_block=1,
    sparse_score_type="max",
    sparse_init_block=0,
    sparse_attention_freq=[0, 1, 1, 1],
)
# Rows and columns of all matrices are whole groups of a quantisation.
WIDE = dict(
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    intermediate_size=64,
    dense_intermediate_size=128,
    shared_intermediate_size=64,
)


def config(choice=CHOICE, **more):
    text = without(BASE, "rope_theta") | SIZES | dict(sparse_attention_config=choice) | more
    return dict(model_type="minimax_m3_vl", text_config=text)


def cases():
    yield "minimax_m3-f32", config(), "F32", plain
    # As transformers writes it: one head chooses for all, and no block is chosen without a score.
    flat = dict(
        layer_types=["minimax_m3_sparse", "full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
        mlp_layer_types=["sparse", "dense", "sparse", "dense"],
        index_n_heads=1,
        index_head_dim=40,
        index_block_size=3,
        index_topk_blocks=4,
        index_local_blocks=0,
        rope_parameters=dict(rope_type="default", rope_theta=20000.0, partial_rotary_factor=0.75),
    )
    one = config(None, **flat, tie_word_embeddings=True)
    one["text_config"] = without(one["text_config"], "sparse_attention_config", "moe_layer_freq")
    yield "minimax_m3-one-head-f32", one, "F32", plain
    local = CHOICE | dict(sparse_local_block=2, sparse_block_size=5, sparse_topk_blocks=4)
    bare = dict(use_gemma_norm=False, use_qk_norm=False, rotary_dim=16)
    yield "minimax_m3-per-expert-f32", config(local, **bare), "F32", plain
    text = config()["text_config"] | dict(model_type="minimax_m3", rotary_dim=20)
    yield "minimax_m3-text-f32", text, "F32", plain
    choice = CHOICE | dict(sparse_num_index_heads=2, sparse_index_dim=64)
    yield "minimax_m3-q4-f32", config(choice, **WIDE), "F32", q4_experts
    text = config(choice, **WIDE)["text_config"] | dict(model_type="minimax_m3")
    yield "minimax_m3-text-q4-f32", text, "F32", q4_experts
    # Rounding to 16 bits chooses others of the experts and blocks; among many, one matters little.
    settled = choice | dict(sparse_topk_blocks=12)
    yield "minimax_m3-bf16", config(settled, **WIDE, num_experts_per_tok=10), "BF16", plain
