from . import BASE, affine, everything, plain, without


def qwen(**more):
    base = without(BASE, "rms_norm_eps", "num_key_value_heads", "rope_theta")
    names = dict(model_type="qwen", layer_norm_epsilon=1e-6, kv_channels=32, no_bias=True)
    return base | names | dict(intermediate_size=384) | more


def cases():
    yield "qwen-f32", qwen(), "F32", plain
    yield "qwen-biases-f32", qwen(no_bias=False), "F32", plain
    yield "qwen-biases-q4-f32", qwen(no_bias=False), "F32", everything(affine(4, 64))
    yield "qwen-q4-bf16", qwen(), "BF16", everything(affine(4, 64))
    yield "qwen-q4-f32", qwen(), "F32", everything(affine(4, 32))
