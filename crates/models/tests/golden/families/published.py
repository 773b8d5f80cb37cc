"""Checkpoints in their makers' own quantisation: see ../published.py."""

from . import plain
from .deepseek import ODD, SETTLED, WIDE, kimi_k25, mistral4, v3
from .deepseek_v41 import SETTLED as ALL_CHOSEN
from .deepseek_v41 import WIDE as V41_WIDE
from .deepseek_v41 import WITHOUT_TABLES
from .deepseek_v41 import config as deepseek_v41
from .minimax import minimax
from .qwen3 import qwen3

# Sides that are no multiples of a block's.
LONG = dict(intermediate_size=200, moe_intermediate_size=136)


def cases():
    yield "deepseek_v3-published-blocks-bf16", v3(ODD, **LONG | SETTLED), "BF16", plain
    yield "kimi_k2-published-int4-bf16", v3(WIDE, "kimi_k2", **SETTLED), "BF16", plain
    yield "kimi_k25-published-int4-bf16", kimi_k25(WIDE, **SETTLED), "BF16", plain
    yield "mistral4-published-scaled-bf16", mistral4(ODD, **LONG | SETTLED), "BF16", plain
    all_experts = dict(num_experts_per_tok=12, intermediate_size=136)
    yield "minimax-published-blocks-bf16", minimax(model_type="minimax_m2", **all_experts), "BF16", plain
    yield "qwen3-published-awq-f16", qwen3(tie_word_embeddings=False), "F16", plain
    v41 = deepseek_v41(**V41_WIDE | ALL_CHOSEN | WITHOUT_TABLES)
    yield "deepseek_v41-published-tiles-bf16", v41, "BF16", plain
