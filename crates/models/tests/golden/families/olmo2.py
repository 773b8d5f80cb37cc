from . import BASE, affine, everything, plain


def olmo2(**more):
    heads = dict(num_attention_heads=6, num_key_value_heads=3, head_dim=24)
    return dict(BASE, model_type="olmo2", tie_word_embeddings=False) | heads | more


def cases():
    yield "olmo2-f32", olmo2(), "F32", plain
    yield "olmo2-biases-f32", olmo2(attention_bias=True, mlp_bias=True), "F32", plain
    yield "olmo2-q4-bf16", olmo2(head_dim=32), "BF16", everything(affine(4, 32))
    biased = olmo2(head_dim=32, attention_bias=True, mlp_bias=True)
    yield "olmo2-q4-f32", biased, "F32", everything(affine(4, 32))
