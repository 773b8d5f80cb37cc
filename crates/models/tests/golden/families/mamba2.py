from . import affine, everything, plain

BASE = dict(
    model_type="mamba2",
    vocab_size=200,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=3,
    layer_norm_epsilon=1e-5,
    use_conv_bias=True,
    time_step_rank="auto",
    max_position_embeddings=2048,
)
# Widths that are no multiples of a vector, and steps that are limited.
UNEVEN = dict(
    num_heads=6,
    head_dim=40,
    n_groups=3,
    state_size=24,
    conv_kernel=3,
    use_bias=True,
    tie_word_embeddings=False,
    time_step_limit=[0.4, 1.2],
)
EVEN = dict(
    num_heads=8,
    head_dim=32,
    n_groups=1,
    state_size=32,
    conv_kernel=4,
    use_bias=False,
    tie_word_embeddings=True,
    time_step_limit=[0.0, 100.0],
)


def cases():
    yield "mamba2-uneven-f32", BASE | UNEVEN | dict(layer_norm_epsilon=1e-3), "F32", plain
    yield "mamba2-q4-f32", BASE | EVEN, "F32", everything(affine(4, 64))
    yield "mamba2-bf16", BASE | EVEN | dict(n_groups=2, tie_word_embeddings=False), "BF16", plain
