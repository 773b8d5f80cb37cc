from . import affine, plain, routers_in_eight_bits, without
from .glm4_moe import glm4_moe


def solar_open(**more):
    base = without(glm4_moe(), "n_group", "topk_group", "rope_scaling", "use_qk_norm")
    sizes = dict(model_type="solar_open", attention_bias=False, head_dim=32)
    return base | sizes | dict(partial_rotary_factor=1.0, n_shared_experts=2) | more


def cases():
    yield "solar_open-f32", solar_open(), "F32", plain
    mixed = routers_in_eight_bits(affine(4, 32))
    yield "solar_open-q4-half-bf16", solar_open(partial_rotary_factor=0.5), "BF16", mixed
    yield "solar_open-q4-f32", solar_open(), "F32", mixed
