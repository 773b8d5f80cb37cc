from . import BASE, plain, q4_experts, without


def mimo_v2_flash(**more):
    return (
        dict(
            without(BASE, "rms_norm_eps"),
            model_type="mimo_v2_flash",
            layernorm_epsilon=1e-5,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=48,
            v_head_dim=32,
            hybrid_layer_pattern=[0, 1, 1, 0],
            swa_num_attention_heads=6,
            swa_num_key_value_heads=3,
            swa_head_dim=56,
            swa_v_head_dim=32,
            swa_rope_theta=5000.0,
            sliding_window_size=11,
            add_swa_attention_sink_bias=True,
            add_full_attention_sink_bias=False,
            partial_rotary_factor=0.334,
            attention_value_scale=0.707,
            moe_layer_freq=[0, 1, 1, 1],
            moe_intermediate_size=96,
            n_shared_experts=None,
            n_routed_experts=8,
            num_experts_per_tok=3,
            routed_scaling_factor=None,
            topk_method="noaux_tc",
            scoring_func="sigmoid",
            norm_topk_prob=True,
            n_group=1,
            topk_group=1,
            tie_word_embeddings=False,
        )
        | more
    )


def cases():
    yield "mimo_v2_flash-f32", mimo_v2_flash(), "F32", plain
    grouped = mimo_v2_flash(
        add_full_attention_sink_bias=True,
        n_shared_experts=2,
        n_group=4,
        topk_group=2,
        routed_scaling_factor=1.5,
        attention_value_scale=None,
        v_head_dim=64,
    )
    yield "mimo_v2_flash-groups-f32", grouped, "F32", plain
    experts = dict(moe_intermediate_size=128)
    yield "mimo_v2_flash-q4-f32", mimo_v2_flash(**experts), "F32", q4_experts
    yield "mimo_v2_flash-per-expert-q4-f32", mimo_v2_flash(**experts), "F32", q4_experts
    # All experts, so that rounding to bf16 does not change the choice.
    few = mimo_v2_flash(
        **experts,
        num_hidden_layers=2,
        hybrid_layer_pattern=[1, 0],
        moe_layer_freq=[1, 0],
        n_routed_experts=3,
    )
    yield "mimo_v2_flash-q4-bf16", few, "BF16", q4_experts
    seeing = dict(model_type="mimo_v2", text_config=mimo_v2_flash() | dict(model_type="mimo_v2"))
    yield "mimo_v2-f32", seeing, "F32", plain
    seeing = dict(model_type="mimo_v2", text_config=mimo_v2_flash(**experts) | dict(model_type="mimo_v2"))
    yield "mimo_v2-q4-f32", seeing, "F32", q4_experts
