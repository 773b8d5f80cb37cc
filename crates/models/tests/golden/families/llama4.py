from . import BASE, affine, plain, without

TEXT = dict(
    without(BASE, "rope_theta"),
    model_type="llama4_text",
    num_hidden_layers=4,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=32,
    attention_bias=False,
    attention_chunk_size=14,
    interleave_moe_layer_step=2,
    intermediate_size=64,
    intermediate_size_mlp=160,
    num_local_experts=6,
    num_experts_per_tok=1,
    use_qk_norm=True,
    attn_temperature_tuning=4,
    floor_scale=8,
    attn_scale=0.3,
    rope_theta=500000.0,
    rope_scaling=dict(
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=32,
    ),
    tie_word_embeddings=False,
)


def llama4(**more):
    return dict(model_type="llama4", text_config=TEXT | more)


def q4(path):
    return affine(8 if path.endswith("router") else 4, 32)


def cases():
    yield "llama4-f32", llama4(), "F32", plain
    plainer = dict(interleave_moe_layer_step=1, use_qk_norm=False, attn_temperature_tuning=0)
    yield "llama4-every-layer-f32", llama4(**plainer, rope_scaling=None), "F32", plain
    yield "llama4-q4-f32", llama4(), "F32", q4
    yield "llama4-bf16", llama4(), "BF16", plain
