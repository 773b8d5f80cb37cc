"""Writes what mlx-lm computes for tiny checkpoints, a file for each family, to ../data/golden/.

Run by `cargo xtask golden [FAMILY…]`, which brings the pinned versions. A family is a file in
families/ whose `cases()` yields name, configuration, type, and the quantisation of each path. A
checkpoint is not stored: each of its tensors is a recipe ("F32 128x128 0.0 0.4": type, shape, offset,
amplitude) over random bits that depend on case and tensor name alone. tests/it/recipe.rs follows the
same recipes; a digest of all bytes shows that both made the same tensors. mlx-lm loads the
checkpoint like any other.

f32 checkpoints are computed as they are. Of f16 and bf16 ones the stored values are exact: their
weights are loaded by mlx-lm, then widened, and computed in f32.
"""

import hashlib
import importlib
import json
import math
import re
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import numpy as np

mx.set_default_device(mx.cpu)

import mlx.nn as nn  # noqa: E402
import mlx_lm  # noqa: E402
from mlx.utils import tree_flatten, tree_unflatten  # noqa: E402
from mlx_lm.generate import generate_step  # noqa: E402
from mlx_lm.models.mla import MultiLinear  # noqa: E402
from mlx_lm.models.switch_layers import SwitchLinear  # noqa: E402
from mlx_lm.utils import MODEL_REMAPPING, _get_classes, load_model  # noqa: E402

from families import VOCAB  # noqa: E402
import deepseek_v41  # noqa: E402
import vary  # noqa: E402
import vlm  # noqa: E402
from originals import original  # noqa: E402
from published import published  # noqa: E402

PROMPT_TOKENS, GREEDY_TOKENS = 40, 16
# Choices of other dimensions that are tried for a case.
VARY_ATTEMPTS = 4
# The name that transformers gives what mlx-lm knows by the other.
MODEL_REMAPPING["lfm2_vl"] = "lfm2-vl"
# Dimensions of an embedding that are written down.
POOLED = 32
# Families whose large factor of embeddings would otherwise outweigh the layers.
SCALED = ("afmoe", "gemma", "gemma2", "gemma3n", "gemma4_text", "gemma4", "gemma4_unified")
# Families that do not scale the products of queries and keys: their norms do.
UNSCALED_SCORES = ("gemma3n", "gemma4_text", "gemma4", "gemma4_unified")
# Families that mlx-lm lacks: the family that their text part is, with what differs in its configuration.
# On text, mlx-vlm 0.7.10 computes the same.
TEXT_PARTS = dict(
    glm4v=dict(model_type="glm4", rope_traditional=True),
    glm4v_moe=dict(model_type="glm4_moe"),
    # Its names and forms of fields are others.
    step3p7=dict(model_type="step3p5", share_expert_dim=160, moe_layers_enum="1,3"),
    mimo_v2=dict(model_type="mimo_v2_flash"),
    qwen3_omni_moe=dict(model_type="qwen3_moe"),
)
# Families of which mlx-lm has only the model that also sees.
TEXT_MODELS = dict(minimax_m3="minimax_m3_vl")
# The shape of a tensor without dimensions.
SCALAR = "scalar"
# Tensors that are stored in single precision, whatever the type of a model: what `vlm.FAMILIES` have of them.
SINGLE = ("fn", "base", "scale", "A_log", "dt_bias", "index_kpool_compress_ape", "index_kpool_compress_gate", "attn_sink")
# Families whose norms multiply by one more than the weight.
ADDING_ONE = ("gemma", "gemma2", "gemma3", "gemma3_text", "nemotron", "minimax_m3_vl", "qwen4_exp")


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


def dimensions(shape):
    """The dimensions of `2x3`; a single number has none."""
    return [] if shape == SCALAR else [int(dim) for dim in shape.split("x")]


