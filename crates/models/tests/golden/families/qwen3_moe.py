from . import BASE, HEAD_DIM, MXFP4, plain, q4_experts, routers_in_eight_bits

EXPERTS = dict(num_experts_per_tok=2, moe_intermediate_size=128, head_dim=HEAD_DIM)


def qwen3_moe(**more):
    return (
        dict(
            BASE,
            **EXPERTS,
            model_type="qwen3_moe",
            num_hidden_layers=3,
            num_experts=8,
            decoder_sparse_step=1,
            mlp_only_layers=[1],
            norm_topk_prob=True,
            tie_word_embeddings=False,
        )
        | more
    )


def cases():
    yield "qwen3_moe-f32", qwen3_moe(), "F32", plain
    yield "qwen3_moe-bf16", qwen3_moe(norm_topk_prob=False), "BF16", plain
    yield "qwen3_moe-q4-f32", qwen3_moe(), "F32", q4_experts
    yield "qwen3_moe-q4-bf16", qwen3_moe(), "BF16", q4_experts
    yield "qwen3_moe-mxfp4-f32", qwen3_moe(), "F32", routers_in_eight_bits(MXFP4)
    yield "qwen3_moe-per-expert-f32", qwen3_moe(), "F32", plain
