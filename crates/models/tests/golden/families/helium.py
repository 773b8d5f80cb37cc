from . import BASE, affine, everything, plain


def helium(**more):
    biases = dict(attention_bias=False, mlp_bias=False)
    return dict(BASE, model_type="helium", head_dim=32, tie_word_embeddings=False, **biases) | more


def cases():
    yield "helium-f32", helium(), "F32", plain
    yield "helium-stray-f32", helium(head_dim=64), "F32", plain
    yield "helium-q4-bf16", helium(mlp_bias=True), "BF16", everything(affine(4, 64))
    yield "helium-q4-f32", helium(attention_bias=True), "F32", everything(affine(4, 64))