def tensor_bytes(case, name, recipe):
    dtype, shape, *numbers = recipe.split()
    first, second = (*numbers, "0")[:2]
    count = math.prod(dimensions(shape))
    bits = random_bits(f"{case}/{name}", count)
    if dtype == "U32":  # a mask and nothing
        return ((bits >> np.uint64(32)).astype(np.uint32) & np.uint32(int(first))).tobytes()
    if dtype == "I32":  # how many values, and the step from one to the next, below which places in a row differ
        return ((bits >> np.uint64(32)) % np.uint64(int(first)) * np.uint64(int(second)) + np.arange(count, dtype=np.uint64) % np.uint64(int(second))).astype(np.uint32).tobytes()
    if dtype == "I64":  # the values
        return np.array(numbers, dtype=np.int64).tobytes()
    if dtype == "F8_E4M3":  # a mask and nothing
        return ((bits >> np.uint64(32)).astype(np.uint8) & np.uint8(int(first))).tobytes()
    if dtype in ("U8", "I8", "F8_E8M0"):  # the least value and how many
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
    return f"{dtype} {'x'.join(map(str, shape)) or SCALAR} {offset:.6g} {amplitude:.6g}"


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


def model_of(config):
    """The model that the reference makes from a configuration."""
    if vlm.computes(config):
        return vlm.model(config)
    model_class, arguments = _get_classes(config)
    return model_class(arguments.from_dict(config))


def linear_modules(model):
    """The modules that hold a weight matrix, or one for each expert, by path."""
    kinds = (nn.Linear, nn.Embedding, SwitchLinear, MultiLinear)
    if type(model).__module__.startswith("mlx_vlm"):
        kinds += vlm.matrices()
    return {path: module for path, module in model.named_modules() if isinstance(module, kinds)}


def is_norm(path):
    # Some layers have several norms of a name: `input_layernorm.0`.
    last = re.sub(r"\.\d+$", "", path).rpartition(".")[2]
    is_named = last.rstrip("_12").endswith("norm") or last in ("ln_1", "ln_2", "ln_f", "norm_f")
    return is_named or last.startswith("norm_") or ".norms." in path


def recipes(config, dtype, quantization_of):
    """A recipe for each tensor of the model that the reference makes from `config`."""
    model, own_dtype = model_of(config), dtype
    tensors = {}
    linears = linear_modules(model)
    for path, module in linears.items():
        shape = module.weight.shape
        is_table = shape[0] == VOCAB
        std = (2.0 if is_table else 1.3) / math.sqrt(shape[-1])
        if is_table and config["model_type"] in SCALED:
            std /= 4
        matrix(tensors, path, shape, dtype, quantization_of(path), std)
    for name, value in tree_flatten(model.parameters()):
        path, _, kind = name.rpartition(".")
        # Some name the connections of streams without a module.
        kind = re.sub("^hc_(attn|ffn)_", "", kind)
        if path in linears and kind == "weight":
            continue
        dtype = "F32" if config["model_type"] in vlm.FAMILIES and kind in SINGLE else own_dtype
        if value.dtype == mx.int64:
            numbers = " ".join(map(str, value.tolist()))
            tensors[name] = f"I64 {'x'.join(map(str, value.shape))} {numbers}"
        elif (kind == "weight" and is_norm(path)) or kind in ("q_weight", "k_weight"):
            is_added = config["model_type"] in ADDING_ONE and not path.endswith("linear_attn.norm")
            offset = 0.0 if is_added else 1.0
            if config["model_type"] in UNSCALED_SCORES and path.endswith(("q_norm", "k_norm")):
                offset = 0.5
            tensors[name] = uniform(dtype, value.shape, offset, 0.4)
        elif path.endswith("act_fn"):  # parameters, close to those that training starts from
            tensors[name] = uniform(dtype, value.shape, value.item(), 0.2 * abs(value.item()))
        elif kind in ("bias", "bias_vl") or name.endswith(("e_score_correction_bias", "expert_bias", "router_bias")):
            tensors[name] = uniform(dtype, value.shape, 0.0, 0.4)
        elif kind in ("sinks", "attention_sink_bias", "attn_sink"):
            tensors[name] = uniform(dtype, value.shape, 0.5, 3.0)
        elif kind in ("layer_scalar", "per_expert_scale", "correct_output_scale") or name.endswith("router.scale"):
            tensors[name] = uniform(dtype, value.shape, 1.0, 0.6)
        elif kind == "D":
            tensors[name] = uniform(dtype, value.shape, 1.0, 1.0)
        elif kind in ("fn", "index_kpool_compress_gate"):
            tensors[name] = uniform(dtype, value.shape, 0.0, math.sqrt(12 / value.shape[-1]) * 1.6)
        elif kind in ("base", "index_kpool_compress_ape", "ape"):
            tensors[name] = uniform(dtype, value.shape, 0.0, 2.5)
        elif kind == "tid2eid":  # experts of a token, all different
            _, chosen = value.shape
            tensors[name] = f"I32 {VOCAB}x{chosen} {config['n_routed_experts'] // chosen} {chosen}"
        elif kind == "scale":
            tensors[name] = uniform(dtype, value.shape, 1.0, 0.6)
        elif kind == "A_log":
            tensors[name] = uniform(dtype, value.shape, -1.0, 3.0)
        elif kind == "dt_bias":
            tensors[name] = uniform(dtype, value.shape, 0.0, 1.0)
        elif path.endswith(("conv1d", ".conv")):
            tensors[name] = uniform(dtype, value.shape, 0.0, 2.0)
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
            for stacked, old in (("fc1", "up_proj"), ("fc2", "down_proj")):
                own = own.replace(f".{stacked}.", f".{old}.")
            if "block_sparse_moe" in own:
                for stacked, old in (("gate_proj", "w1"), ("down_proj", "w2"), ("up_proj", "w3")):
                    own = own.replace(stacked, old)
            split[own] = " ".join([dtype, "x".join(shape), *rest])
    return split


