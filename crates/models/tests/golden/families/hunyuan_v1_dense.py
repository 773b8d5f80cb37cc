from . import BASE, affine, everything, plain


def hunyuan_v1_dense(**more):
    scaling = dict(type="dynamic", factor=1.0, alpha=1000.0)
    heads = dict(num_attention_heads=6, num_key_value_heads=2, head_dim=24, use_qk_norm=True)
    base = dict(BASE, model_type="hunyuan_v1_dense", attention_bias=False, rope_scaling=scaling)
    return base | heads | dict(tie_word_embeddings=True) | more


def cases():
    yield "hunyuan_v1_dense-f32", hunyuan_v1_dense(), "F32", plain
    bare = dict(use_qk_norm=False, rope_scaling=None, attention_bias=True)
    yield "hunyuan_v1_dense-biases-f32", hunyuan_v1_dense(**bare), "F32", plain
    q4 = everything(affine(4, 32))
    yield "hunyuan_v1_dense-q4-bf16", hunyuan_v1_dense(head_dim=32), "BF16", q4
    biased = hunyuan_v1_dense(head_dim=32, attention_bias=True)
    yield "hunyuan_v1_dense-q4-f32", biased, "F32", q4
