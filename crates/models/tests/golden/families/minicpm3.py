from . import BASE, affine, everything, plain


def factors(pairs):
    return dict(
        type="longrope",
        original_max_position_embeddings=16,
        short_factor=[1.0] * pairs,
        long_factor=[1.0 + 0.7 * idx for idx in range(pairs)],
    )


# Five heads, whose values have 24 elements; a rotation of 12.
ODD = dict(
    hidden_size=120,
    num_attention_heads=5,
    num_key_value_heads=5,
    q_lora_rank=72,
    kv_lora_rank=88,
    qk_nope_head_dim=28,
    qk_rope_head_dim=12,
    rope_scaling=factors(6),
)

# Sizes whose matrices are quantised in groups of 32.
WIDE = dict(
    num_attention_heads=4,
    num_key_value_heads=4,
    q_lora_rank=96,
    kv_lora_rank=64,
    qk_nope_head_dim=32,
    qk_rope_head_dim=16,
    rope_scaling=factors(8),
)


def minicpm3(sizes, **more):
    own = dict(dim_model_base=32, scale_depth=1.4, scale_emb=12.0, tie_word_embeddings=False)
    return dict(BASE, model_type="minicpm3", **own) | sizes | more


def cases():
    odd = dict(num_hidden_layers=3, attention_bias=True)
    yield "minicpm3-f32", minicpm3(ODD, **odd), "F32", plain
    tied = dict(tie_word_embeddings=True, rope_traditional=True, scale_emb=0.2)
    yield "minicpm3-q4-f32", minicpm3(WIDE, **tied), "F32", everything(affine(4, 32))
    yield "minicpm3-q4-bf16", minicpm3(WIDE), "BF16", everything(affine(4, 32))
