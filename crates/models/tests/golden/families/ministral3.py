from . import BASE, affine, everything, plain, without

PARAMETERS = dict(
    rope_theta=1e6,
    type="yarn",
    rope_type="yarn",
    factor=16.0,
    beta_fast=32.0,
    beta_slow=1.0,
    mscale=1.0,
    mscale_all_dim=1.0,
    llama_4_scaling_beta=0.1,
    original_max_position_embeddings=16,
)


def ministral3(**more):
    return (
        dict(
            without(BASE, "rope_theta"),
            model_type="ministral3",
            num_attention_heads=6,
            num_key_value_heads=3,
            head_dim=32,
            rope_parameters=PARAMETERS,
            tie_word_embeddings=False,
        )
        | more
    )


def cases():
    yield "ministral3-f32", ministral3(), "F32", plain
    windows = ministral3(
        num_hidden_layers=4,
        layer_types=["sliding_attention", "full_attention"] * 2,
        sliding_window=9,
        tie_word_embeddings=True,
    )
    yield "ministral3-windows-f32", windows, "F32", plain
    yield "ministral3-q4-f32", ministral3(), "F32", everything(affine(4, 64))
    yield "ministral3-bf16", ministral3(), "BF16", plain
