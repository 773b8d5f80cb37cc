"""Latent attention to the positions that an indexer chooses: DeepSeek V3.2, GLM-5.

mlx-lm has an indexer in every layer. The classes below add layers without one, which attend to what the
last indexer has chosen, as in mlx-vlm 0.7.10 (models/glm_moe_dsa).
"""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
from mlx_lm.models import glm_moe_dsa
from mlx_lm.models.deepseek_v32 import Indexer

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


@dataclass
class Args(glm_moe_dsa.ModelArgs):
    indexer_types: Any = None
    index_topk_pattern: Any = None
    index_topk_freq: int = 1
    index_skip_topk_offset: int = 2

    def has_indexer(self, layer):
        if self.indexer_types is not None:
            return self.indexer_types[layer] == "full"
        if self.index_topk_pattern is not None:
            return self.index_topk_pattern[layer] in ("F", "full")
        return max(layer - self.index_skip_topk_offset + 1, 0) % self.index_topk_freq == 0


class Telling(Indexer):
    """Tells later layers what it has chosen."""

    def __init__(self, args, told):
        super().__init__(args)
        self.told = told

    def __call__(self, *args, **more):
        self.told.chosen = super().__call__(*args, **more)
        return self.told.chosen


class Told:
    """Stands for the indexer of a layer that has none."""

    def __init__(self, told):
        self.told = told

    def __call__(self, x, _qr, _mask, cache):
        if cache is not None:
            unused = mx.zeros((x.shape[0], 1, x.shape[1], 1))
            cache.update_and_fetch(unused, unused)
        return self.told.chosen


class Sharing(glm_moe_dsa.Model):
    def __init__(self, args):
        super().__init__(args)
        told = SimpleNamespace(chosen=None)
        for idx, layer in enumerate(self.model.layers):
            layer.self_attn.indexer = Telling(args, told) if args.has_indexer(idx) else Told(told)


glm_moe_dsa.Model, glm_moe_dsa.ModelArgs = Sharing, Args


def cases():
    yield "deepseek_v32-f32", v32(ODD, index_head_dim=20, index_n_heads=7), "F32", plain
    yield "deepseek_v32-q4-f32", v32(WIDE, index_topk=9), "F32", q4_experts
    yield "deepseek_v32-biases-f32", v32(WIDE, attention_bias=True, index_n_heads=8, index_topk=13), "F32", plain
    # Rounding to 16 bits chooses other positions, of which one among many matters little.
    yield "deepseek_v32-q4-bf16", v32(WIDE, index_topk=36, **SETTLED), "BF16", q4_experts
    yield "glm_moe_dsa-f32", glm(ODD, index_head_dim=24), "F32", plain
    yield "glm_moe_dsa-q4-f32", glm(WIDE, indexer_rope_interleave=False), "F32", q4_experts
    yield "glm_moe_dsa-bf16", glm(WIDE, **SETTLED), "BF16", plain
    types = ["full", "full", "shared", "shared", "full"]
    shared = dict(num_hidden_layers=5, indexer_types=types, index_n_heads=9, index_topk=11)
    yield "glm_moe_dsa-shared-f32", glm(ODD, **shared), "F32", plain
    pattern = dict(num_hidden_layers=5, index_topk_pattern="FSFFS", index_n_heads=9, index_topk=11)
    yield "glm_moe_dsa-pattern-q4-f32", glm(WIDE, **pattern), "F32", q4_experts
    often = dict(num_hidden_layers=5, index_topk_freq=2, index_n_heads=9, index_topk=11)
    yield "glm_moe_dsa-often-f32", glm(WIDE, **often), "F32", plain
