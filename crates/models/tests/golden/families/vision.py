"""The text part of models that also see."""

from . import affine, everything, plain, without
from .llama import llama
from .qwen2 import qwen2
from .qwen3 import mixed, qwen3
from .qwen3_moe import qwen3_moe


def wrapper(model_type, text):
    return dict(model_type=model_type, text_config=text)


def cases():
    sections = dict(type="mrope", mrope_section=[4, 6, 6])
    seeing = qwen2(rope_scaling=sections)
    yield "qwen2_vl-f32", seeing | dict(model_type="qwen2_vl"), "F32", plain
    yield "qwen2_5_vl-q4-bf16", wrapper("qwen2_5_vl", seeing), "BF16", everything(affine(4, 64))
    sections = dict(rope_type="default", mrope_section=[12, 10, 10], mrope_interleaved=True)
    seeing = qwen3(rope_scaling=sections) | dict(model_type="qwen3_vl_text")
    yield "qwen3_vl-mixed-f32", wrapper("qwen3_vl", seeing), "F32", mixed
    untied = seeing | dict(tie_word_embeddings=False)
    yield "qwen3_vl-original-names-f32", wrapper("qwen3_vl", untied), "F32", plain
    experts = qwen3_moe() | dict(model_type="qwen3_vl_moe_text", rope_scaling=sections)
    yield "qwen3_vl_moe-f32", wrapper("qwen3_vl_moe", experts), "F32", plain
    omni = qwen3_moe(tie_word_embeddings=False) | dict(model_type="qwen3_omni_moe_text", rope_scaling=sections)
    yield "qwen3_omni_moe-f32", dict(model_type="qwen3_omni_moe", thinker_config=dict(text_config=omni)), "F32", plain
    text = llama(tie_word_embeddings=False) | dict(model_type="mistral")
    yield "mistral3-llama-f32", wrapper("mistral3", text), "F32", plain
    yield "mistral3-llama-q4-bf16", wrapper("mistral3", text), "BF16", everything(affine(4, 64))
    yield "llava-f32", wrapper("llava", without(text, "tie_word_embeddings")), "F32", plain
    yield "pixtral-f32", wrapper("pixtral", text), "F32", plain
