"""Latent attention: DeepSeek V2 and V3, Kimi, GLM-4.7 Flash, Mistral 4."""

from . import BASE, MXFP4, plain, q4, q4_experts, routers_in_eight_bits, without

# Sizes whose matrices are quantised in groups of 64; two heads' values are a group.
WIDE = dict(
    num_attention_heads=6,
    num_key_value_heads=6,
    kv_lora_rank=128,
    q_lora_rank=64,
    qk_nope_head_dim=64,
    qk_rope_head_dim=32,
    v_head_dim=32,
)

# Sizes that have few divisors in common.
ODD = dict(
    num_attention_heads=5,
    num_key_value_heads=5,
    kv_lora_rank=88,
    q_lora_rank=72,
    qk_nope_head_dim=24,
    qk_rope_head_dim=12,
    v_head_dim=40,
)

EXPERTS = dict(
    num_hidden_layers=3,
    n_routed_experts=12,
    n_shared_experts=2,
    num_experts_per_tok=3,
    moe_intermediate_size=128,
    first_k_dense_replace=1,
    routed_scaling_factor=2.5,
    tie_word_embeddings=False,
)

YARN = dict(
    type="yarn",
    factor=8.0,
    original_max_position_embeddings=16,
    beta_fast=32,
    beta_slow=1,
    mscale=1.0,
    mscale_all_dim=0.8,
)


def config(model_type, sizes, **more):
    return dict(BASE, **EXPERTS) | dict(sizes, model_type=model_type) | more


def v3(sizes, model_type="deepseek_v3", **more):
    own = dict(
        n_group=4,
        topk_group=2,
        norm_topk_prob=True,
        topk_method="noaux_tc",
        scoring_func="sigmoid",
        rope_scaling=YARN,
    )
    return config(model_type, sizes, **(own | more))


def v2(sizes, **more):
    own = dict(topk_method="group_limited_greedy", n_group=4, topk_group=1, rope_scaling=YARN)
    return config("deepseek_v2", sizes, **(own | more))


def lite(sizes, **more):
    own = dict(n_group=1, topk_group=1, norm_topk_prob=True, rope_theta=1e6)
    return config("glm4_moe_lite", sizes, **(own | more))


def mistral4(sizes, **more):
    growth = dict(YARN, rope_theta=10000.0, llama_4_scaling_beta=0.3)
    own = dict(n_group=4, topk_group=2, norm_topk_prob=True, rope_parameters=growth)
    return without(config("mistral4", sizes, **(own | more)), "rope_theta")


def kimi_k25(sizes, **more):
    text = v3(sizes, model_type="kimi_k2", **dict(n_group=1, topk_group=1) | more)
    return dict(model_type="kimi_k25", text_config=text, num_hidden_layers=3)


def kimi_vl(sizes):
    return dict(kimi_k25(sizes), model_type="kimi_vl")


def mistral3(sizes):
    text = without(mistral4(sizes), "tie_word_embeddings")
    return dict(model_type="mistral3", text_config=text, num_hidden_layers=3)


# A token passes all experts, because rounding to 16 bits would change choices; and fewer layers.
SETTLED = dict(num_hidden_layers=2, n_group=1, topk_group=1, num_experts_per_tok=12)


def cases():
    yield "deepseek_v3-f32", v3(ODD), "F32", plain
    yield "deepseek_v3-q4-f32", v3(WIDE), "F32", q4_experts
    yield "deepseek_v3-sparse-f32", v3(ODD, moe_layer_freq=2, num_experts_per_tok=1), "F32", plain
    yield "deepseek_v3-q4-bf16", v3(WIDE, **SETTLED), "BF16", q4_experts
    yield "deepseek_v3-mxfp4-f32", v3(WIDE), "F32", routers_in_eight_bits(MXFP4)
    direct = dict(q_lora_rank=None, attention_bias=True, n_group=1, topk_group=1)
    yield "deepseek_v3-kv-b-f32", v3(ODD, **direct), "F32", plain
    yield "deepseek_v3-kv-b-q4-f32", v3(WIDE), "F32", q4
    yield "kimi_k2-per-expert-bf16", v3(WIDE, "kimi_k2", **SETTLED), "BF16", plain
    one_group = dict(n_group=1, topk_group=1)
    yield "kimi_k2-f32", v3(ODD, "kimi_k2", **one_group), "F32", plain
    yield "kimi_k2-q4-f32", v3(WIDE, "kimi_k2", **one_group), "F32", q4_experts
    yield "kimi_k25-f32", kimi_k25(ODD), "F32", plain
    yield "kimi_k25-q4-f32", kimi_k25(WIDE), "F32", q4
    yield "kimi_vl-f32", kimi_vl(ODD), "F32", plain
    yield "kimi_vl-q4-f32", kimi_vl(WIDE), "F32", q4
    yield "deepseek_v2-f32", v2(ODD, q_lora_rank=None), "F32", plain
    yield "deepseek_v2-q4-f32", v2(WIDE, topk_method="greedy"), "F32", q4
    yield "deepseek_v2-q4-bf16", v2(WIDE, **SETTLED), "BF16", q4
    yield "glm4_moe_lite-f32", lite(ODD), "F32", plain
    yield "glm4_moe_lite-q4-f32", lite(WIDE), "F32", q4
    yield "glm4_moe_lite-q4-bf16", lite(WIDE, **SETTLED), "BF16", q4
    yield "mistral4-f32", mistral4(ODD, rope_interleave=False), "F32", plain
    yield "mistral4-q4-f32", mistral4(WIDE), "F32", q4
    yield "mistral3-f32", mistral3(ODD), "F32", plain
    yield "mistral3-q4-f32", mistral3(WIDE), "F32", q4
    yield "mistral4-q4-bf16", mistral4(WIDE, **SETTLED), "BF16", q4
