from . import BASE, affine, everything, plain, without


def exaone(**more):
    base = without(BASE, "num_hidden_layers", "rms_norm_eps")
    names = dict(model_type="exaone", num_layers=2, layer_norm_epsilon=1e-5)
    return base | names | dict(tie_word_embeddings=False, intermediate_size=192) | more


def cases():
    scaling = dict(
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=32,
    )
    yield "exaone-f32", exaone(rope_scaling=scaling), "F32", plain
    yield "exaone-q4-bf16", exaone(tie_word_embeddings=True), "BF16", everything(affine(4, 32))
    wide = exaone(rope_scaling=scaling, intermediate_size=256)
    yield "exaone-q4-f32", wide, "F32", everything(affine(4, 32))
