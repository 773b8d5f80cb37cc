from . import BASE, plain, q4_experts

EXPERTS = dict(
    num_experts=6,
    num_experts_per_tok=2,
    moe_intermediate_size=128,
    shared_expert_intermediate_size=192,
    decoder_sparse_step=1,
    mlp_only_layers=[1],
)
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
    linear_num_value_heads=8,
    linear_key_head_dim=32,
    linear_value_head_dim=32,
    linear_conv_kernel_dim=4,
)


def qwen3_next(**more):
    return (
        dict(
            BASE,
            **EXPERTS,
            **EVEN,
            model_type="qwen3_next",
            head_dim=64,
            partial_rotary_factor=0.25,
            full_attention_interval=4,
            num_hidden_layers=4,
            norm_topk_prob=True,
            tie_word_embeddings=False,
        )
        | more
    )


def cases():
    short = dict(num_hidden_layers=2, full_attention_interval=2)
    uneven = qwen3_next(**UNEVEN, **short, norm_topk_prob=False)
    yield "qwen3_next-f32", qwen3_next(), "F32", plain
    yield "qwen3_next-uneven-f32", uneven, "F32", plain
    yield "qwen3_next-q4-f32", qwen3_next(**short), "F32", q4_experts
    yield "qwen3_next-q4-bf16", qwen3_next(**short), "BF16", q4_experts
