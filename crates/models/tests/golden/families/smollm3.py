from . import BASE, affine, everything, plain


def smollm3(**more):
    return (
        dict(
            BASE,
            model_type="smollm3",
            num_hidden_layers=4,
            num_attention_heads=6,
            num_key_value_heads=2,
            head_dim=32,
            no_rope_layer_interval=2,
            tie_word_embeddings=True,
        )
        | more
    )


def cases():
    yield "smollm3-f32", smollm3(), "F32", plain
    listed = smollm3(no_rope_layers=[0, 1, 1, 0], attention_bias=True, tie_word_embeddings=False)
    yield "smollm3-listed-bf16", listed, "BF16", plain
    yield "smollm3-q4-f32", smollm3(), "F32", everything(affine(4, 64))
