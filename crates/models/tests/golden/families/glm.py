from . import BASE, affine, everything, plain


def glm(**more):
    base = dict(BASE, model_type="glm", num_attention_heads=6, num_key_value_heads=2, head_dim=24)
    return base | dict(intermediate_size=160, attention_bias=True, tie_word_embeddings=False) | more


def cases():
    yield "glm-f32", glm(), "F32", plain
    tied = glm(head_dim=32, attention_bias=False, tie_word_embeddings=True)
    yield "glm-q4-bf16", tied, "BF16", everything(affine(4, 32))
    yield "glm-q4-f32", glm(head_dim=32), "F32", everything(affine(4, 32))
