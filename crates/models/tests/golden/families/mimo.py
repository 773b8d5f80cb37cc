from . import BASE, affine, everything, plain


def mimo(**more):
    return dict(BASE, model_type="mimo", tie_word_embeddings=False, num_nextn_predict_layers=1) | more


def cases():
    yield "mimo-f32", mimo(intermediate_size=192), "F32", plain
    yield "mimo-q4-bf16", mimo(num_key_value_heads=4), "BF16", everything(affine(4, 64))
    yield "mimo-q4-f32", mimo(), "F32", everything(affine(4, 64))
