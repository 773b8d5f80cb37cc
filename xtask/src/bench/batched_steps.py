"""Measures a prompt and decode steps of several sequences in mlx-lm, for `cargo xtask bench stock`:
one line of JSON for each number of sequences; the first also has the prompt's time. Arguments: the
checkpoint, the tokens before the first step, and `default` to compute on MLX's default device instead of the CPU.

Nodes are those of MLX's graph; as in our own count, a fused operation (mx.fast) is one node, also
where MLX builds several in its place.
"""

import json
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

import mlx.core as mx

if len(sys.argv) < 4:
    mx.set_default_device(mx.cpu)

from mlx_lm.models.cache import (  # noqa: E402
    ArraysCache,
    BatchKVCache,
    BatchRotatingKVCache,
    KVCache,
    RotatingKVCache,
    make_prompt_cache,
)
from mlx_lm.utils import load_model  # noqa: E402

SEQUENCES = (1, 8, 32, 64)
STEPS = 41
PROMPT_TOKENS = 512
REPETITIONS = 5
FUSED = ("rms_norm", "layer_norm", "rope", "scaled_dot_product_attention")


def graph_nodes(array):
    with tempfile.NamedTemporaryFile(suffix=".dot") as file:
        mx.export_to_dot(file.name, array)
        return len(re.findall(r"shape=rectangle", Path(file.name).read_text()))


class FusedCalls:
    """Counts the nodes that MLX builds in place of fused operations."""

    def __init__(self):
        self.extra = 0
        self.sizes = {}
        self.originals = {name: getattr(mx.fast, name) for name in FUSED}
        for name, original in self.originals.items():
            setattr(mx.fast, name, self.counting(name, original))

    def counting(self, name, original):
        def call(*args, **kwargs):
            self.extra += self.size(name, original, args, kwargs) - 1
            return original(*args, **kwargs)

        return call

    def size(self, name, original, args, kwargs):
        def shape(value):
            return (value.shape, str(value.dtype)) if isinstance(value, mx.array) else str(value)

        key = (name, tuple(map(shape, args)), tuple((k, shape(v)) for k, v in kwargs.items()))
        if key not in self.sizes:

            def blank(value):
                if not isinstance(value, mx.array):
                    return value
                value = mx.zeros(value.shape, value.dtype)
                mx.eval(value)
                return value

            args = [blank(value) for value in args]
            kwargs = {name: blank(value) for name, value in kwargs.items()}
            self.sizes[key] = graph_nodes(original(*args, **kwargs))
        return self.sizes[key]

    def restore(self):
        for name, original in self.originals.items():
            setattr(mx.fast, name, original)


def prompt_ms(model):
    prompt = mx.array([[idx * 31 % 97 for idx in range(PROMPT_TOKENS)]])
    times = []
    for _ in range(REPETITIONS):
        cache = make_prompt_cache(model)
        started = time.perf_counter()
        # As mlx-lm's generator does: the prompt but its last token, whose logits nobody needs, first.
        model(prompt[:, :-1], cache=cache)
        mx.eval([it.state for it in cache])
        mx.eval(mx.argmax(model(prompt[:, -1:], cache=cache)[:, -1], axis=-1))
        times.append(time.perf_counter() - started)
    return min(times) * 1e3


def batched(cache, padding):
    """The cache of a layer for sequences with these numbers of positions before their tokens."""
    if type(cache) is KVCache:
        return BatchKVCache(padding)
    if type(cache) is RotatingKVCache:
        return BatchRotatingKVCache(cache.max_size, padding)
    if type(cache) is ArraysCache:
        cache.left_padding = mx.array(padding)
        return cache
    raise TypeError(f"no batches of {type(cache).__name__}")


def main():
    model, _ = load_model(Path(sys.argv[1]))
    of_prompt = prompt_ms(model)
    context = int(sys.argv[2])
    for num_sequences in SEQUENCES:
        cache = make_prompt_cache(model)
        # The lengths differ, as those of requests do.
        padding = list(reversed(range(num_sequences)))
        cache = [batched(it, padding) for it in cache]
        longest = context + num_sequences - 1
        prompt = mx.array([[idx * 31 % 97 for idx in range(longest)]] * num_sequences)
        mx.eval(model(prompt, cache=cache))
        tokens = mx.array([[idx * 31 % 97] for idx in range(num_sequences)])
        totals, builds = [], []
        for _ in range(STEPS):
            started = time.perf_counter()
            logits = model(tokens, cache=cache)[:, -1]
            builds.append(time.perf_counter() - started)
            mx.eval(mx.argmax(logits, axis=-1))
            totals.append(time.perf_counter() - started)
        fused = FusedCalls()
        nodes = graph_nodes(model(tokens, cache=cache)) - fused.extra
        fused.restore()
        line = dict(
            sequences=num_sequences,
            step_ms=statistics.median(totals) * 1e3,
            build_ms=statistics.median(builds) * 1e3,
            nodes=nodes,
        )
        if num_sequences == 1:
            line["prompt_ms"] = of_prompt
        print(json.dumps(line), flush=True)


main()
