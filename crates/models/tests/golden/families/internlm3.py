from . import BASE, affine, everything, plain


def internlm3(**more):
    biases = dict(bias=False, qkv_bias=True)
    scaling = dict(rope_scaling=dict(rope_type="dynamic", factor=6.0))
    return dict(BASE, model_type="internlm3", tie_word_embeddings=False) | biases | scaling | more


def cases():
    yield "internlm3-f32", internlm3(), "F32", plain
    plainer = internlm3(bias=True, qkv_bias=False, num_key_value_heads=1)
    yield "internlm3-q4-bf16", plainer, "BF16", everything(affine(4, 32))
    yield "internlm3-q4-f32", internlm3(), "F32", everything(affine(4, 32))
