"""Checkpoints that their makers quantised in a way of their own: what a case's name states, and what `config.json`
states of it."""

import math

from originals import original, parts, recipe_of

# Rows and columns of an FP8 block.
BLOCK = 128
# Columns of a row that have one scale in 4 bits.
GROUP = 32
# Codes without bit 6 are less than 2, and none of them is no number. Their root mean square:
FP8_SPREAD, FP8_MASK = 0.6, 0xBF
# The same of integers from -8 to 7.
INT4_SPREAD = 4.6

FP8 = dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", modules_to_not_convert=["lm_head"])
INT4 = dict(
    quant_method="compressed-tensors",
    format="pack-quantized",
    quantization_status="compressed",
    ignore=["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*"],
    config_groups=dict(
        group_0=dict(
            input_activations=None,
            output_activations=None,
            targets=["Linear"],
            weights=dict(
                actorder=None,
                dynamic=False,
                group_size=GROUP,
                num_bits=4,
                strategy="group",
                symmetric=True,
                type="int",
            ),
        )
    ),
)

AWQ = dict(quant_method="awq", version="gemm", bits=4, group_size=64, zero_point=True, modules_to_not_convert=None)
# The root mean square of the difference of two codes of 4 bits.
AWQ_SPREAD = 6.5

TILES = FP8 | dict(scale_fmt="ue8m0", weight_block_size=[32, 32])
# E8M0 scales with which codes spread by about 0.1: the least, and how many.
TILE_SCALES, FP4_SCALES = ["124", "2"], ["121", "3"]

# Parts of the names of DeepSeek V4.1 in mlx-lm's conversions, and what DeepSeek names them.
DEEPSEEK_NAMES = [
    ("lm_head.", "head."),
    ("model.embed_tokens.", "embed."),
    ("model.", ""),
    (".mlp.experts.switch_mlp.", ".mlp.switch_mlp."),
    (".compressor.kv_proj.", ".compressor.wkv."),
    (".compressor.gate_proj.", ".compressor.wgate."),
    (".compressor.kv_norm.", ".compressor.norm."),
    (".indexer.k_proj.", ".indexer.wk."),
    (".q_a_proj.", ".wq_a."),
    (".q_b_proj.", ".wq_b."),
    (".kv_proj.", ".wkv."),
    (".o_a_proj.", ".wo_a."),
    (".o_b_proj.", ".wo_b."),
    (".q_a_norm.", ".q_norm."),
    (".sinks", ".attn_sink"),
    (".attn_hc.", ".hc_attn_"),
    (".ffn_hc.", ".hc_ffn_"),
    (".gate.e_score_correction_bias", ".gate.bias"),
    (".gate_proj.", ".w1."),
    (".down_proj.", ".w2."),
    (".up_proj.", ".w3."),
    (".input_layernorm.", ".attn_norm."),
    (".post_attention_layernorm.", ".ffn_norm."),
    (".self_attn.", ".attn."),
    (".mlp.", ".ffn."),
]


def published(tensors, config, name, per_expert):
    """The tensors of a maker, and what `config.json` states of them."""
    if "-tiles-" in name:
        for theirs, own in DEEPSEEK_NAMES:
            tensors = {name.replace(theirs, own): recipe for name, recipe in tensors.items()}
        return in_tiles(per_expert(tensors)), dict(quantization_config=TILES)
    if "-int4-" in name:
        stated = dict(quantization_config=INT4)
        if "text_config" in config:
            stated = dict(text_config=config["text_config"] | stated)
        return in_int4(per_expert(tensors)), stated
    if "-awq-" in name:
        return in_awq(tensors), dict(quantization_config=AWQ)
    if "-scaled-" in name:
        stated = FP8 | dict(activation_scheme="static", weight_block_size=None)
        return in_fp8(original(tensors, config), of_matrix), dict(quantization_config=stated)
    stated = FP8 | dict(weight_block_size=[BLOCK, BLOCK])
    return in_fp8(per_expert(tensors), of_blocks), dict(quantization_config=stated)


def is_of_layer(name):
    """Whether a matrix is quantised: not the tables of tokens, and not routers."""
    return "layers." in name and not name.endswith(("mlp.gate.weight", "moe.gate.weight"))


