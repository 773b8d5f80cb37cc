from . import VOCAB, everything, plain
from .gemma4_text import EXPERTS, KEYS_AS_VALUES, Q4, SHARED, gemma4_text, router_in_eight_bits


def gemma4(model_type, *parts):
    text = gemma4_text(*parts)
    return dict(model_type=model_type, vocab_size=VOCAB, text_config=text)


def cases():
    yield "gemma4-f32", gemma4("gemma4", SHARED), "F32", plain
    yield "gemma4-q4-bf16", gemma4("gemma4", KEYS_AS_VALUES), "BF16", everything(Q4)
    yield "gemma4-q4-f32", gemma4("gemma4", KEYS_AS_VALUES), "F32", everything(Q4)
    yield "gemma4_unified-f32", gemma4("gemma4_unified", EXPERTS), "F32", plain
    experts = gemma4("gemma4_unified", KEYS_AS_VALUES, EXPERTS)
    yield "gemma4_unified-q4-f32", experts, "F32", router_in_eight_bits(Q4)
