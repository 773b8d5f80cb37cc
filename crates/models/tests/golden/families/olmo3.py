from . import BASE, affine, everything, plain

YARN = dict(
    rope_type="yarn",
    factor=8.0,
    attention_factor=1.2079441541679836,
    original_max_position_embeddings=16,
    beta_fast=32.0,
    beta_slow=1.0,
)


def olmo3(**more):
    return (
        dict(
            BASE,
            model_type="olmo3",
            num_hidden_layers=4,
            num_attention_heads=6,
            num_key_value_heads=3,
            head_dim=24,
            sliding_window=13,
            rope_scaling=YARN,
            tie_word_embeddings=False,
        )
        | more
    )


def cases():
    yield "olmo3-f32", olmo3(), "F32", plain
    types = ["full_attention", "sliding_attention"] * 2
    yield "olmo3-listed-bf16", olmo3(layer_types=types, attention_bias=True), "BF16", plain
    one = olmo3(num_attention_heads=4, num_key_value_heads=1, head_dim=32)
    yield "olmo3-q4-f32", one, "F32", everything(affine(4, 64))
