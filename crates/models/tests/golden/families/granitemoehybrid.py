from . import BASE, affine, plain, q4


def granitemoehybrid(**more):
    return (
        dict(
            BASE,
            model_type="granitemoehybrid",
            num_hidden_layers=3,
            layer_types=["mamba", "attention", "mamba"],
            intermediate_size=64,
            attention_bias=False,
            position_embedding_type="nope",
            num_local_experts=6,
            num_experts_per_tok=2,
            shared_intermediate_size=192,
            mamba_n_heads=8,
            mamba_d_head=32,
            mamba_n_groups=1,
            mamba_d_state=48,
            mamba_d_conv=4,
            mamba_conv_bias=True,
            mamba_proj_bias=False,
            logits_scaling=3.0,
            attention_multiplier=0.1,
            embedding_multiplier=2.5,
            residual_multiplier=0.4,
            tie_word_embeddings=True,
        )
        | more
    )


DENSE = dict(
    num_local_experts=0,
    position_embedding_type="rope",
    intermediate_size=256,
    mamba_n_heads=6,
    mamba_d_head=24,
    mamba_n_groups=2,
    mamba_d_state=20,
    mamba_d_conv=3,
    mamba_proj_bias=True,
    mamba_conv_bias=False,
)


def router_in_eight_bits(path):
    """As mlx-lm quantises it."""
    return affine(8, 64) if path.endswith("router.layer") else affine(4, 64)


def cases():
    yield "granitemoehybrid-f32", granitemoehybrid(tie_word_embeddings=False), "F32", plain
    untied = granitemoehybrid(**DENSE, tie_word_embeddings=False)
    yield "granitemoehybrid-dense-f32", untied, "F32", plain
    yield "granitemoehybrid-q4-f32", granitemoehybrid(), "F32", router_in_eight_bits
    dense = granitemoehybrid(**DENSE | dict(mamba_n_heads=8, mamba_d_head=32))
    yield "granitemoehybrid-dense-q4-bf16", dense, "BF16", q4
