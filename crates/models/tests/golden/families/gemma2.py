from . import BASE, affine, everything, plain, without


def gemma2(**more):
    base = without(BASE, "rope_theta") | dict(model_type="gemma2", query_pre_attn_scalar=24)
    return base | dict(head_dim=48, attn_logit_softcapping=5.0, final_logit_softcapping=1.0) | more


def cases():
    yield "gemma2-f32", gemma2(num_key_value_heads=4), "F32", plain
    yield "gemma2-q4-bf16", gemma2(head_dim=32), "BF16", everything(affine(4, 32))
    default = without(gemma2(head_dim=64), "attn_logit_softcapping", "final_logit_softcapping")
    yield "gemma2-q8-f32", default, "F32", everything(affine(8, 64))
