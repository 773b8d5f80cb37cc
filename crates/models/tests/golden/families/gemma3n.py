from . import BASE, VOCAB, affine, plain, without

SLIDING, FULL = "sliding_attention", "full_attention"


def gemma3n(**more):
    text = dict(
        model_type="gemma3n_text",
        num_hidden_layers=5,
        head_dim=32,
        num_kv_shared_layers=2,
        vocab_size_per_layer_input=VOCAB - 8,
        sliding_window=16,
        rope_local_base_freq=10000.0,
        rope_theta=1e6,
        final_logit_softcapping=30.0,
        layer_types=[SLIDING, FULL, SLIDING, SLIDING, FULL],
        activation_sparsity_pattern=[0.8, 0.0, 0.6, 0.0, 0.0],
        hidden_size_per_layer_input=32,
        altup_num_inputs=4,
        altup_coef_clip=0.6,
        altup_correct_scale=True,
        altup_active_idx=0,
        laurel_rank=32,
        hidden_activation="gelu_pytorch_tanh",
    )
    return dict(model_type="gemma3n", text_config=without(BASE, "rope_theta") | text | more)


def q4(path):
    # mlx-lm leaves matrices whose rows are shorter than a group.
    return None if "_coefs" in path else affine(4, 32)


def cases():
    inner = [256, 192, 128, 256, 320]
    odd = dict(altup_num_inputs=3, altup_active_idx=1, altup_correct_scale=False, laurel_rank=28)
    odd |= dict(head_dim=24, num_attention_heads=6, hidden_size_per_layer_input=24)
    odd |= dict(altup_coef_clip=None, intermediate_size=inner, final_logit_softcapping=None)
    # The last layer reads the cache of the one before it, so that the layers can be cut into several stages.
    odd |= dict(num_kv_shared_layers=1, layer_types=[SLIDING, SLIDING, FULL, SLIDING, SLIDING])
    yield "gemma3n-f32", gemma3n(), "F32", plain
    yield "gemma3n-odd-f32", gemma3n(**odd), "F32", plain
    yield "gemma3n-q4-f32", gemma3n(), "F32", q4
    yield "gemma3n-q4-bf16", gemma3n(), "BF16", q4
