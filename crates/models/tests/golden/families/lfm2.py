from . import BASE, affine, everything, plain, q4, without


def lfm2(**more):
    return (
        dict(
            without(BASE, "rms_norm_eps", "intermediate_size"),
            model_type="lfm2",
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            norm_eps=1e-5,
            rope_theta=1e6,
            conv_bias=False,
            conv_L_cache=3,
            block_dim=128,
            block_ff_dim=300,
            block_multiple_of=64,
            block_ffn_dim_multiplier=1.3,
            block_auto_adjust_ff_dim=True,
            full_attn_idxs=[1],
        )
        | more
    )


def cases():
    yield "lfm2-f32", lfm2(), "F32", plain
    types = ["conv", "conv", "full_attention"]
    # 96 channels, the rotation's base among its parameters, and biases.
    biased = without(lfm2(), "full_attn_idxs", "block_ff_dim", "rope_theta") | dict(
        hidden_size=96,
        block_dim=96,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=3,
        conv_bias=True,
        conv_L_cache=5,
        intermediate_size=160,
        block_auto_adjust_ff_dim=False,
        layer_types=types,
        rope_parameters=dict(rope_theta=30000.0, rope_type="default"),
    )
    yield "lfm2-biases-f32", biased, "F32", plain
    yield "lfm2-q4-f32", lfm2(), "F32", q4
    few = without(lfm2(num_hidden_layers=2), "full_attn_idxs")
    few["layer_types"] = ["conv", "full_attention"]
    yield "lfm2-q8-bf16", few, "BF16", everything(affine(8, 32))
