from . import BASE, plain, q4_experts

# Of 16 pairs; the reference takes the long factors whatever the length.
LONGROPE = dict(
    type="longrope",
    short_factor=[1.0] * 16,
    long_factor=[1.0 + 0.25 * idx for idx in range(16)],
    short_mscale=1.05,
    long_mscale=1.24,
)


def phimoe(**more):
    return (
        dict(
            BASE,
            model_type="phimoe",
            intermediate_size=192,
            num_attention_heads=4,
            num_local_experts=7,
            num_experts_per_tok=2,
            original_max_position_embeddings=512,
            rope_scaling=LONGROPE,
            # Wide enough that several experts are near each other.
            router_jitter_noise=0.2,
            tie_word_embeddings=False,
        )
        | more
    )


def cases():
    yield "phimoe-f32", phimoe(), "F32", plain
    three = phimoe(num_experts_per_tok=3, rope_scaling=None, num_key_value_heads=4)
    yield "phimoe-three-experts-f32", three, "F32", plain
    yield "phimoe-q4-f32", phimoe(), "F32", q4_experts
    # Two experts that are far from each other, so that rounding to bf16 hardly changes their weights.
    few = phimoe(num_local_experts=2, router_jitter_noise=0.01)
    yield "phimoe-per-expert-q4-bf16", few, "BF16", q4_experts
