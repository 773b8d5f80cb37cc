"""Gemma 4: E models (inputs of each layer, shared caches), dense ones (keys are values), and experts."""

from . import BASE, VOCAB, affine, everything, plain, without

SLIDING, FULL = "sliding_attention", "full_attention"


def rotations(part, **full):
    full = dict(partial_rotary_factor=part, rope_theta=1e6, rope_type="proportional") | full
    sliding = dict(partial_rotary_factor=1.0, rope_theta=10000.0, rope_type="default")
    return {FULL: full, SLIDING: sliding}


# Without inputs beside the stream and shared caches.
DENSE = dict(
    model_type="gemma4_text",
    hidden_size_per_layer_input=0,
    num_kv_shared_layers=0,
    sliding_window=16,
    sliding_window_pattern=2,
    head_dim=32,
    global_head_dim=64,
    rope_parameters=rotations(0.25),
    tie_word_embeddings=True,
    hidden_activation="gelu_pytorch_tanh",
)

# The last two of five layers read the caches of the second and third.
SHARED = dict(
    num_hidden_layers=5,
    num_kv_shared_layers=2,
    layer_types=[SLIDING, FULL, SLIDING, SLIDING, FULL],
    hidden_size_per_layer_input=32,
    vocab_size_per_layer_input=VOCAB,
    use_double_wide_mlp=True,
)

EXPERTS = dict(
    enable_moe_block=True, num_experts=12, top_k_experts=3, moe_intermediate_size=96
)

# Full layers have one head of keys, which are values too.
KEYS_AS_VALUES = dict(attention_k_eq_v=True, num_global_key_value_heads=1)


def gemma4_text(*parts, **more):
    config = without(BASE, "rope_theta") | DENSE
    for part in parts:
        config |= part
    return config | more


def router_in_eight_bits(quantization):
    return lambda path: affine(8, 64) if path.endswith("router.proj") else quantization


Q4 = affine(4, 32)


def cases():
    odd = dict(head_dim=24, global_head_dim=40, num_attention_heads=6, rope_traditional=True)
    shared = gemma4_text(SHARED, odd, hidden_size_per_layer_input=24)
    yield "gemma4_text-shared-f32", shared, "F32", plain
    # In 16 bits, fewer layers add up fewer roundings.
    few = dict(num_hidden_layers=3, num_kv_shared_layers=1, layer_types=[SLIDING, FULL, SLIDING])
    yield "gemma4_text-shared-q4-bf16", gemma4_text(SHARED, few), "BF16", everything(Q4)
    three = dict(num_hidden_layers=3, layer_types=[SLIDING, FULL, SLIDING])
    dense = gemma4_text(KEYS_AS_VALUES, three, tie_word_embeddings=False)
    dense |= dict(final_logit_softcapping=None, rope_parameters=rotations(0.5, factor=4.0))
    yield "gemma4_text-q4-f32", dense, "F32", everything(Q4)
    experts = gemma4_text(KEYS_AS_VALUES, EXPERTS, three)
    yield "gemma4_text-experts-f32", experts, "F32", plain
    yield "gemma4_text-experts-q4-f32", experts, "F32", router_in_eight_bits(Q4)
    # A token passes all experts, because rounding to 16 bits would change choices.
    settled = gemma4_text(EXPERTS, top_k_experts=12)
    yield "gemma4_text-experts-q4-bf16", settled, "BF16", router_in_eight_bits(Q4)
