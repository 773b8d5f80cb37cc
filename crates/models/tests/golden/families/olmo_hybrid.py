from . import BASE, affine, everything, plain, q4

# Widths that are no multiples of a vector, and three values for a key.
UNEVEN = dict(
    linear_num_key_heads=3,
    linear_num_value_heads=9,
    linear_key_head_dim=24,
    linear_value_head_dim=40,
    linear_conv_kernel_dim=3,
)
EVEN = dict(
    linear_num_key_heads=4,
    linear_num_value_heads=4,
    linear_key_head_dim=32,
    linear_value_head_dim=64,
    linear_conv_kernel_dim=4,
)


def olmo_hybrid(**more):
    return (
        dict(
            BASE,
            **EVEN,
            model_type="olmo_hybrid",
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            linear_allow_neg_eigval=True,
            attention_bias=False,
            tie_word_embeddings=False,
            # Far from that of the stream's norms.
            layer_norm_epsilon=1e-2,
        )
        | more
    )


def cases():
    yield "olmo_hybrid-f32", olmo_hybrid(), "F32", plain
    types = ["full_attention", "linear_attention"]
    few = dict(num_hidden_layers=2, layer_types=types)
    uneven = olmo_hybrid(
        **UNEVEN,
        **few,
        linear_allow_neg_eigval=False,
        attention_bias=True,
        tie_word_embeddings=True,
        rope_parameters=dict(rope_theta=None),
    )
    yield "olmo_hybrid-uneven-f32", uneven, "F32", plain
    yield "olmo_hybrid-q4-f32", olmo_hybrid(), "F32", q4
    based = olmo_hybrid(**few, rope_parameters=dict(rope_theta=5e4, rope_type="default"))
    yield "olmo_hybrid-q8-bf16", based, "BF16", everything(affine(8, 32))
