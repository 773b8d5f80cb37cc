from . import BASE, affine, everything, plain


def gemma(**more):
    heads = dict(head_dim=48, num_attention_heads=4, num_key_value_heads=1)
    return dict(BASE, model_type="gemma", hidden_act="gelu") | heads | more


def cases():
    yield "gemma-f32", gemma(), "F32", plain
    yield "gemma-q4-bf16", gemma(head_dim=64), "BF16", everything(affine(4, 64))
    yield "gemma-q4-f32", gemma(head_dim=32, num_key_value_heads=2), "F32", everything(affine(4, 32))
