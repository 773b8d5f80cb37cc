from . import BASE, affine, everything, plain


def minicpm(**more):
    factors = dict(dim_model_base=32, scale_depth=1.4, scale_emb=12.0)
    return dict(BASE, model_type="minicpm", tie_word_embeddings=False, **factors) | more


def cases():
    yield "minicpm-f32", minicpm(num_hidden_layers=3, num_key_value_heads=1), "F32", plain
    yield "minicpm-q4-bf16", minicpm(), "BF16", everything(affine(4, 32))
    yield "minicpm-q4-f32", minicpm(num_key_value_heads=1), "F32", everything(affine(4, 32))
