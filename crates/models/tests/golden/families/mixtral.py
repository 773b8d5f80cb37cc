from . import BASE, plain, q4_experts


def mixtral(**more):
    return (
        dict(
            BASE,
            model_type="mixtral",
            num_local_experts=8,
            num_experts_per_tok=2,
            tie_word_embeddings=False,
        )
        | more
    )


def cases():
    yield "mixtral-f32", mixtral(), "F32", plain
    yield "mixtral-q4-f32", mixtral(), "F32", q4_experts
    yield "mixtral-per-expert-q4-f32", mixtral(), "F32", q4_experts
