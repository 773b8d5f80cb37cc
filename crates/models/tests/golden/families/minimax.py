from . import BASE, plain, q4_experts


def minimax(**more):
    return (
        dict(
            BASE,
            model_type="minimax",
            intermediate_size=96,
            shared_intermediate_size=0,
            num_local_experts=12,
            num_experts_per_tok=3,
            head_dim=48,
            rotary_dim=24,
            scoring_func="sigmoid",
            tie_word_embeddings=False,
        )
        | more
    )


def cases():
    yield "minimax-f32", minimax(), "F32", plain
    yield "minimax-q4-f32", minimax(intermediate_size=128, head_dim=64), "F32", q4_experts
    # One key-value head, which several ranks hold: its squares count once.
    yield "minimax-m2-bf16", minimax(model_type="minimax_m2", num_key_value_heads=1), "BF16", plain
    yield "minimax-m2-f32", minimax(model_type="minimax_m2", rotary_dim=48), "F32", plain
    wide = minimax(model_type="minimax_m2", intermediate_size=128, head_dim=64)
    yield "minimax-m2-q4-f32", wide, "F32", q4_experts
    yield "minimax-per-expert-f32", minimax(use_qk_norm=False), "F32", plain
