from . import BASE, HEAD_DIM, plain, q4_experts

EXPERTS = dict(num_experts_per_tok=2, moe_intermediate_size=128, head_dim=HEAD_DIM)


def dots1(**more):
    return (
        dict(
            BASE,
            **EXPERTS,
            model_type="dots1",
            num_hidden_layers=3,
            n_routed_experts=12,
            n_shared_experts=2,
            first_k_dense_replace=1,
            norm_topk_prob=True,
            routed_scaling_factor=2.5,
            n_group=4,
            topk_group=2,
            tie_word_embeddings=False,
        )
        | more
    )


def cases():
    yield "dots1-f32", dots1(), "F32", plain
    yield "dots1-q4-bf16", dots1(norm_topk_prob=False, n_group=1, topk_group=1), "BF16", q4_experts
    yield "dots1-q4-f32", dots1(), "F32", q4_experts
