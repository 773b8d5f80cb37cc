from . import BASE, affine, plain, q4_experts, routers_in_eight_bits

SIZES = dict(
    num_attention_heads=6,
    num_key_value_heads=3,
    head_dim=24,
    num_hidden_layers=3,
    n_routed_experts=10,
    n_shared_experts=1,
    num_experts_per_tok=3,
    moe_intermediate_size=96,
    first_k_dense_replace=1,
    norm_topk_prob=True,
    routed_scaling_factor=1.8,
    n_group=1,
    topk_group=1,
    rope_scaling=None,
    use_qk_norm=True,
    attention_bias=True,
    tie_word_embeddings=False,
    partial_rotary_factor=0.75,
)


def glm4_moe(**more):
    return dict(BASE, model_type="glm4_moe") | SIZES | more


def cases():
    yield "glm4_moe-f32", glm4_moe(), "F32", plain
    groups = dict(n_group=5, topk_group=2, use_qk_norm=False, attention_bias=False)
    yield "glm4_moe-groups-f32", glm4_moe(partial_rotary_factor=0.5, **groups), "F32", plain
    quantised = glm4_moe(head_dim=32, moe_intermediate_size=128, num_attention_heads=4)
    quantised |= dict(num_key_value_heads=1, partial_rotary_factor=0.25)
    yield "glm4_moe-q4-bf16", quantised, "BF16", q4_experts
    yield "glm4_moe-q6-f32", quantised, "F32", routers_in_eight_bits(affine(6, 32))
