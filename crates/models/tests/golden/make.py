"""Writes what mlx-lm computes for tiny checkpoints to ../data/golden.json.

Run by `cargo xtask golden`, which brings the pinned versions. A checkpoint is not stored: each of
its tensors is a recipe ("F32 128x128 0.0 0.4": type, shape, offset, amplitude) over random bits that
depend on case and tensor name alone. tests/it/recipe.rs follows the same recipes; a digest of all
bytes shows that both made the same tensors. mlx-lm loads the checkpoint like any other.

f32 checkpoints are computed as they are. Of f16 and bf16 ones the stored values are exact: their
weights are loaded by mlx-lm, then widened, and computed in f32.
"""

import hashlib
import json
import math
import sys
import tempfile
from pathlib import Path

import mlx.core as mx
import numpy as np

mx.set_default_device(mx.cpu)

import mlx.nn as nn  # noqa: E402
import mlx_lm  # noqa: E402
from mlx.utils import tree_flatten, tree_unflatten  # noqa: E402
from mlx_lm.generate import generate_step  # noqa: E402
from mlx_lm.models.switch_layers import SwitchLinear  # noqa: E402
from mlx_lm.utils import _get_classes, load_model  # noqa: E402

HIDDEN, VOCAB, INNER, LAYERS = 128, 200, 256, 2
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 32
PROMPT_TOKENS, GREEDY_TOKENS = 40, 16
# Dimensions of an embedding that are written down.
POOLED = 32

BASE = dict(
    hidden_size=HIDDEN,
    vocab_size=VOCAB,
    intermediate_size=INNER,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    num_key_value_heads=KV_HEADS,
    rms_norm_eps=1e-5,
    max_position_embeddings=2048,
    rope_theta=10000.0,
)
LLAMA3 = dict(
    rope_type="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=32,
)
YARN = dict(
    type="yarn", factor=8.0, original_max_position_embeddings=16, beta_fast=32, beta_slow=1
)
LONGROPE = dict(
    type="longrope",
    original_max_position_embeddings=32,
    short_factor=[1.0] * 16,
    long_factor=[1.0 + 0.3 * i for i in range(16)],
)
WINDOWS = ["sliding_attention", "full_attention"] * 2


def llama(**more):
    return dict(BASE, model_type="llama", head_dim=HEAD_DIM, tie_word_embeddings=True) | more


def mistral(**more):
    return (
        dict(
            BASE,
            model_type="mistral",
            num_hidden_layers=4,
            head_dim=64,
            sliding_window=16,
            layer_types=WINDOWS,
            tie_word_embeddings=False,
        )
        | more
    )


def qwen2(**more):
    return dict(BASE, model_type="qwen2", tie_word_embeddings=True) | more


def qwen3(**more):
    return dict(BASE, model_type="qwen3", head_dim=64, tie_word_embeddings=True) | more


EXPERTS = dict(num_experts_per_tok=2, moe_intermediate_size=128, head_dim=HEAD_DIM)


def qwen3_moe(**more):
    return (
        dict(
            BASE,
            **EXPERTS,
            model_type="qwen3_moe",
            num_hidden_layers=3,
            num_experts=8,
            decoder_sparse_step=1,
            mlp_only_layers=[1],
            norm_topk_prob=True,
            tie_word_embeddings=False,
        )
        | more
    )


def qwen2_moe(**more):
    return (
        dict(
            without(BASE, "head_dim"),
            model_type="qwen2_moe",
            num_experts=6,
            num_experts_per_tok=3,
            moe_intermediate_size=96,
            shared_expert_intermediate_size=160,
            tie_word_embeddings=False,
        )
        | more
    )


def mixtral(**more):
    return (
        dict(
            BASE,
            model_type="mixtral",
            num_local_experts=8,
            num_experts_per_tok=2,
            tie_word_embeddings=False,
        )
        | more
    )


def dots1(**more):
    return (
        dict(
            BASE,
            **EXPERTS,
            model_type="dots1",
            num_hidden_layers=3,
            n_routed_experts=12,
            n_shared_experts=2,
            first_k_dense_replace=1,
            norm_topk_prob=True,
            routed_scaling_factor=2.5,
            n_group=4,
            topk_group=2,
            tie_word_embeddings=False,
        )
        | more
    )


