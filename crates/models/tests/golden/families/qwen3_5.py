from . import BASE, plain, q4, without
from .qwen3_next import EVEN, UNEVEN

ROPE = dict(
    rope_type="default", rope_theta=1e6, partial_rotary_factor=0.25, mrope_section=[3, 3, 2]
)


def text(**more):
    base = without(BASE, "rope_theta")
    sizes = dict(
        head_dim=64,
        full_attention_interval=2,
        num_hidden_layers=2,
        rope_parameters=ROPE,
        tie_word_embeddings=True,
    )
    return dict(base, **EVEN, model_type="qwen3_5_text") | sizes | more


def wrapped(**more):
    return dict(model_type="qwen3_5", text_config=text(**more))


def cases():
    uneven = wrapped(**UNEVEN, tie_word_embeddings=False, head_dim=32)
    yield "qwen3_5-f32", wrapped(full_attention_interval=4, num_hidden_layers=4), "F32", plain
    yield "qwen3_5-uneven-f32", uneven, "F32", plain
    yield "qwen3_5-q4-f32", wrapped(), "F32", q4
    yield "qwen3_5-q4-bf16", wrapped(), "BF16", q4
