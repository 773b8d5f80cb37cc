from . import BASE, affine, everything, plain


def granite(**more):
    factors = dict(
        logits_scaling=3.0,
        attention_multiplier=0.11,
        embedding_multiplier=1.7,
        residual_multiplier=0.22,
    )
    sizes = dict(num_attention_heads=8, num_key_value_heads=4, intermediate_size=192)
    biases = dict(attention_bias=False, mlp_bias=False, tie_word_embeddings=False)
    return dict(BASE, model_type="granite") | factors | sizes | biases | more


def cases():
    yield "granite-f32", granite(), "F32", plain
    biased = granite(attention_bias=True, mlp_bias=True, tie_word_embeddings=True)
    yield "granite-biases-f32", biased, "F32", plain
    yield "granite-q4-bf16", granite(), "BF16", everything(affine(4, 64))
    yield "granite-q5-f32", granite(residual_multiplier=1.0), "F32", everything(affine(5, 32))
