from . import BASE, HEAD_DIM, affine, everything, plain, without

LLAMA3 = dict(
    rope_type="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=32,
)
YARN = dict(
    type="yarn", factor=8.0, original_max_position_embeddings=16, beta_fast=32, beta_slow=1
)
LONGROPE = dict(
    type="longrope",
    original_max_position_embeddings=32,
    short_factor=[1.0] * 16,
    long_factor=[1.0 + 0.3 * i for i in range(16)],
)


def llama(**more):
    return dict(BASE, model_type="llama", head_dim=HEAD_DIM, tie_word_embeddings=True) | more


def cases():
    yield "llama-f32", llama(rope_scaling=LLAMA3), "F32", plain
    biased = llama(attention_bias=True, mlp_bias=True, tie_word_embeddings=False)
    biased = without(biased, "num_key_value_heads", "head_dim", "rope_theta")
    yield "llama-biases-f32", biased, "F32", plain
    yield "llama-untold-head-f32", without(llama(), "tie_word_embeddings"), "F32", plain
    yield "llama-traditional-f32", llama(rope_traditional=True), "F32", plain
    yield "llama-linear-f32", llama(rope_scaling=dict(type="linear", factor=4.0)), "F32", plain
    yield "llama-dynamic-f32", llama(rope_scaling=dict(type="dynamic", factor=2.0)), "F32", plain
    yield "llama-yarn-f32", llama(rope_scaling=YARN), "F32", plain
    yield "llama-longrope-f32", llama(rope_scaling=LONGROPE), "F32", plain
    yield "llama-one-kv-head-f32", llama(num_key_value_heads=1), "F32", plain
    yield "llama-bf16", llama(rope_scaling=LLAMA3), "BF16", plain
    yield "llama-f16", llama(rope_scaling=LLAMA3), "F16", plain
    yield "llama-q4-bf16", llama(rope_scaling=LLAMA3), "BF16", everything(affine(4, 64))
    untied = llama(tie_word_embeddings=False, attention_bias=True, mlp_bias=True)
    yield "llama-q8-f32", untied, "F32", everything(affine(8, 32))
