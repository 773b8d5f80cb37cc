from . import BASE, plain, q4_experts


def ernie4_5_moe(**more):
    return (
        dict(
            BASE,
            model_type="ernie4_5_moe",
            num_hidden_layers=4,
            num_attention_heads=6,
            num_key_value_heads=2,
            head_dim=32,
            use_bias=False,
            moe_num_experts=12,
            moe_k=3,
            moe_intermediate_size=64,
            moe_num_shared_experts=2,
            moe_layer_start_index=1,
            moe_layer_end_index=3,
            moe_layer_interval=1,
            tie_word_embeddings=True,
        )
        | more
    )


def cases():
    yield "ernie4_5_moe-f32", ernie4_5_moe(), "F32", plain
    other = dict(moe_gate_act="sigmoid", moe_layer_interval=2, moe_num_shared_experts=0)
    other |= dict(moe_layer_start_index=[0, 9], moe_layer_end_index=[2, 3], moe_intermediate_size=0)
    yield "ernie4_5_moe-sigmoid-f32", ernie4_5_moe(**other, intermediate_size=96), "F32", plain
    yield "ernie4_5_moe-q4-f32", ernie4_5_moe(tie_word_embeddings=False), "F32", q4_experts
    yield "ernie4_5_moe-bf16", ernie4_5_moe(), "BF16", plain
