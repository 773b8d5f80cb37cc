"""Checkpoints as their makers publish them, not as mlx-lm converts them: see ../originals.py."""

from . import plain
from .apertus import apertus
from .bailing_moe import SIGMOID, bailing_moe
from .deepseek import ODD, mistral4
from .ernie4_5_moe import ernie4_5_moe
from .falcon_h1 import falcon_h1
from .glm4_moe import glm4_moe
from .granitemoe import granitemoe
from .granitemoehybrid import DENSE, granitemoehybrid
from .lfm2_moe import lfm2_moe
from .llama4 import llama4
from .qwen3_5 import wrapped as qwen3_5
from .qwen3_5_moe import wrapped as qwen3_5_moe
from .qwen3_moe import qwen3_moe
from .qwen3_next import UNEVEN, qwen3_next
from .step3p5 import step3p5


def qwen3_vl_moe():
    sections = dict(rope_type="default", mrope_section=[12, 10, 10], mrope_interleaved=True)
    text = qwen3_moe() | dict(model_type="qwen3_vl_moe_text", rope_scaling=sections)
    return dict(model_type="qwen3_vl_moe", text_config=text)


def cases():
    short = dict(num_hidden_layers=2, full_attention_interval=2)
    yield "qwen3_next-original-f32", qwen3_next(**UNEVEN, **short), "F32", plain
    yield "qwen3_5-original-f32", qwen3_5(), "F32", plain
    yield "qwen3_5-original-bf16", qwen3_5(tie_word_embeddings=False), "BF16", plain
    yield "qwen3_5_moe-original-f32", qwen3_5_moe(), "F32", plain
    yield "qwen3_vl_moe-original-f32", qwen3_vl_moe(), "F32", plain
    yield "llama4-original-f32", llama4(), "F32", plain
    yield "mistral4-original-f32", mistral4(ODD), "F32", plain
    yield "granitemoe-original-f32", granitemoe(tie_word_embeddings=False), "F32", plain
    yield "bailing_moe-original-f32", bailing_moe(**SIGMOID), "F32", plain
    yield "ernie4_5_moe-original-f32", ernie4_5_moe(), "F32", plain
    yield "glm4_moe-original-f32", glm4_moe(), "F32", plain
    yield "apertus-original-f32", apertus(), "F32", plain
    # Three layers: the tests that add layers would take the two factors of the block for a list of layers.
    multipliers = dict(
        num_hidden_layers=3,
        attention_in_multiplier=1.1,
        attention_out_multiplier=0.9,
        embedding_multiplier=1.5,
        lm_head_multiplier=0.7,
        mlp_multipliers=[0.9, 1.2],
        ssm_in_multiplier=1.25,
        ssm_multipliers=[0.7, 1.2, 0.8, 1.1, 0.9],
        ssm_out_multiplier=0.8,
    )
    yield "falcon_h1-original-f32", falcon_h1(**multipliers), "F32", plain
    tied = multipliers | dict(tie_word_embeddings=True)
    yield "falcon_h1-original-bf16", falcon_h1(**tied), "BF16", plain
    yield "step3p5-original-f32", step3p5(), "F32", plain
    yield "lfm2_moe-original-f32", lfm2_moe(), "F32", plain
    yield "granitemoehybrid-original-f32", granitemoehybrid(**DENSE), "F32", plain
