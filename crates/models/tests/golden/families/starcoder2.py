from . import BASE, affine, everything, plain, without


def starcoder2(**more):
    base = without(BASE, "rms_norm_eps") | dict(model_type="starcoder2", norm_epsilon=1e-5)
    return base | dict(num_key_value_heads=1, tie_word_embeddings=True) | more


def cases():
    yield "starcoder2-f32", starcoder2(num_key_value_heads=2, intermediate_size=192), "F32", plain
    yield "starcoder2-q4-bf16", starcoder2(), "BF16", everything(affine(4, 32))
    untied = starcoder2(tie_word_embeddings=False, intermediate_size=512)
    yield "starcoder2-q3-f32", untied, "F32", everything(affine(3, 64))
