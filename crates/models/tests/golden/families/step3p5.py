from . import BASE, affine, everything, plain, q4_experts, without

YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)


def step3p5(**more):
    return (
        dict(
            without(BASE, "num_key_value_heads"),
            model_type="step3p5",
            num_hidden_layers=4,
            num_attention_heads=4,
            num_attention_groups=2,
            head_dim=32,
            attention_other_setting=dict(num_attention_heads=6, num_attention_groups=3),
            layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
            sliding_window=11,
            rope_theta=[50000.0, 10000.0, 10000.0, 50000.0],
            rope_scaling=YARN,
            yarn_only_types=["full_attention"],
            partial_rotary_factors=[0.5, 1.0, 1.0, 0.5],
            moe_num_experts=6,
            moe_top_k=3,
            moe_intermediate_size=96,
            share_expert_dim=160,
            moe_layers_enum="1,3",
            moe_router_scaling_factor=2.0,
            # Small enough that the bounds are met.
            swiglu_limits=[0.0, 0.25, 0.0, 0.5],
            swiglu_limits_shared=[0.3, 0.0, None, 0.2],
            tie_word_embeddings=False,
        )
        | more
    )


def step3p7(**more):
    text = dict(step3p5(), model_type="step3p5", use_head_wise_attn_gate=True) | more
    # A list, and another name, as the published configuration has them.
    text |= dict(share_expert_dims=text.pop("share_expert_dim"), moe_layers_enum=[1, 3])
    return dict(model_type="step3p7", text_config=text)


def cases():
    yield "step3p5-f32", step3p5(), "F32", plain
    lists = ["layer_types", "yarn_only_types", "partial_rotary_factors", "moe_layers_enum"]
    lists += ["attention_other_setting", "swiglu_limits", "swiglu_limits_shared", "rope_scaling"]
    ungated = dict(
        use_head_wise_attn_gate=False,
        norm_expert_weight=False,
        rope_theta=20000.0,
        num_hidden_layers=3,
        num_attention_groups=4,
        # For the tests that repeat layers.
        num_dense_layers=1,
    )
    yield "step3p5-defaults-f32", without(step3p5(), *lists) | ungated, "F32", plain
    experts = dict(moe_intermediate_size=128, share_expert_dim=192)
    yield "step3p5-q4-f32", step3p5(**experts), "F32", q4_experts
    # All experts, so that rounding to bf16 does not change the choice.
    few = step3p5(
        **experts,
        num_hidden_layers=2,
        moe_num_experts=3,
        moe_layers_enum="0,1,2,3,4",
        layer_types=["full_attention", "sliding_attention"],
        rope_theta=[50000.0, 10000.0],
        partial_rotary_factors=[0.5, 1.0],
        swiglu_limits=[0.0, 0.25],
        swiglu_limits_shared=[0.3, 0.0],
    )
    yield "step3p5-q4-bf16", few, "BF16", q4_experts
    yield "step3p7-f32", step3p7(), "F32", plain
    wide = step3p7(moe_intermediate_size=128)
    yield "step3p7-q4-f32", wide, "F32", everything(affine(4, 32))
