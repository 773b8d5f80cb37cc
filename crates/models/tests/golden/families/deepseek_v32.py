"""Latent attention to the positions that an indexer chooses: DeepSeek V3.2, GLM-5."""

from . import plain, q4_experts, without
from .deepseek import ODD, SETTLED, WIDE, v3

# Fewer positions than the prompt has are chosen. Scores of zero are equal, and mlx-lm chooses any of
# them: with several heads, and far from half of the positions, none is at the border.
INDEX = dict(index_n_heads=6, index_head_dim=64, index_topk=16)


def v32(sizes, **more):
    return v3(sizes, "deepseek_v32", **(INDEX | more))


def glm(sizes, **more):
    stated = dict(moe_layer_freq=1, attention_bias=False)
    own = without(v3(sizes, "glm_moe_dsa", **(INDEX | stated | more)), "rope_scaling", "rope_theta")
    return own | dict(rope_parameters=dict(rope_theta=1000000.0, rope_type="default"))


def cases():
    yield "deepseek_v32-f32", v32(ODD, index_head_dim=20, index_n_heads=7), "F32", plain
    yield "deepseek_v32-q4-f32", v32(WIDE, index_topk=9), "F32", q4_experts
    yield "deepseek_v32-biases-f32", v32(WIDE, attention_bias=True, index_n_heads=8, index_topk=13), "F32", plain
    # Rounding to 16 bits chooses other positions, of which one among many matters little.
    yield "deepseek_v32-q4-bf16", v32(WIDE, index_topk=36, **SETTLED), "BF16", q4_experts
    yield "glm_moe_dsa-f32", glm(ODD, index_head_dim=24), "F32", plain
    yield "glm_moe_dsa-q4-f32", glm(WIDE, indexer_rope_interleave=False), "F32", q4_experts
    yield "glm_moe_dsa-bf16", glm(WIDE, **SETTLED), "BF16", plain
