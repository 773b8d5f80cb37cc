"""Other dimensions of the families' tiny checkpoints, chosen by a seed: `cargo xtask golden --vary SEED`.

A change that the reference does not compute is not used: some dimensions depend on each other. Nor is one
where the best scores and the others are equal: which of them MLX chooses is not defined."""

import copy
import random

import mlx.core as mx
import numpy as np

# Distance of scores below which they count as equal.
LEAST_DISTANCE = 1e-5
# Distances of choices between equal scores since the last case began.
ties = []

# Fields, and what they may become of a value.
WIDTHS = (
    "intermediate_size",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "shared_intermediate_size",
    "prefix_dense_intermediate_size",
)
SWITCHES = ("norm_topk_prob", "attention_bias", "mlp_bias", "qk_norm", "use_qk_norm")
EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
CHOSEN = ("num_experts_per_tok", "moe_k", "moe_topk", "experts_per_token", "top_k_experts")
HEAD_WIDTHS = ("head_dim", "qk_nope_head_dim", "v_head_dim", "index_head_dim")
LATENTS = ("q_lora_rank", "kv_lora_rank")


def divisors(number):
    return [part for part in range(1, number + 1) if number % part == 0]


def other(field, value, config, rng):
    """Another value of a field, or the same."""
    if isinstance(value, bool):
        return not value if field in SWITCHES else value
    if isinstance(value, float):
        return value * rng.choice([0.25, 3.0]) if field in ("rope_theta", "rms_norm_eps", "routed_scaling_factor") else value
    if not isinstance(value, int):
        return value
    if field in WIDTHS:
        return 64 * rng.randint(1, 5)
    if field == "hidden_size":
        return rng.choice([64, 128, 192, 256, 320])
    if field == "num_attention_heads":
        return rng.choice([2, 3, 4, 5, 6, 8, 12])
    if field in ("num_key_value_heads", "linear_num_key_heads"):
        return rng.choice(divisors(config.get(field.replace("key_value", "attention").replace("num_key", "num_value"), value)))
    if field == "linear_num_value_heads":
        return value * rng.choice([1, 2, 3])
    if field in EXPERTS:
        return value * rng.choice([1, 2, 3])
    if field in CHOSEN:
        return rng.randint(1, 4)
    if field in HEAD_WIDTHS:
        return value * rng.choice([1, 2])
    if field in LATENTS:
        return value * rng.choice([1, 2])
    if field in ("sliding_window", "attention_chunk_size"):
        return rng.randint(3, 24)
    if field in ("conv_kernel", "mamba_d_conv", "linear_conv_kernel_dim", "short_conv_kernel_size"):
        return rng.randint(2, 5)
    return value


def varied(config, rng):
    """A copy of a configuration of which about a third of the fields differ."""
    config = copy.deepcopy(config)
    for field in sorted(config):
        if field == "text_config":
            config[field] = varied(config[field], rng)
        elif rng.random() < 0.35:
            config[field] = other(field, config[field], config, rng)
    return config


def choose(case, seed, number):
    """A case with other dimensions; `number` counts the attempts."""
    name, config, *rest = case
    rng = random.Random(f"{name} {seed} {number}")
    return (f"{name}-vary-{seed}-{number}", varied(config, rng), *rest)


def watch_choices():
    """Notes choices between equal scores."""
    partition = mx.argpartition
    # A compiled function has no values that one could look at.
    mx.disable_compile()

    def watched(scores, kth, axis=-1):
        values = np.moveaxis(np.array(scores.astype(mx.float32)), axis, -1)
        values, place = np.sort(values, axis=-1), kth % values.shape[-1]
        # The best are those from `kth` on, or, of negative scores, up to it.
        place += 0 if kth < 0 else 1
        if place < values.shape[-1]:
            last, first = values[..., place - 1], values[..., place]
            finite = np.isfinite(last) & np.isfinite(first)
            distances = (first[finite] - last[finite]).tolist()
            ties.extend(it for it in distances if it < LEAST_DISTANCE)
        return partition(scores, kth=kth, axis=axis)

    mx.argpartition = watched
