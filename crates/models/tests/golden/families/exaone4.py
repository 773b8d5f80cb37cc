from . import BASE, affine, everything, plain


def exaone4(**more):
    return (
        dict(
            BASE,
            model_type="exaone4",
            num_hidden_layers=4,
            num_attention_heads=6,
            num_key_value_heads=2,
            head_dim=32,
            rope_scaling=dict(
                rope_type="llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=32,
            ),
            sliding_window=11,
            sliding_window_pattern="LLG",
            tie_word_embeddings=False,
        )
        | more
    )


def cases():
    yield "exaone4-f32", exaone4(), "F32", plain
    everywhere = exaone4(sliding_window=None, sliding_window_pattern=None, rope_scaling=None)
    yield "exaone4-full-bf16", everywhere | dict(tie_word_embeddings=True), "BF16", plain
    yield "exaone4-q4-f32", exaone4(), "F32", everything(affine(4, 64))
