from . import BASE, affine, everything, plain


def ernie4_5(**more):
    sizes = dict(head_dim=24, num_attention_heads=6, num_key_value_heads=3)
    return dict(BASE, model_type="ernie4_5", use_bias=False, tie_word_embeddings=True) | sizes | more


def cases():
    yield "ernie4_5-f32", ernie4_5(), "F32", plain
    yield "ernie4_5-biases-f32", ernie4_5(use_bias=True, tie_word_embeddings=False), "F32", plain
    yield "ernie4_5-q4-bf16", ernie4_5(head_dim=32), "BF16", everything(affine(4, 32))
    biased = ernie4_5(head_dim=32, use_bias=True)
    yield "ernie4_5-q4-f32", biased, "F32", everything(affine(4, 32))