def openai_blocks(tensors):
    """gpt-oss as OpenAI stores it: codes in blocks of 16 bytes, rows of gate and up in turn."""
    stored = {}
    for name, recipe in tensors.items():
        path, _, kind = name.rpartition(".")
        if ".experts." not in name or path.endswith("up_proj"):
            if ".experts." not in name:
                stored[name] = recipe
            continue
        dtype, shape, *rest = recipe.split()
        shape = [int(dim) for dim in shape.split("x")]
        if path.endswith("gate_proj"):
            path = path.replace("gate_proj", "gate_up_proj")
            shape[1] *= 2
        if kind == "weight":
            # Eight codes of a word, 32 of a block.
            dtype, rest = "U8", ["0", "256"]
            shape[2:] = [shape[2] // 4, 16]
        ending = dict(weight="blocks", scales="scales", bias="bias")[kind]
        stored[f"{path}_{ending}"] = " ".join([dtype, "x".join(map(str, shape)), *rest])
    return {name: stored[name] for name in sorted(stored)}


def joint(tensors, config, dtype, quantization):
    """The tensors as older conversions of DeepSeek V3 store them: one matrix of all keys and values."""
    split = (".embed_q.", ".unembed_out.")
    whole = {name: it for name, it in tensors.items() if not any(part in name for part in split)}
    rank = config["kv_lora_rank"]
    rows = config["num_attention_heads"] * (config["qk_nope_head_dim"] + config["v_head_dim"])
    for name in tensors:
        path, is_there, _ = name.partition(".embed_q.weight")
        if is_there:
            std = 1.3 / math.sqrt(rank)
            matrix(whole, f"{path}.kv_b_proj", [rows, rank], dtype, quantization, std)
    return {name: whole[name] for name in sorted(whole)}


def widen_joint(path):
    """mlx-lm would quantise the halves of `kv_b_proj` anew; the reference has their exact values."""
    file = str(path / "model.safetensors")
    tensors = mx.load(file)
    for name in [name for name in tensors if name.endswith(".kv_b_proj.scales")]:
        module = name.removesuffix(".scales")
        scales, biases = tensors.pop(name), tensors.pop(f"{module}.biases")
        codes = tensors[f"{module}.weight"]
        config = json.loads((path / "config.json").read_text())
        group_size = config["kv_lora_rank"] // scales.shape[-1]
        bits = codes.shape[-1] * 32 // config["kv_lora_rank"]
        wide = mx.dequantize(codes, scales, biases, group_size=group_size, bits=bits)
        tensors[f"{module}.weight"] = wide
    mx.save_safetensors(file, tensors)


def original_names(tensors):
    """The tensors under the names of transformers, and one of the vision tower."""
    renamed = {"model.visual.merger.norm.weight": "F32 8 1 0.4"}
    for name, recipe in tensors.items():
        name = name.replace("language_model.model.", "model.language_model.")
        renamed[name.replace("language_model.lm_head.", "lm_head.")] = recipe
    return renamed


def quantization_config(config, quantization_of):
    """As mlx-lm writes it: a default, and an entry for each layer that differs."""
    prefix = vlm.PREFIX if vlm.computes(config) else ""
    layers = {prefix + path: quantization_of(path) for path in linear_modules(model_of(config))}
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


def prefix_of_text(config):
    """What the names of a text part's tensors begin with."""
    return "thinker.language_model." if "thinker_config" in config else "language_model."


def config_of_text(config):
    text = config.get("thinker_config", config)["text_config"]
    head_dim = text["hidden_size"] // text["num_attention_heads"]
    return dict(head_dim=head_dim) | text | TEXT_PARTS[config["model_type"]]


def text_part(config, path):
    """The path of what mlx-lm loads for a family that it lacks: the checkpoint's tensors without their
    prefix."""
    quantization = {key: config[key] for key in ("quantization", "quantization_config") if key in config}
    text = config_of_text(config) | quantization
    (path / "text").mkdir()
    weights = mx.load(str(path / "model.safetensors"))
    weights = {name.removeprefix(prefix_of_text(config)): value for name, value in weights.items()}
    mx.save_safetensors(str(path / "text" / "model.safetensors"), weights)
    (path / "text" / "config.json").write_text(json.dumps(text, indent=1))
    return path / "text"


def whole_config(config):
    return dict(model_type=TEXT_MODELS[config["model_type"]], text_config=config)


def whole(config, path):
    """The path of what mlx-lm loads for a text model alone: its tensors with the prefix of a model that sees."""
    (path / "whole").mkdir()
    weights = mx.load(str(path / "model.safetensors"))
    weights = {f"language_model.{name}": value for name, value in weights.items()}
    mx.save_safetensors(str(path / "whole" / "model.safetensors"), weights)
    formats = config.get("quantization", {})
    formats = {f"language_model.{name}" if "." in name else name: it for name, it in formats.items()}
    text = {key: value for key, value in config.items() if not key.startswith("quantization")}
    both = dict(quantization=formats, quantization_config=formats) if formats else {}
    (path / "whole" / "config.json").write_text(json.dumps(whole_config(text) | both, indent=1))
    return path / "whole"


def write_checkpoint(path, case, config, tensors):
    """A safetensors file, and the digest of its data."""
    header, data = {}, b""
    for name, recipe in tensors.items():
        dtype, shape, *_ = recipe.split()
        body = tensor_bytes(case, name, recipe)
        header[name] = {
            "dtype": dtype,
            "shape": dimensions(shape),
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


def with_cache(model, prompt):
    """Without caches, mlx-lm's layers that share the keys of others compute their own."""
    decoder = model.model.language_model
    norm, states = decoder.norm, []

    def remember(x):
        states.append(norm(x))
        return states[-1]

    decoder.norm = remember
    logits = np.array(model(mx.array(prompt)[None], cache=model.make_cache())[0])
    decoder.norm = norm
    return logits, np.array(states[0][0], dtype=np.float64)


def reference(path, prompt, is_vlm):
    model = vlm.load(path) if is_vlm else load_model(path)[0]
    widened(model)
    if is_vlm:
        logits, states = (np.array(it, dtype=np.float64) for it in vlm.logits_and_states(model, prompt))
        steps = vlm.generate(model, prompt, GREEDY_TOKENS)
    elif model.model_type == "gemma3n":
        logits, states = with_cache(model, prompt)
    else:
        logits = np.array(model(mx.array(prompt)[None])[0])
        text = getattr(model, "language_model", model)
        names = ("model", "backbone", "transformer")
        decoder = next(getattr(text, name) for name in names if hasattr(text, name))
        states = np.array(decoder(mx.array(prompt)[None], None)[0], dtype=np.float64)
    tokens, margins = [], []
    if not is_vlm:
        steps = generate_step(mx.array(prompt), model, max_tokens=GREEDY_TOKENS)
    for token, logprobs in steps:
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


def compute(name, config, dtype, quantization_of, prompt):
    """One case: the checkpoint's recipes and what mlx-lm computes for it."""
    is_text_part, is_vlm = config["model_type"] in TEXT_PARTS, vlm.computes(config)
    own = config
    if is_text_part:
        own = config_of_text(config)
    is_whole = config["model_type"] in TEXT_MODELS
    if is_whole:
        own = whole_config(config)
    tensors = recipes(own, dtype, quantization_of)
    if is_whole:
        tensors = {name.removeprefix("language_model."): recipe for name, recipe in tensors.items()}
    if is_text_part or is_vlm:
        tensors = {f"{prefix_of_text(config)}{name}": recipe for name, recipe in tensors.items()}
    if "-per-expert-" in name:
        tensors = per_expert(tensors)
    if "-kv-b-" in name:
        tensors = joint(tensors, config, dtype, quantization_of("kv_b_proj"))
    if "-original-names-" in name:
        tensors = original_names(tensors)
    elif "-original-" in name:
        tensors = original(tensors, config)
    elif "-published-" in name:
        if "kv_lora_rank" in own:
            tensors = joint(tensors, own, dtype, None)
        tensors, stated = published(tensors, config, name, per_expert)
        config = config | stated
    quantization = quantization_config(own, quantization_of)
    if is_whole:
        quantization = {path.removeprefix("language_model."): it for path, it in quantization.items()}
    if "-openai-blocks-" in name:
        tensors = openai_blocks(tensors)
        config = config | dict(quantization_config=dict(quant_method="mxfp4"))
    elif quantization:
        config = config | dict(quantization=quantization, quantization_config=quantization)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        digest = write_checkpoint(path, name, config, tensors)
        files = deepseek_v41.files(config, VOCAB)
        for file, content in files.items():
            (path / file).write_text(json.dumps(content))
        if "-kv-b-" in name:
            widen_joint(path)
        loaded = text_part(config, path) if is_text_part else whole(config, path) if is_whole else path
        result = reference(loaded, prompt, is_vlm)
    margin, tokens = min(result["margins"]), len(set(result["greedy"]))
    print(f"{name}: least margin {margin:.1e}, {tokens} tokens", flush=True)
    case = dict(name=name, dtype=dtype, config=config, tensors=tensors, sha256=digest)
    return case | (dict(files=files) if files else {}) | result


def vary_all(cases, seed, prompt):
    """Each case in single precision with other dimensions, if the reference computes one of a few choices. In
    16 bits, another rounding may make a router choose other experts."""
    for case in cases:
        if case[2] != "F32":
            continue
        for number in range(VARY_ATTEMPTS):
            choice = vary.choose(case, seed, number)
            vary.ties.clear()
            try:
                found = compute(*choice, prompt)
            except Exception as error:  # noqa: BLE001
                print(f"{choice[0]}: not computed: {type(error).__name__}: {str(error)[:100]}")
                continue
            if vary.ties:
                print(f"{choice[0]}: not used: equal scores at the end of a choice")
            elif all(map(math.isfinite, found["logits"])):
                yield found
                break


def main():
    """Arguments: the folder to write to, `--vary SEED` for other dimensions, and the families; all if there
    are none."""
    output, *families = sys.argv[1:]
    seed = None
    if families[:1] == ["--vary"]:
        _, seed, *families = families
        vary.watch_choices()
    folder = Path(__file__).parent / "families"
    known = sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
    prompt = (random_bits("prompt", PROMPT_TOKENS) % np.uint64(VOCAB)).tolist()
    Path(output).mkdir(exist_ok=True)
    for family in families or known:
        packages = dict(mlx=mx.__version__, mlx_lm=mlx_lm.__version__)
        if family in vlm.FAMILIES:
            packages |= dict(mlx_vlm=version("mlx-vlm"))
        head = json.dumps(packages | dict(prompt=prompt))[:-1]
        cases = importlib.import_module(f"families.{family}").cases()
        results = (compute(*case, prompt) for case in cases) if seed is None else vary_all(cases, seed, prompt)
        lines = [json.dumps(result, separators=(",", ":")) for result in results]
        text = ",\n".join(lines)
        (Path(output) / f"{family}.json").write_text(f'{head}, "cases": [\n{text}\n]}}\n')


main()
