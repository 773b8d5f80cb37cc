from . import affine, everything, plain, without
from .lfm2 import lfm2


def wrapper(model_type):
    text = without(lfm2(num_hidden_layers=2), "full_attn_idxs")
    text["layer_types"] = ["conv", "full_attention"]
    return dict(model_type=model_type, text_config=text)


def cases():
    yield "lfm2-vl-f32", wrapper("lfm2-vl"), "F32", plain
    yield "lfm2-vl-q4-bf16", wrapper("lfm2-vl"), "BF16", everything(affine(4, 64))
    yield "lfm2-vl-q4-f32", wrapper("lfm2-vl"), "F32", everything(affine(4, 32))
    yield "lfm2_vl-f32", wrapper("lfm2_vl"), "F32", plain
    yield "lfm2_vl-q4-f32", wrapper("lfm2_vl"), "F32", everything(affine(4, 64))
