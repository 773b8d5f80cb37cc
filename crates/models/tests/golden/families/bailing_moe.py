from . import BASE, affine, plain


def bailing_moe(**more):
    return (
        dict(
            BASE,
            model_type="bailing_moe",
            num_hidden_layers=3,
            moe_intermediate_size=64,
            num_experts=12,
            num_shared_experts=2,
            norm_topk_prob=True,
            num_experts_per_tok=3,
            first_k_dense_replace=1,
            use_qk_norm=True,
            partial_rotary_factor=0.5,
            tie_word_embeddings=False,
        )
        | more
    )


SIGMOID = dict(
    score_function="sigmoid",
    moe_router_enable_expert_bias=True,
    n_group=4,
    topk_group=2,
    routed_scaling_factor=2.5,
    moe_shared_expert_intermediate_size=96,
    num_shared_experts=1,
)


def q4(path):
    return affine(8 if path.endswith("mlp.gate.gate_proj") else 4, 64)


def cases():
    yield "bailing_moe-f32", bailing_moe(), "F32", plain
    yield "bailing_moe-sigmoid-f32", bailing_moe(**SIGMOID, use_qkv_bias=True), "F32", plain
    yield "bailing_moe-q4-f32", bailing_moe(use_qk_norm=False), "F32", q4
    yield "bailing_moe-bf16", bailing_moe(tie_word_embeddings=True), "BF16", plain