def routers_in_eight_bits(quantization):
    """As mlx-lm quantises mixtures: the router in 8 bits."""

    def of(path):
        is_router = path.endswith(("mlp.gate", "shared_expert_gate", "block_sparse_moe.gate"))
        return affine(8, 64) if is_router else quantization

    return of


def without(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}


def affine(bits, group_size):
    return dict(mode="affine", bits=bits, group_size=group_size)


MXFP4 = dict(mode="mxfp4", bits=4, group_size=32)
NVFP4 = dict(mode="nvfp4", bits=4, group_size=16)
MXFP8 = dict(mode="mxfp8", bits=8, group_size=32)


def everything(quantization):
    return lambda path: quantization


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
    plain = everything(None)
    yield "llama-f32", llama(rope_scaling=LLAMA3), "F32", plain
    biased = llama(attention_bias=True, mlp_bias=True, tie_word_embeddings=False)
    biased = without(biased, "num_key_value_heads", "head_dim", "rope_theta")
    yield "llama-biases-f32", biased, "F32", plain
    yield "llama-untold-head-f32", without(llama(), "tie_word_embeddings"), "F32", plain
    yield "llama-traditional-f32", llama(rope_traditional=True), "F32", plain
    yield "llama-linear-f32", llama(rope_scaling=dict(type="linear", factor=4.0)), "F32", plain
    yield "llama-dynamic-f32", llama(rope_scaling=dict(type="dynamic", factor=2.0)), "F32", plain
    yield "llama-yarn-f32", llama(rope_scaling=YARN), "F32", plain
    yield "llama-longrope-f32", llama(rope_scaling=LONGROPE), "F32", plain
    yield "llama-one-kv-head-f32", llama(num_key_value_heads=1), "F32", plain
    yield "llama-bf16", llama(rope_scaling=LLAMA3), "BF16", plain
    yield "llama-f16", llama(rope_scaling=LLAMA3), "F16", plain
    yield "llama-q4-bf16", llama(rope_scaling=LLAMA3), "BF16", everything(affine(4, 64))
    untied = llama(tie_word_embeddings=False, attention_bias=True, mlp_bias=True)
    yield "llama-q8-f32", untied, "F32", everything(affine(8, 32))
    yield "mistral-f32", mistral(), "F32", plain
    yield "mistral-bf16", mistral(), "BF16", plain
    yield "mistral-q4-f32", mistral(), "F32", everything(affine(4, 64))
    yield "qwen2-f32", qwen2(), "F32", plain
    yield "qwen2-f16", qwen2(tie_word_embeddings=False), "F16", plain
    yield "qwen2-q4-f32", qwen2(), "F32", everything(affine(4, 64))
    yield "qwen2-q5-bf16", qwen2(), "BF16", everything(affine(5, 32))
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
    yield "qwen3_moe-f32", qwen3_moe(), "F32", plain
    yield "qwen3_moe-bf16", qwen3_moe(norm_topk_prob=False), "BF16", plain
    q4 = routers_in_eight_bits(affine(4, 64))
    yield "qwen3_moe-q4-f32", qwen3_moe(), "F32", q4
    yield "qwen3_moe-q4-bf16", qwen3_moe(), "BF16", q4
    yield "qwen3_moe-mxfp4-f32", qwen3_moe(), "F32", routers_in_eight_bits(MXFP4)
    yield "qwen3_moe-per-expert-f32", qwen3_moe(), "F32", plain
    yield "qwen2_moe-f32", qwen2_moe(), "F32", plain
    # Quantisation groups of 32 fit inner dimensions of 96 and 160.
    yield "qwen2_moe-q4-f32", qwen2_moe(), "F32", routers_in_eight_bits(affine(4, 32))
    yield "dots1-f32", dots1(), "F32", plain
    yield "dots1-q4-bf16", dots1(norm_topk_prob=False, n_group=1, topk_group=1), "BF16", q4
    yield "mixtral-f32", mixtral(), "F32", plain
    yield "mixtral-q4-f32", mixtral(), "F32", q4
    yield "mixtral-per-expert-q4-f32", mixtral(), "F32", q4


