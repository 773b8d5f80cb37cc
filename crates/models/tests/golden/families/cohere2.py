from . import BASE, affine, everything, plain, without


def cohere2(**more):
    return (
        dict(
            without(BASE, "rms_norm_eps"),
            model_type="cohere2",
            num_hidden_layers=4,
            head_dim=32,
            layer_norm_eps=1e-5,
            logit_scale=0.5,
            sliding_window=12,
            sliding_window_pattern=3,
        )
        | more
    )


def cases():
    yield "cohere2-f32", cohere2(), "F32", plain
    yield "cohere2-biases-f32", cohere2(attention_bias=True, layer_norm_bias=True), "F32", plain
    yield "cohere2-q4-bf16", cohere2(), "BF16", everything(affine(4, 64))
    yield "cohere2-q4-f32", cohere2(sliding_window=9), "F32", everything(affine(4, 32))
