from . import BASE, affine, everything, plain

WINDOWS = ["sliding_attention", "full_attention"] * 2


def mistral(**more):
    return (
        dict(
            BASE,
            model_type="mistral",
            num_hidden_layers=4,
            head_dim=64,
            sliding_window=16,
            layer_types=WINDOWS,
            tie_word_embeddings=False,
        )
        | more
    )


def cases():
    yield "mistral-f32", mistral(), "F32", plain
    yield "mistral-bf16", mistral(), "BF16", plain
    yield "mistral-q4-f32", mistral(), "F32", everything(affine(4, 64))
