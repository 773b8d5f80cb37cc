from . import BASE, affine, everything, plain, without


def stablelm(**more):
    base = without(BASE, "rms_norm_eps") | dict(model_type="stablelm", layer_norm_eps=1e-5)
    blocks = dict(use_qkv_bias=True, use_parallel_residual=False, qk_layernorm=False)
    return base | blocks | dict(partial_rotary_factor=0.25, num_attention_heads=8) | more


def cases():
    yield "stablelm-f32", stablelm(), "F32", plain
    parallel = stablelm(use_parallel_residual=True, qk_layernorm=True, use_qkv_bias=False)
    yield "stablelm-parallel-f32", parallel | dict(num_key_value_heads=4), "F32", plain
    few = parallel | dict(num_attention_heads=4)
    yield "stablelm-q4-bf16", few, "BF16", everything(affine(4, 32))
    serial = stablelm(num_attention_heads=4)
    yield "stablelm-q4-f32", serial, "F32", everything(affine(4, 32))
