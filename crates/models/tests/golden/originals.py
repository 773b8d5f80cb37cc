"""Tensors as the makers of a model publish them, from those of mlx-lm's conversion: each function
undoes what mlx-lm's `sanitize` does for a family."""

# Families whose norms lack the one that conversions have added, except those of the nets' results.
SHIFTED = ("qwen3_next", "qwen3_5", "qwen3_5_moe", "step3p5")
NORMS = ("layernorm.weight", "model.norm.weight", ".q_norm.weight", ".k_norm.weight")

# Where families have gate and up of all experts in one tensor, and down; `columns` are transposed.
FUSED = dict(
    qwen3_5_moe=("experts.gate_up_proj", "experts.down_proj", "rows"),
    qwen3_vl_moe=("experts.gate_up_proj", "experts.down_proj", "columns"),
    qwen4_exp=("experts.gate_up_proj", "experts.down_proj", "rows"),
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
    deepseek_v4=[
        ("language_model.", ""),
        ("model.embed_tokens.", "embed."),
        ("lm_head.", "head."),
        ("model.hc_head.", "hc_head_"),
        ("model.", ""),
        (".attn_hc.", ".hc_attn_"),
        (".ffn_hc.", ".hc_ffn_"),
        (".gate.e_score_correction_bias", ".gate.bias"),
        *((f".{ours}_proj.", f".{theirs}.") for ours, theirs in (("gate", "w1"), ("down", "w2"), ("up", "w3"))),
    ],
    deepseek_v41=[
        ("language_model.", ""),
        ("embed_tokens.", "embed."),
        *((f".{ours}_proj.", f".{theirs}.") for ours, theirs in (("gate", "w1"), ("down", "w2"), ("up", "w3"))),
    ],
    qwen4_exp=[(".ngram_embedding.shards.", ".ngram_embedding.shard_")],
    glm5_next=[
        (".attn_hc.", ".hc_attn_"),
        (".ffn_hc.", ".hc_ffn_"),
        *((f".{it}_conv.conv.", f".{it}_conv1d.") for it in "qkv"),
    ],
)


def joined_in_glm(text):
    """Tensors that conversions join, and the numbers of rows of their parts."""
    heads, width = text["linear_num_heads"], text["linear_head_dim"]
    three = lambda ending: {f"{it}_{ending}": heads * width for it in "qkv"}
    return {
        "qkv_proj": three("proj"),
        "qkv_conv.conv": three("conv.conv"),
        "fbg_a_proj": dict(f_a_proj=width, b_proj=heads, g_a_proj=width),
        "qkv_a_proj": dict(q_a_proj=text["q_lora_rank"], kv_a_proj_with_mqa=text["kv_lora_rank"]),
    }


JOINED = dict(glm5_next=joined_in_glm)

# Families whose experts lie stacked in originals too.
STACKED = ("step3p5",)

# Families that see: the language model has another prefix there.
NESTED = ("qwen3_5", "qwen3_5_moe", "qwen3_vl_moe", "glm5_next", "qwen4_exp")

# What mlx-lm does not use either.
EXTRA = dict(
    deepseek_v4=["mtp.0.norm.weight"],
    deepseek_v41=["mtp.0.norm.weight", "vision.norm.weight"],
    qwen3_next=["mtp.norm.weight"],
    glm5_next=["model.visual.merger.norm.weight", "model.language_model.layers.5.eh_proj.weight"],
    qwen3_5=["model.visual.merger.norm.weight", "mtp.norm.weight"],
    qwen3_5_moe=["model.visual.merger.norm.weight", "mtp.norm.weight"],
    qwen4_exp=["model.visual.merger.norm.weight", "mtp.norm.weight"],
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


def apart(tensors, config):
    """The tensors without those that conversions join, gate and up of dense blocks among them."""
    joined, split = JOINED[config["model_type"]](config["text_config"]), {}
    for name, recipe in tensors.items():
        path, _, kind = name.rpartition(".")
        dtype, shape, rest = parts(recipe)
        module = next((it for it in [*joined, "gate_up_proj"] if path.endswith(f".{it}")), None)
        if module is None:
            split[name] = recipe
            continue
        for part, rows in joined.get(module, dict.fromkeys(("gate_proj", "up_proj"), shape[0] // 2)).items():
            split[f"{path.removesuffix(module)}{part}.{kind}"] = recipe_of(dtype, [rows, *shape[1:]], rest)
    return split


def original(tensors, config):
    family, stored = config["model_type"], {}
    if family in JOINED:
        tensors = apart(tensors, config)
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
        if name.endswith(".wo_a.weight"):
            groups, rank, width = shape
            recipe = recipe_of(dtype, [groups * rank, width], rest)
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
