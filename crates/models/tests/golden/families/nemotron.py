from . import BASE, affine, everything, plain, without


def nemotron(**more):
    base = without(BASE, "rms_norm_eps") | dict(model_type="nemotron", norm_eps=1e-5)
    rotation = dict(partial_rotary_factor=0.5, hidden_act="relu2")
    return base | rotation | dict(head_dim=48, tie_word_embeddings=False) | more


def cases():
    yield "nemotron-f32", nemotron(), "F32", plain
    linear = dict(rope_scaling=dict(type="linear", factor=2.0), attention_bias=True, mlp_bias=True)
    yield "nemotron-biases-f32", nemotron(**linear), "F32", plain
    yield "nemotron-q4-bf16", nemotron(head_dim=32), "BF16", everything(affine(4, 32))
    biased = nemotron(head_dim=32, **linear)
    yield "nemotron-q4-f32", biased, "F32", everything(affine(4, 32))
