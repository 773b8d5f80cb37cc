from . import BASE, affine, everything, plain, without


def cohere(**more):
    base = without(BASE, "rms_norm_eps") | dict(model_type="cohere", layer_norm_eps=1e-5)
    norms = dict(layer_norm_bias=False, use_qk_norm=False, attention_bias=False)
    return base | norms | dict(logit_scale=0.125, num_attention_heads=8) | more


def cases():
    yield "cohere-f32", cohere(), "F32", plain
    normed = cohere(use_qk_norm=True, layer_norm_bias=True, attention_bias=True)
    yield "cohere-norms-f32", normed | dict(num_key_value_heads=4), "F32", plain
    few = cohere(num_attention_heads=4, use_qk_norm=True)
    yield "cohere-q4-bf16", few, "BF16", everything(affine(4, 32))
    yield "cohere-q8-f32", few, "F32", everything(affine(8, 64))
