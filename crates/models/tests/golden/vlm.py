"""Families that mlx-lm lacks: their language models in mlx-vlm."""

import importlib
import json
from types import SimpleNamespace

import mlx.core as mx
import mlx.nn as nn

import deepseek_v4
import deepseek_v41

FAMILIES = ("glm5_next", "deepseek_v4", "deepseek_v41", "qwen4_exp")

# What the names of a language model's tensors begin with.
PREFIX = "language_model."


def computes(config):
    """Whether mlx-vlm is the reference of a configuration."""
    is_in_both = config["model_type"] == "deepseek_v41" and not config["engram_layer_ids"]
    return config["model_type"] in FAMILIES and not is_in_both


def model(config):
    """The language model of a configuration."""
    kind = config["model_type"]
    of_kind = lambda module: importlib.import_module(f"mlx_vlm.models.{kind}.{module}")
    language = of_kind("language")
    if kind == "deepseek_v4":
        deepseek_v4.repair(language)
        return language.LanguageModel(deepseek_v4.settings(of_kind("config"), config))
    if kind == "deepseek_v41":
        deepseek_v41.repair(language)
        return language.LanguageModel(of_kind("config").ModelConfig.from_dict(config))
    return language.LanguageModel(of_kind("config").TextConfig.from_dict(config["text_config"]))


def matrices():
    """The classes of modules that hold a matrix for each head or expert."""
    mla = importlib.import_module("mlx_vlm.models.mla")
    switch = importlib.import_module("mlx_vlm.models.switch_layers")
    return (mla.MultiLinear, switch.SwitchLinear)


def load(path):
    """The language model of a checkpoint."""
    config = json.loads((path / "config.json").read_text())
    loaded = model(config)
    formats = config.get("quantization", {})
    default = {key: value for key, value in formats.items() if not isinstance(value, (dict, bool))}
    if default:
        of_path = lambda name, module: hasattr(module, "to_quantized") and formats.get(PREFIX + name, default)
        nn.quantize(loaded, **default, class_predicate=of_path)
    weights = mx.load(str(path / "model.safetensors"))
    if config["model_type"] == "deepseek_v4":
        weights = loaded.sanitize({name.removeprefix(PREFIX): value for name, value in weights.items()})
        loaded.load_weights(list(weights.items()))
        return loaded
    if config["model_type"] == "deepseek_v41":
        weights = {name.removeprefix(PREFIX): value for name, value in weights.items()}
        weights = deepseek_v41.sanitized(loaded, config, weights)
        loaded.load_weights(list(weights.items()))
        loaded._engram_source = path
        return loaded
    # What the wrapper of language model and vision tower does.
    nested = ("model.language_model.", f"{PREFIX}model."), ("lm_head.", f"{PREFIX}lm_head.")
    for theirs, ours in nested:
        weights = {ours + name.removeprefix(theirs) if name.startswith(theirs) else name: value for name, value in weights.items()}
    weights = sanitized(loaded, config, weights)
    loaded.load_weights([(name.removeprefix(PREFIX), value) for name, value in weights.items()])
    return loaded


def sanitized(loaded, config, weights):
    """The tensors of the language model, as conversions have them."""
    if config["model_type"] == "qwen4_exp":
        # In mlx-vlm the wrapper of this family does it; it reads only the configuration of the text part.
        wrapper = importlib.import_module("mlx_vlm.models.qwen4_exp.qwen4_exp").Model
        stacked = {name.replace(f"{PREFIX}model.", "model.language_model."): it for name, it in weights.items()}
        weights = wrapper.sanitize(SimpleNamespace(config=SimpleNamespace(text_config=loaded.args)), stacked)
    weights = {name: value for name, value in weights.items() if name.startswith(PREFIX)}
    return loaded.sanitize(weights) if hasattr(loaded, "sanitize") else weights


def outputs(loaded, rows, cache):
    """Logits of all rows, and the final hidden states."""
    rows = mx.array(rows)[None]
    if loaded.model_type == "qwen4_exp_text":
        # The language model asks its wrapper for the positions.
        states = loaded.model(rows, cache=cache)
        return loaded.lm_head(states)[0], states[0]
    if loaded.model_type == "deepseek_v41":
        norm, states = loaded.norm, []
        loaded.norm = lambda x: states.append(norm(x)) or states[-1]
        logits = loaded(rows, cache=cache).logits[0]
        loaded.norm = norm
        return logits, states[0][0]
    out = loaded(rows, cache=cache, hidden_sink=(states := []))
    return out.logits[0], states[0][0]


def logits_and_states(loaded, prompt):
    """Logits of all positions, and the final hidden states."""
    # Without caches, queries of DeepSeek V4 would attend to pools that follow them.
    logits, states = outputs(loaded, prompt, loaded.make_cache())
    if loaded.model_type == "deepseek_v4":
        states = loaded.model.norm(loaded.model.hc_head(states[None]))[0]
    return logits, states


def generate(loaded, prompt, count):
    """Greedy tokens with all log-probabilities, as `generate_step` yields them."""
    cache, rows = loaded.make_cache(), prompt
    for _ in range(count):
        logits = outputs(loaded, rows, cache)[0][-1]
        rows = [int(mx.argmax(logits))]
        yield rows[0], logits - mx.logsumexp(logits)
