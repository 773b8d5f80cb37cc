from . import BASE, plain, q4_experts, without


def olmoe(**more):
    return (
        dict(
            BASE,
            model_type="olmoe",
            intermediate_size=64,
            num_experts=10,
            num_experts_per_tok=3,
            norm_topk_prob=False,
            tie_word_embeddings=False,
        )
        | more
    )


def cases():
    yield "olmoe-f32", olmoe(), "F32", plain
    # Queries and keys of 6 and 3 heads of 24 elements, with biases.
    odd = olmoe(num_attention_heads=6, num_key_value_heads=3, head_dim=24, attention_bias=True)
    yield "olmoe-biases-f32", without(odd, "rope_theta") | dict(norm_topk_prob=True), "F32", plain
    yield "olmoe-q4-f32", olmoe(num_key_value_heads=4), "F32", q4_experts
    yield "olmoe-biases-q4-f32", olmoe(mlp_bias=True), "F32", q4_experts
    yield "olmoe-bf16", olmoe(), "BF16", plain
