from . import BASE, plain, q4_experts, without


def lfm2_moe(**more):
    return (
        dict(
            without(BASE, "rms_norm_eps"),
            model_type="lfm2_moe",
            num_hidden_layers=4,
            norm_eps=1e-5,
            rope_theta=1e6,
            conv_bias=False,
            conv_L_cache=3,
            moe_intermediate_size=96,
            num_dense_layers=1,
            num_experts=7,
            num_experts_per_tok=3,
            norm_topk_prob=True,
            use_expert_bias=True,
            layer_types=["conv", "conv", "full_attention", "conv"],
        )
        | more
    )


def cases():
    yield "lfm2_moe-f32", lfm2_moe(), "F32", plain
    other = lfm2_moe(norm_topk_prob=False, use_expert_bias=False, routed_scaling_factor=1.5)
    yield "lfm2_moe-scaled-f32", other, "F32", plain
    experts = dict(moe_intermediate_size=128)
    yield "lfm2_moe-q4-f32", lfm2_moe(**experts), "F32", q4_experts
    # All experts, so that rounding to bf16 does not change the choice.
    few = lfm2_moe(
        **experts,
        num_hidden_layers=2,
        num_experts=3,
        num_dense_layers=0,
        layer_types=["conv", "full_attention"],
    )
    yield "lfm2_moe-q4-bf16", few, "BF16", q4_experts