def std(recipe):
    """How far elements spread."""
    return float(recipe.split()[3]) / math.sqrt(12)


def of_blocks(rows, columns):
    """The shape and type of the factors of a matrix."""
    return [-(-rows // BLOCK), -(-columns // BLOCK)], "F32"


def of_matrix(*shape):
    """One factor of a matrix, or of each expert."""
    return [] if len(shape) == 2 else [shape[0], 1, 1], "BF16"


def in_fp8(tensors, factors_of):
    stored = {}
    for name, recipe in tensors.items():
        dtype, shape, rest = parts(recipe)
        is_matrix = len(shape) > 1 and (name.endswith(".weight") or ".experts." in name)
        if not (is_matrix and is_of_layer(name)):
            stored[name] = recipe
            continue
        step = std(recipe) / FP8_SPREAD
        factors, of_factors = factors_of(*shape)
        stored[name] = recipe_of("F8_E4M3", shape, [str(FP8_MASK), "0"])
        stored[f"{name}_scale_inv"] = recipe_of(of_factors, factors, [f"{step:.6g}", f"{step / 2:.6g}"])
        if factors == []:
            stored[name.replace(".weight", ".activation_scale")] = "BF16 scalar 1 0.4"
    return {name: stored[name] for name in sorted(stored)}


def in_int4(tensors):
    stored = {}
    for name, recipe in tensors.items():
        dtype, shape, rest = parts(recipe)
        if ".experts." not in name or not name.endswith(".weight"):
            stored[name] = recipe
            continue
        rows, columns = shape
        step = std(recipe) / INT4_SPREAD
        stored[f"{name}_packed"] = recipe_of("I32", [rows, columns // 8], [str(2**32), "1"])
        stored[f"{name}_scale"] = recipe_of(dtype, [rows, columns // GROUP], [f"{step:.6g}", f"{step / 2:.6g}"])
        stored[f"{name}_shape"] = f"I64 2 {rows} {columns}"
    return {name: stored[name] for name in sorted(stored)}


def in_awq(tensors):
    """As AutoAWQ packs matrices: inputs in rows, and zero points."""
    stored = {}
    for name, recipe in tensors.items():
        dtype, shape, rest = parts(recipe)
        module, _, kind = name.rpartition(".")
        if kind != "weight" or len(shape) != 2 or not is_of_layer(name):
            stored[name] = recipe
            continue
        outputs, inputs = shape
        groups, step = inputs // AWQ["group_size"], std(recipe) / AWQ_SPREAD
        stored[f"{module}.qweight"] = recipe_of("I32", [inputs, outputs // 8], [str(2**32), "1"])
        stored[f"{module}.qzeros"] = recipe_of("I32", [groups, outputs // 8], [str(2**32), "1"])
        stored[f"{module}.scales"] = recipe_of(dtype, [groups, outputs], [f"{step:.6g}", f"{step / 2:.6g}"])
    return {name: stored[name] for name in sorted(stored)}


def in_tiles(tensors):
    """As DeepSeek publishes V4.1: E4M3 codes with a scale for a tile, and experts of E2M1 codes."""
    stored = {}
    for name, recipe in tensors.items():
        dtype, shape, rest = parts(recipe)
        path, _, kind = name.rpartition(".")
        if name.endswith(".wo_a.weight"):
            groups, rows, columns = shape
            shape = [groups * rows, columns]
            recipe = recipe_of(dtype, shape, rest)
        is_float = ".attn.w" in name or ".shared_experts." in name or ".indexer.wq" in name
        if ".experts." in name:
            rows, columns = shape
            stored[name] = recipe_of("I8", [rows, columns // 2], ["0", "256"])
            stored[f"{path}.scale"] = recipe_of("F8_E8M0", [rows, columns // GROUP], FP4_SCALES)
        elif is_float and kind == "weight":
            tiles = [-(-shape[0] // 32), shape[1] // 32]
            stored[name] = recipe_of("F8_E4M3", shape, [str(FP8_MASK), "0"])
            stored[f"{path}.scale"] = recipe_of("F8_E8M0", tiles, TILE_SCALES)
        else:
            stored[name] = recipe
    stored["mtp.0.norm.weight"] = "BF16 8 1 0.4"
    return {name: stored[name] for name in sorted(stored)}
