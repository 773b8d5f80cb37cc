"""GLM-5 Next: streams with hyper-connections, Kimi delta attention, latent attention to chosen pools."""

from . import BASE, plain, q4_experts, without

SIZES = dict(
    num_hidden_layers=5,
    num_attention_heads=5,
    num_key_value_heads=5,
    q_lora_rank=72,
    kv_lora_rank=88,
    qk_nope_head_dim=24,
    qk_rope_head_dim=0,
    v_head_dim=40,
    n_routed_experts=12,
    num_experts_per_tok=3,
    n_shared_experts=2,
    moe_intermediate_size=104,
    routed_scaling_factor=1.7,
    norm_topk_prob=True,
    scoring_func="sigmoid",
    topk_method="noaux_tc",
    n_group=1,
    topk_group=1,
    first_k_dense_replace=2,
    swiglu_limit=0.7,
    layer_types=["linear_attention", "full_attention", "linear_attention"] + ["deepseek_sparse_attention"] * 2,
    indexer_types=["shared", "full", "full", "shared", "full"],
    index_topk=12,
    index_kpool=3,
    index_head_dim=20,
    index_n_heads=7,
    linear_head_dim=24,
    linear_num_heads=3,
    linear_conv_kernel_dim=3,
    linear_lower_bound=-3.5,
    hc_mult=3,
    hc_eps=1e-5,
    hc_sinkhorn_iters=6,
)

# Rows and columns of all matrices are whole groups of a quantisation.
WIDE = dict(
    num_attention_heads=6,
    num_key_value_heads=6,
    q_lora_rank=64,
    kv_lora_rank=128,
    qk_nope_head_dim=64,
    v_head_dim=32,
    moe_intermediate_size=128,
    index_topk=8,
    index_kpool=4,
    index_head_dim=64,
    linear_head_dim=64,
    linear_num_heads=5,
    hc_mult=4,
    hc_eps=1e-6,
    hc_sinkhorn_iters=20,
)


def config(**more):
    base = without(BASE, "num_hidden_layers", "rope_theta")
    return dict(model_type="glm5_next", text_config=base | SIZES | dict(tie_word_embeddings=False) | more)


def cases():
    yield "glm5_next-f32", config(), "F32", plain
    experts = dict(mlp_layer_types=["sparse", "dense", "sparse", "sparse", "dense"], index_kpool=1)
    stated = dict(num_heads=4, head_dim=20, short_conv_kernel_size=2, gate_lower_bound=-2.0)
    yield "glm5_next-stated-f32", config(linear_attn_config=stated, attention_bias=True, **experts), "F32", plain
    yield "glm5_next-q4-f32", config(**WIDE), "F32", q4_experts
    # Rounding to 16 bits chooses others of the experts and pools; among many, one matters little.
    settled = dict(num_experts_per_tok=12, index_topk=36)
    yield "glm5_next-q4-bf16", config(**WIDE | settled), "BF16", q4_experts
    yield "glm5_next-original-f32", config(hc_mult=2, index_topk=9), "F32", plain
