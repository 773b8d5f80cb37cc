from . import BASE, affine, plain


def hunyuan(**more):
    return (
        dict(
            BASE,
            model_type="hunyuan",
            intermediate_size=96,
            num_hidden_layers=3,
            attention_bias=False,
            moe_topk=2,
            num_experts=6,
            num_shared_expert=1,
            use_mixed_mlp_moe=True,
            use_qk_norm=True,
            use_cla=False,
            cla_share_factor=2,
            rope_scaling=dict(type="dynamic", factor=1.0, alpha=1000.0),
            tie_word_embeddings=True,
        )
        | more
    )


def cases():
    yield "hunyuan-f32", hunyuan(), "F32", plain
    each = dict(moe_topk=[1, 2, 3], num_shared_expert=[1, 2, 1], moe_intermediate_size=[64, 96, 32])
    yield "hunyuan-lists-f32", hunyuan(**each, use_qk_norm=False), "F32", plain

    def q4(path):
        return affine(8 if path.endswith("gate.wg") else 4, 32)

    # A single expert is a dense block.
    yield "hunyuan-dense-f32", hunyuan(num_experts=1), "F32", plain
    # Layers that share keys and values have norms of their own for the keys.
    shared = dict(use_cla=True, num_hidden_layers=5)
    yield "hunyuan-shared-f32", hunyuan(**shared), "F32", plain
    yield "hunyuan-shared-bf16", hunyuan(**shared, cla_share_factor=3), "BF16", plain
    without = dict(use_qk_norm=False, attention_bias=True)
    yield "hunyuan-shared-q4-f32", hunyuan(**shared, **without), "F32", q4
    yield "hunyuan-q4-f32", hunyuan(), "F32", q4
    yield "hunyuan-bf16", hunyuan(use_mixed_mlp_moe=False), "BF16", plain
