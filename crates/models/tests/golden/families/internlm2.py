from . import BASE, affine, everything, plain


def internlm2(**more):
    base = dict(BASE, model_type="internlm2", num_attention_heads=8, num_key_value_heads=2)
    return base | dict(bias=False, tie_word_embeddings=False, intermediate_size=192) | more


def cases():
    yield "internlm2-f32", internlm2(), "F32", plain
    biased = internlm2(bias=True, num_attention_heads=4, num_key_value_heads=4)
    yield "internlm2-biases-f32", biased, "F32", plain
    linear = internlm2(rope_scaling=dict(type="linear", factor=2.0), num_key_value_heads=1)
    yield "internlm2-q4-bf16", linear, "BF16", everything(affine(4, 32))
    yield "internlm2-q8-f32", internlm2(num_attention_heads=4), "F32", everything(affine(8, 64))
