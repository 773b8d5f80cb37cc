from . import BASE, affine, everything, plain


def glm4(**more):
    base = dict(BASE, model_type="glm4", num_attention_heads=6, num_key_value_heads=2, head_dim=24)
    rotation = dict(partial_rotary_factor=0.5, rope_traditional=True)
    return base | rotation | dict(intermediate_size=160, attention_bias=True) | more


def cases():
    yield "glm4-f32", glm4(), "F32", plain
    halves = glm4(attention_bias=False, rope_traditional=False, partial_rotary_factor=0.75)
    yield "glm4-halves-f32", halves, "F32", plain
    yield "glm4-q4-bf16", glm4(head_dim=32), "BF16", everything(affine(4, 32))
    yield "glm4-q6-f32", glm4(head_dim=32), "F32", everything(affine(6, 32))