# --------------------------------------------------------------------------------------------------
# Recipes
# --------------------------------------------------------------------------------------------------


def random_bits(name, count):
    """`count` 64-bit numbers: splitmix64 from the FNV-1a hash of the name."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = ((seed ^ byte) * 0x100000001B3) % 2**64
    steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = np.uint64(seed) + steps
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def tensor_bytes(case, name, recipe):
    dtype, shape, first, second = recipe.split()
    count = math.prod(int(dim) for dim in shape.split("x"))
    bits = random_bits(f"{case}/{name}", count)
    if dtype == "U32":  # a mask and nothing
        return ((bits >> np.uint64(32)).astype(np.uint32) & np.uint32(int(first))).tobytes()
    if dtype == "U8":  # the least value and how many
        return (int(first) + (bits >> np.uint64(32)) % np.uint64(int(second))).astype(np.uint8).tobytes()
    unit = (bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
    values = np.float32(first) + (unit - np.float32(0.5)) * np.float32(second)
    assert values.dtype == np.float32
    if dtype == "F32":
        return values.tobytes()
    if dtype == "F16":
        return values.astype(np.float16).tobytes()
    words = values.view(np.uint32)
    rounded = words + np.uint32(0x7FFF) + ((words >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype(np.uint16).tobytes()


def uniform(dtype, shape, offset, amplitude):
    return f"{dtype} {'x'.join(map(str, shape))} {offset:.6g} {amplitude:.6g}"


def matrix(tensors, path, shape, dtype, quantization, std):
    """A weight matrix, or one for each expert, whose elements spread by `std`."""
    *outer, width = shape
    amplitude = math.sqrt(12) * std
    if quantization is None:
        tensors[f"{path}.weight"] = uniform(dtype, shape, 0.0, amplitude)
        return
    bits, group_size = quantization["bits"], quantization["group_size"]
    words = "x".join(map(str, [*outer, width * bits // 32]))
    groups = (*outer, width // group_size)
    # Not a number is an E4M3 code: without bit 6 of each byte it does not occur.
    mask = 0xBFBFBFBF if quantization["mode"] == "mxfp8" else 0xFFFFFFFF
    tensors[f"{path}.weight"] = f"U32 {words} {mask} 0"
    if quantization["mode"] == "affine":
        step = amplitude / (2**bits - 1)
        tensors[f"{path}.scales"] = uniform(dtype, groups, step, step / 2)
        tensors[f"{path}.biases"] = uniform(dtype, groups, -amplitude / 2, amplitude / 10)
    else:
        least, number = {"mxfp4": (121, 3), "nvfp4": (16, 8), "mxfp8": (124, 2)}[quantization["mode"]]
        tensors[f"{path}.scales"] = f"U8 {'x'.join(map(str, groups))} {least} {number}"


def linear_modules(model):
    """The modules that hold a weight matrix, or one for each expert, by path."""
    kinds = (nn.Linear, nn.Embedding, SwitchLinear)
    return {path: module for path, module in model.named_modules() if isinstance(module, kinds)}


def recipes(config, dtype, quantization_of):
    """A recipe for each tensor of the model that mlx-lm makes from `config`."""
    model_class, arguments = _get_classes(config)
    model = model_class(arguments.from_dict(config))
    tensors = {}
    linears = linear_modules(model)
    for path, module in linears.items():
        shape = module.weight.shape
        is_table = shape[0] == VOCAB
        std = (2.0 if is_table else 1.3) / math.sqrt(shape[-1])
        matrix(tensors, path, shape, dtype, quantization_of(path), std)
    for name, value in tree_flatten(model.parameters()):
        path, _, kind = name.rpartition(".")
        if path in linears and kind == "weight":
            continue
        if path.endswith("norm"):
            tensors[name] = uniform(dtype, value.shape, 1.0, 0.4)
        elif kind == "bias" or name.endswith("e_score_correction_bias"):
            tensors[name] = uniform(dtype, value.shape, 0.0, 0.4)
        elif kind == "weight" and value.ndim == 2:  # a router that is never quantised
            matrix(tensors, path, value.shape, dtype, None, 1.3 / math.sqrt(value.shape[-1]))
        else:
            raise ValueError(f"no recipe for {name}")
    return {name: tensors[name] for name in sorted(tensors)}


def per_expert(tensors):
    """The tensors as older conversions store them: those of each expert by themselves."""
    split = {}
    for name, recipe in tensors.items():
        if ".switch_mlp." not in name:
            split[name] = recipe
            continue
        dtype, shape, *rest = recipe.split()
        experts, *shape = shape.split("x")
        for idx in range(int(experts)):
            own = name.replace(".switch_mlp.", f".experts.{idx}.")
            if "block_sparse_moe" in own:
                for stacked, old in (("gate_proj", "w1"), ("down_proj", "w2"), ("up_proj", "w3")):
                    own = own.replace(stacked, old)
            split[own] = " ".join([dtype, "x".join(shape), *rest])
    return split


def quantization_config(config, quantization_of):
    """As mlx-lm writes it: a default, and an entry for each layer that differs."""
    model_class, arguments = _get_classes(config)
    paths = linear_modules(model_class(arguments.from_dict(config)))
    layers = {path: quantization_of(path) for path in paths}
    formats = [quantization for quantization in layers.values() if quantization]
    if not formats:
        return {}
    default = max(formats, key=formats.count)
    others = {
        name: False if quantization is None else quantization
        for name, quantization in layers.items()
        if quantization != default
    }
    return dict(default) | others


# --------------------------------------------------------------------------------------------------
# Reference
# --------------------------------------------------------------------------------------------------


def write_checkpoint(path, case, config, tensors):
    """A safetensors file, and the digest of its data."""
    header, data = {}, b""
    for name, recipe in tensors.items():
        dtype, shape, *_ = recipe.split()
        body = tensor_bytes(case, name, recipe)
        header[name] = {
            "dtype": dtype,
            "shape": [int(dim) for dim in shape.split("x")],
            "data_offsets": [len(data), len(data) + len(body)],
        }
        data += body
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    (path / "config.json").write_text(json.dumps(config, indent=1))
    return hashlib.sha256(data).hexdigest()


def widened(model):
    def widen(value):
        return value.astype(mx.float32) if mx.issubdtype(value.dtype, mx.floating) else value

    model.update(tree_unflatten([(k, widen(v)) for k, v in tree_flatten(model.parameters())]))


def significant(values):
    return [float(f"{value:.7g}") for value in np.array(values, dtype=np.float64).tolist()]


def reference(path, prompt):
    model, _ = load_model(path)
    widened(model)
    logits = np.array(model(mx.array(prompt)[None])[0])
    states = np.array(model.model(mx.array(prompt)[None])[0], dtype=np.float64)
    tokens, margins = [], []
    for token, logprobs in generate_step(mx.array(prompt), model, max_tokens=GREEDY_TOKENS):
        best = np.sort(np.array(logprobs))[-2:]
        tokens.append(int(token))
        margins.append(float(best[1] - best[0]))
    return dict(
        logits=significant(logits[-1]),
        best=np.argmax(logits, axis=-1).tolist(),
        greedy=tokens,
        margins=significant(margins),
        mean=significant(states.mean(axis=0)[:POOLED]),
        last=significant(states[-1][:POOLED]),
    )


def main():
    prompt = (random_bits("prompt", PROMPT_TOKENS) % np.uint64(VOCAB)).tolist()
    results = []
    for name, config, dtype, quantization_of in cases():
        tensors = recipes(config, dtype, quantization_of)
        if "-per-expert-" in name:
            tensors = per_expert(tensors)
        quantization = quantization_config(config, quantization_of)
        if quantization:
            config = config | dict(quantization=quantization, quantization_config=quantization)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            digest = write_checkpoint(path, name, config, tensors)
            result = reference(path, prompt)
        case = dict(name=name, dtype=dtype, config=config, tensors=tensors, sha256=digest) | result
        results.append(case)
        print(f"{name}: least margin {min(result['margins']):.1e}, {len(set(result['greedy']))} tokens", flush=True)
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in results)
    head = json.dumps(dict(mlx=mx.__version__, mlx_lm=mlx_lm.__version__, prompt=prompt))[:-1]
    Path(sys.argv[1]).write_text(f'{head}, "cases": [\n{lines}\n]}}\n')


main()
