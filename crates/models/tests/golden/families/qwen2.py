from . import BASE, affine, everything, plain


def qwen2(**more):
    return dict(BASE, model_type="qwen2", tie_word_embeddings=True) | more


def cases():
    yield "qwen2-f32", qwen2(), "F32", plain
    yield "qwen2-f16", qwen2(tie_word_embeddings=False), "F16", plain
    yield "qwen2-q4-f32", qwen2(), "F32", everything(affine(4, 64))
    yield "qwen2-q5-bf16", qwen2(), "BF16", everything(affine(5, 32))
