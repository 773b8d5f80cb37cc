from . import BASE, affine, plain, routers_in_eight_bits, without


def qwen2_moe(**more):
    return (
        dict(
            without(BASE, "head_dim"),
            model_type="qwen2_moe",
            num_experts=6,
            num_experts_per_tok=3,
            moe_intermediate_size=96,
            shared_expert_intermediate_size=160,
            tie_word_embeddings=False,
        )
        | more
    )


def cases():
    yield "qwen2_moe-f32", qwen2_moe(), "F32", plain
    # Quantisation groups of 32 fit inner dimensions of 96 and 160.
    yield "qwen2_moe-q4-f32", qwen2_moe(), "F32", routers_in_eight_bits(affine(4, 32))
