from . import BASE, affine, plain


def granitemoe(**more):
    return (
        dict(
            BASE,
            model_type="granitemoe",
            intermediate_size=64,
            num_attention_heads=4,
            num_key_value_heads=2,
            attention_bias=False,
            num_local_experts=10,
            num_experts_per_tok=4,
            logits_scaling=3.0,
            attention_multiplier=0.1,
            embedding_multiplier=2.5,
            residual_multiplier=0.4,
            tie_word_embeddings=True,
        )
        | more
    )


def q4(path):
    """As mlx-lm quantises it: the router and the ends of blocks in 8 bits."""
    in_eight = ("block_sparse_moe.router.layer", "self_attn.o_proj", "lm_head")
    return affine(8 if path.endswith(in_eight) else 4, 64)


def cases():
    yield "granitemoe-f32", granitemoe(tie_word_embeddings=False), "F32", plain
    yield "granitemoe-q4-f32", granitemoe(), "F32", q4
    yield "granitemoe-bf16", granitemoe(attention_bias=True, tie_word_embeddings=False), "BF16", plain
