from . import VOCAB, affine, everything, plain, without
from .gemma3_text import gemma3_text


def gemma3(**more):
    text = without(gemma3_text(**more), "vocab_size")
    return dict(model_type="gemma3", vocab_size=VOCAB, text_config=text)


def cases():
    yield "gemma3-f32", gemma3(), "F32", plain
    yield "gemma3-q4-bf16", gemma3(head_dim=32), "BF16", everything(affine(4, 32))
    yield "gemma3-q4-f32", gemma3(head_dim=64), "F32", everything(affine(4, 64))
