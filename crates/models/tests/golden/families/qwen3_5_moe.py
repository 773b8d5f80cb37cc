from . import plain, q4_experts
from .qwen3_5 import text

EXPERTS = dict(
    num_experts=5,
    num_experts_per_tok=3,
    moe_intermediate_size=128,
    shared_expert_intermediate_size=64,
    tie_word_embeddings=False,
)


def wrapped(**more):
    config = text(**EXPERTS, **more) | dict(model_type="qwen3_5_moe_text")
    return dict(model_type="qwen3_5_moe", text_config=config)


def cases():
    yield "qwen3_5_moe-f32", wrapped(), "F32", plain
    yield "qwen3_5_moe-q4-f32", wrapped(norm_topk_prob=False), "F32", q4_experts
    yield "qwen3_5_moe-bf16", wrapped(norm_topk_prob=False), "BF16", plain
