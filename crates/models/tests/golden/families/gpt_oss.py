from . import BASE, MXFP4, affine, plain

YARN = dict(
    rope_type="yarn",
    factor=32.0,
    beta_fast=32.0,
    beta_slow=1.0,
    truncate=False,
    original_max_position_embeddings=32,
)


def gpt_oss(**more):
    return (
        dict(
            BASE,
            model_type="gpt_oss",
            intermediate_size=96,
            num_hidden_layers=4,
            num_attention_heads=6,
            num_key_value_heads=3,
            head_dim=32,
            num_local_experts=10,
            num_experts_per_tok=3,
            sliding_window=11,
            rope_theta=150000,
            rope_scaling=YARN,
            tie_word_embeddings=False,
        )
        | more
    )


def mxfp4(path):
    """As mlx-community converts gpt-oss: experts in MXFP4, the others in 8 bits."""
    return MXFP4 if ".experts." in path else affine(8, 64)


def only_experts(path):
    """As OpenAI publishes it."""
    return MXFP4 if ".experts." in path else None


def cases():
    yield "gpt_oss-f32", gpt_oss(), "F32", plain
    one = gpt_oss(num_attention_heads=8, num_key_value_heads=1, num_hidden_layers=2)
    types = ["full_attention", "sliding_attention"]
    yield "gpt_oss-full-first-f32", one | dict(layer_types=types), "F32", plain
    yield "gpt_oss-mxfp4-f32", gpt_oss(), "F32", mxfp4
    # Few layers and experts, so that rounding to bf16 hardly changes the choice of experts.
    few = gpt_oss(num_hidden_layers=2, num_local_experts=6, num_experts_per_tok=4)
    yield "gpt_oss-mxfp4-bf16", few, "BF16", mxfp4
    yield "gpt_oss-bf16", few, "BF16", plain
    yield "gpt_oss-openai-blocks-f32", gpt_oss(), "F32", only_experts
    yield "gpt_oss-openai-blocks-bf16", few, "BF16", only_experts
