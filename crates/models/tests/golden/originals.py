"""Tensors as the makers of a model publish them, from those of mlx-lm's conversion: each function
undoes what mlx-lm's `sanitize` does for a family."""

# Families whose norms lack the one that conversions have added, except those of the nets' results.
SHIFTED = ("qwen3_next", "qwen3_5", "qwen3_5_moe", "step3p5")
NORMS = ("layernorm.weight", "model.norm.weight", ".q_norm.weight", ".k_norm.weight")

# Where families have gate and up of all experts in one tensor, and down; `columns` are transposed.
FUSED = dict(
    qwen3_5_moe=("experts.gate_up_proj", "experts.down_proj", "rows"),
    qwen3_vl_moe=("experts.gate_up_proj", "experts.down_proj", "columns"),
    llama4=("experts.gate_up_proj", "experts.down_proj", "columns"),
    mistral4=("experts.gate_up_proj", "experts.down_proj", "rows"),
    granitemoe=("input_linear.weight", "output_linear.weight", "rows"),
)

# Parts of names in conversions, and what makers name them.
RENAMED = dict(
    bailing_moe=[(".gate.gate_proj.", ".gate.")],
    step3p5=[
        (".mlp.switch_mlp.", ".moe."),
        (".mlp.gate.gate.", ".moe.gate."),
        (".mlp.gate.router_bias", ".moe.router_bias"),
        (".mlp.share_expert.", ".share_expert."),
    ],
    lfm2_moe=[("gate_proj.", "w1."), ("down_proj.", "w2."), ("up_proj.", "w3.")],
    granitemoehybrid=[(".mlp.down_proj.", ".shared_mlp.output_linear.")],
)

# Families whose experts lie stacked in originals too.
STACKED = ("step3p5",)

# Families that see: the language model has another prefix there.
NESTED = ("qwen3_5", "qwen3_5_moe", "qwen3_vl_moe")

# What mlx-lm does not use either.
EXTRA = dict(
    qwen3_next=["mtp.norm.weight"],
    qwen3_5=["model.visual.merger.norm.weight", "mtp.norm.weight"],
    qwen3_5_moe=["model.visual.merger.norm.weight", "mtp.norm.weight"],
    llama4=["vision_model.class_embedding", "multi_modal_projector.linear_1.weight"],
    glm4_moe=["model.layers.3.eh_proj.weight"],
    ernie4_5_moe=[
        "model.layers.1.mlp.moe_statics.e_score_correction_bias",
        "model.mtp_block.0.input_layernorm.weight",
    ],
)


def parts(recipe):
    dtype, shape, *rest = recipe.split()
    return dtype, [int(dim) for dim in shape.split("x") if dim != "scalar"], rest


def recipe_of(dtype, shape, rest):
    return " ".join([dtype, "x".join(map(str, shape)) or "scalar", *rest])


def fused(name, recipe, names):
    """The tensor that a projection of all experts is a part of; `None` for one of the two."""
    gate_up, down, order = names
    dtype, (experts, rows, columns), rest = parts(recipe)
    block, _, projection = name.removesuffix(".weight").rpartition(".")
    block = block.rpartition(".")[0]
    if projection == "up_proj":
        return None
    if projection == "gate_proj":
        rows *= 2
    path = f"{block}.{down if projection == 'down_proj' else gate_up}"
    shape = [experts, rows, columns] if order == "rows" else [experts, columns, rows]
    return path, recipe_of(dtype, shape, rest)


def per_expert(name, recipe, stacked):
    dtype, (experts, *shape), rest = parts(recipe)
    for idx in range(experts):
        yield name.replace(stacked, f".experts.{idx}."), recipe_of(dtype, shape, rest)


def original(tensors, family):
    stored = {}
    for name, recipe in tensors.items():
        dtype, shape, rest = parts(recipe)
        stacked = next((part for part in (".switch_mlp.", ".experts.") if part in name), None)
        if stacked and family in FUSED:
            found = fused(name, recipe, FUSED[family])
            stored.update([found] if found else [])
            continue
        for ours, theirs in RENAMED.get(family, []):
            name = name.replace(ours, theirs)
        if family == "granitemoehybrid" and ".mlp." in name:
            if ".gate_proj." in name:
                name = name.replace(".mlp.gate_proj.", ".shared_mlp.input_linear.")
                stored[name] = recipe_of(dtype, [2 * shape[0], *shape[1:]], rest)
            continue
        if stacked and family not in STACKED:
            stored.update(per_expert(name, recipe, stacked))
            continue
        if name.endswith(("conv1d.weight", ".conv.weight")):
            channels, width, _ = shape
            recipe = recipe_of(dtype, [channels, 1, width], rest)
        if name.endswith((".alpha_p", ".alpha_n")):
            recipe = recipe_of(dtype, [1], rest)
        if family in SHIFTED and name.endswith(NORMS):
            recipe = recipe_of(dtype, shape, ["0", rest[1]])
        stored[name] = recipe
    if family in NESTED:
        nested = {}
        for name, recipe in stored.items():
            name = name.replace("language_model.model.", "model.language_model.")
            nested[name.replace("language_model.lm_head.", "lm_head.")] = recipe
        stored = nested
    dtype = next(iter(stored.values())).split()[0]
    for name in EXTRA.get(family, []):
        stored[name] = f"{dtype} 8 1 0.4"
    return {name: stored[name] for name in sorted(stored)}
