from . import BASE, affine, everything, plain, q4, without

LONGROPE = dict(
    type="longrope",
    short_factor=[1.0 + 0.05 * i for i in range(12)],
    long_factor=[1.0 + 0.3 * i for i in range(12)],
)


def phi3(**more):
    return dict(BASE, model_type="phi3", intermediate_size=224, tie_word_embeddings=False) | more


def cases():
    long = dict(max_position_embeddings=256, original_max_position_embeddings=32)
    part = dict(partial_rotary_factor=0.75, rope_scaling=LONGROPE, tie_word_embeddings=True)
    yield "phi3-f32", phi3(), "F32", plain
    yield "phi3-longrope-f32", phi3(**long, **part), "F32", plain
    su = LONGROPE | dict(type="su", long_factor=[1.0 + 0.2 * i for i in range(16)])
    alone = without(phi3(rope_scaling=su), "num_key_value_heads", "rope_theta")
    yield "phi3-su-f32", alone, "F32", plain
    few = phi3(num_attention_heads=2, num_key_value_heads=1, intermediate_size=192)
    yield "phi3-q4-g64-bf16", few, "BF16", q4
    yield "phi3-q8-f32", few, "F32", everything(affine(8, 32))
