from . import BASE, MXFP4, MXFP8, NVFP4, affine, everything, plain, without


def qwen3(**more):
    return dict(BASE, model_type="qwen3", head_dim=64, tie_word_embeddings=True) | more


def mixed(path):
    """Layers of one model in different formats, one of them not quantised at all."""
    if "v_proj" in path or "down_proj" in path:
        return affine(6, 32)
    if "layers.0." in path:
        return None
    if "embed_tokens" in path:
        return affine(8, 64)
    return MXFP4 if "q_proj" in path else affine(4, 64)


def cases():
    yield "qwen3-f32", qwen3(), "F32", plain
    five = without(qwen3(), "rope_theta") | dict(
        rope_parameters=dict(rope_type="default", rope_theta=1e6)
    )
    yield "qwen3-rope-parameters-f32", five, "F32", plain
    yield "qwen3-bf16", qwen3(), "BF16", plain
    yield "qwen3-f16", qwen3(), "F16", plain
    for bits in (2, 3, 4, 5, 6, 8):
        for group_size in (32, 64, 128):
            quantization = affine(bits, group_size)
            yield f"qwen3-b{bits}-g{group_size}-f32", qwen3(), "F32", everything(quantization)
    for quantization in (MXFP4, NVFP4, MXFP8):
        for dtype in ("F32", "BF16"):
            name = f"qwen3-{quantization['mode']}-{dtype.lower()}"
            yield name, qwen3(), dtype, everything(quantization)
    yield "qwen3-q4-f16", qwen3(), "F16", everything(affine(4, 64))
    yield "qwen3-q6-bf16", qwen3(tie_word_embeddings=False), "BF16", everything(affine(6, 64))
    yield "qwen3-mixed-f32", qwen3(), "F32", mixed
    yield "qwen3-mixed-bf16", qwen3(tie_word_embeddings=False), "BF16", mixed
