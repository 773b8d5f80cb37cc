from . import BASE, affine, everything, plain


def seed_oss(**more):
    biases = dict(attention_bias=True, attention_out_bias=False, mlp_bias=False)
    return dict(BASE, model_type="seed_oss", head_dim=48, tie_word_embeddings=False, **biases) | more


def cases():
    yield "seed_oss-f32", seed_oss(num_key_value_heads=1), "F32", plain
    other = dict(attention_bias=False, attention_out_bias=True, mlp_bias=True)
    yield "seed_oss-q4-bf16", seed_oss(head_dim=32, **other), "BF16", everything(affine(4, 32))
    yield "seed_oss-q4-f32", seed_oss(head_dim=32), "F32", everything(affine(4, 32))
