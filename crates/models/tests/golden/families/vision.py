"""The text part of models that also see."""

from . import affine, everything, plain, q4_experts, without
from .llama import llama
from .qwen2 import qwen2
from .qwen3 import mixed, qwen3
from .qwen3_moe import qwen3_moe


def wrapper(model_type, text):
    return dict(model_type=model_type, text_config=text)


def cases():
    sections = dict(type="mrope", mrope_section=[4, 6, 6])
    seeing = qwen2(rope_scaling=sections)
    q4 = everything(affine(4, 64))
    yield "qwen2_vl-f32", seeing | dict(model_type="qwen2_vl"), "F32", plain
    yield "qwen2_vl-q4-f32", seeing | dict(model_type="qwen2_vl"), "F32", q4
    yield "qwen2_5_vl-f32", wrapper("qwen2_5_vl", seeing), "F32", plain
    yield "qwen2_5_vl-q4-f32", wrapper("qwen2_5_vl", seeing), "F32", q4
    yield "qwen2_5_vl-q4-bf16", wrapper("qwen2_5_vl", seeing), "BF16", q4
    sections = dict(rope_type="default", mrope_section=[12, 10, 10], mrope_interleaved=True)
    seeing = qwen3(rope_scaling=sections) | dict(model_type="qwen3_vl_text")
    yield "qwen3_vl-mixed-f32", wrapper("qwen3_vl", seeing), "F32", mixed
    untied = seeing | dict(tie_word_embeddings=False)
    yield "qwen3_vl-original-names-f32", wrapper("qwen3_vl", untied), "F32", plain
    experts = qwen3_moe() | dict(model_type="qwen3_vl_moe_text", rope_scaling=sections)
    yield "qwen3_vl_moe-f32", wrapper("qwen3_vl_moe", experts), "F32", plain
    yield "qwen3_vl_moe-q4-f32", wrapper("qwen3_vl_moe", experts), "F32", q4_experts
    omni = qwen3_moe(tie_word_embeddings=False) | dict(model_type="qwen3_omni_moe_text", rope_scaling=sections)
    omni = dict(model_type="qwen3_omni_moe", thinker_config=dict(text_config=omni))
    yield "qwen3_omni_moe-f32", omni, "F32", plain
    yield "qwen3_omni_moe-q4-f32", omni, "F32", q4_experts
    text = llama(tie_word_embeddings=False) | dict(model_type="mistral")
    yield "mistral3-llama-f32", wrapper("mistral3", text), "F32", plain
    yield "mistral3-llama-q4-bf16", wrapper("mistral3", text), "BF16", q4
    untold = wrapper("llava", without(text, "tie_word_embeddings"))
    yield "llava-f32", untold, "F32", plain
    yield "llava-q4-f32", untold, "F32", q4
    yield "pixtral-f32", wrapper("pixtral", text), "F32", plain
    yield "pixtral-q4-f32", wrapper("pixtral", text), "F32", q4
