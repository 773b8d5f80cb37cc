from . import BASE, affine, everything, plain


def apertus(**more):
    flags = dict(mlp_bias=False, attention_bias=False, post_norm=False, qk_norm=True)
    return dict(BASE, model_type="apertus", tie_word_embeddings=False, **flags) | more


def cases():
    scaling = dict(
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=32,
    )
    yield "apertus-f32", apertus(rope_scaling=scaling), "F32", plain
    biased = apertus(mlp_bias=True, num_key_value_heads=1)
    yield "apertus-q4-bf16", biased, "BF16", everything(affine(4, 32))
    yield "apertus-q4-f32", apertus(), "F32", everything(affine(4, 32))
