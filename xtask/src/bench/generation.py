"""Measures generation with mlx-lm as its users run it, for `cargo xtask gpu-check`: one line of JSON for each
number of requests that are computed together. Arguments: the checkpoint, the tokens of a prompt, the tokens of
an answer, and the numbers of requests, separated by commas."""

import json
import sys
import time
from pathlib import Path

import mlx.core as mx
from mlx_lm.generate import BatchGenerator, generate_step
from mlx_lm.utils import load_model


def prompt(length, vocab_size, salt):
    return [(idx * 7919 + salt * 104729 + 13) % vocab_size for idx in range(length)]


def alone(model, tokens, num_tokens):
    """Returns the tokens per second of the prompt and of the answer."""
    started = time.perf_counter()
    answer = generate_step(mx.array(tokens), model, max_tokens=num_tokens)
    next(answer)
    first = time.perf_counter()
    for _ in answer:
        pass
    ended = time.perf_counter()
    return len(tokens) / (first - started), (num_tokens - 1) / (ended - first)


def together(model, prompts, num_tokens):
    generator = BatchGenerator(model, max_tokens=num_tokens, completion_batch_size=len(prompts))
    generator.insert(prompts)
    with generator.stats() as stats:
        while generator.next_generated():
            pass
    generator.close()
    return stats.prompt_tps, stats.generation_tps


def main():
    model, config = load_model(Path(sys.argv[1]))
    num_prompt, num_tokens = int(sys.argv[2]), int(sys.argv[3])
    for salt, num_requests in enumerate(map(int, sys.argv[4].split(","))):
        # The first run compiles kernels.
        for run in range(2):
            first = salt * 1000 + run * 100
            prompts = [
                prompt(num_prompt, config["vocab_size"], first + idx) for idx in range(num_requests)
            ]
            if num_requests == 1:
                speeds = alone(model, prompts[0], num_tokens)
            else:
                speeds = together(model, prompts, num_tokens)
        line = dict(requests=num_requests, prefill=speeds[0], decode=speeds[1])
        print(json.dumps(line), flush=True)


main()
