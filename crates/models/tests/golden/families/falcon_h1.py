from . import BASE, affine, plain


def falcon_h1(**more):
    return (
        dict(
            BASE,
            model_type="falcon_h1",
            head_dim=32,
            rope_theta=1e6,
            mamba_d_ssm=256,
            mamba_n_heads=8,
            mamba_d_head=32,
            mamba_n_groups=1,
            mamba_d_state=48,
            mamba_d_conv=4,
            tie_word_embeddings=False,
        )
        | more
    )


# Widths that are no multiples of a vector, a norm before the gate, and biases.
UNEVEN = dict(
    head_dim=24,
    mamba_d_ssm=216,
    mamba_n_heads=9,
    mamba_d_head=24,
    mamba_n_groups=3,
    mamba_d_state=20,
    mamba_d_conv=3,
    mamba_conv_bias=False,
    mamba_proj_bias=True,
    mamba_rms_norm=True,
    mamba_norm_before_gate=True,
    projectors_bias=True,
    mlp_bias=True,
)


def q4(path):
    """As mlx-lm quantises it, with the ends of blocks in 8 bits."""
    return affine(8 if path.endswith(("out_proj", "o_proj", "lm_head")) else 4, 64)


def cases():
    tied = dict(tie_word_embeddings=True, lm_head_multiplier=2.0, embedding_multiplier=0.8)
    yield "falcon_h1-f32", falcon_h1(**tied), "F32", plain
    yield "falcon_h1-uneven-f32", falcon_h1(**UNEVEN), "F32", plain
    normed = dict(mamba_rms_norm=True, attention_bias=True)
    yield "falcon_h1-normed-q4-f32", falcon_h1(**normed), "F32", q4
    yield "falcon_h1-q4-bf16", falcon_h1(), "BF16", q4
