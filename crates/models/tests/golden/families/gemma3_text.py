from . import BASE, affine, everything, plain


def gemma3_text(**more):
    window = dict(sliding_window=16, sliding_window_pattern=3, num_hidden_layers=4)
    rotation = dict(
        rope_theta=1e6,
        rope_local_base_freq=10000.0,
        rope_scaling=dict(rope_type="linear", factor=8.0),
    )
    base = dict(BASE, model_type="gemma3_text", head_dim=48, query_pre_attn_scalar=24)
    return base | window | rotation | more


def cases():
    yield "gemma3_text-f32", gemma3_text(), "F32", plain
    yield "gemma3_text-q4-bf16", gemma3_text(head_dim=32), "BF16", everything(affine(4, 32))
    full = gemma3_text(sliding_window_pattern=1, rope_scaling=None, num_key_value_heads=1)
    yield "gemma3_text-q8-f32", full | dict(head_dim=64), "F32", everything(affine(8, 64))
