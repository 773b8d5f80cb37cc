from . import affine, plain


def nemotron_h(**more):
    return (
        dict(
            model_type="nemotron_h",
            vocab_size=200,
            hidden_size=128,
            intermediate_size=256,
            max_position_embeddings=2048,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            attention_bias=False,
            mamba_num_heads=8,
            mamba_head_dim=32,
            mamba_proj_bias=False,
            ssm_state_size=48,
            conv_kernel=4,
            n_groups=2,
            mlp_bias=False,
            layer_norm_epsilon=1e-5,
            use_bias=False,
            use_conv_bias=True,
            num_hidden_layers=5,
            hybrid_override_pattern="ME*-M",
            moe_intermediate_size=64,
            moe_shared_expert_intermediate_size=192,
            n_group=1,
            topk_group=1,
            n_routed_experts=6,
            n_shared_experts=1,
            num_experts_per_tok=2,
            norm_topk_prob=True,
            routed_scaling_factor=2.5,
        )
        | more
    )


# Widths that are no multiples of a vector, limited steps, groups of experts, and every bias.
UNEVEN = dict(
    hybrid_override_pattern=["-", "M", "E", "*", "E"],
    mamba_num_heads=9,
    mamba_head_dim=24,
    n_groups=3,
    ssm_state_size=20,
    conv_kernel=3,
    head_dim=24,
    time_step_limit=[0.3, 1.5],
    n_routed_experts=8,
    n_group=4,
    topk_group=2,
    num_experts_per_tok=3,
    mlp_bias=True,
    attention_bias=True,
    mamba_proj_bias=True,
    use_conv_bias=False,
)
LATENT = dict(
    num_hidden_layers=4,
    hybrid_override_pattern="MEE*",
    moe_latent_size=64,
    n_shared_experts=None,
)


def q4(path):
    """As mlx-lm quantises it, with the ends of blocks in 8 bits."""
    return affine(8 if path.endswith(("out_proj", "o_proj", "lm_head")) else 4, 64)


def cases():
    yield "nemotron_h-f32", nemotron_h(), "F32", plain
    yield "nemotron_h-uneven-f32", nemotron_h(**UNEVEN), "F32", plain
    yield "nemotron_h-latent-f32", nemotron_h(**LATENT), "F32", plain
    latent = nemotron_h(**LATENT | dict(n_shared_experts=1))
    yield "nemotron_h-latent-q4-f32", latent, "F32", q4
    yield "nemotron_h-q4-bf16", nemotron_h(), "BF16", q4
    yield "nemotron_h-per-expert-bf16", nemotron_h(), "BF16", plain
