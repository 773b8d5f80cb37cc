"""Trains the little model on the CPU with JAX.

    python train.py --data DIR --out DIR [--minutes 55] [--steps 12000] [--threads 2]

The schedule ends with whichever of `--minutes` and `--steps` comes first; a busy machine gives a shorter training, not
an unfinished one. The last part trains through a fake quantisation, so that the 4-bit export loses nothing.
DIR/weights.npz is written every few minutes and may be exported at any time.
"""

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np

# (hidden and head sizes divide over 2, 3 and 3:1 ranks in whole quantisation groups of 64)
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": None,
    "eos_token_id": 2, "head_dim": 32, "hidden_act": "silu", "hidden_size": 256, "initializer_range": 0.02,
    "intermediate_size": 512, "max_position_embeddings": 2048, "model_type": "qwen3", "num_attention_heads": 8,
    "num_hidden_layers": 4, "num_key_value_heads": 4, "pad_token_id": 0, "rms_norm_eps": 1e-6, "rope_scaling": None,
    "rope_theta": 10000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True,
    "use_sliding_window": False, "vocab_size": 2048,
}
QUANTISE_FROM = 0.7  # the share of the training after which weights are seen through their quantisation
SAVE_SECONDS = 240
# (rows, tokens in each) of a step, chosen so that short and long conversations are used up about equally fast.
ROWS = [(9, 192), (3, 384)]


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start-from", type=Path, help="weights.npz of an earlier training")
    parser.add_argument("--minutes", type=float, default=55.0)
    parser.add_argument("--steps", type=int, default=12_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--matrix-lr", type=float, default=0.02)
    parser.add_argument("--vector-lr", type=float, default=0.004)
    return parser.parse_args()


ARGS = parse_args()
# Before JAX starts its thread pool: it has as many threads as we may use processors.
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:ARGS.threads])

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

import text  # noqa: E402


# ---------------------------------------------------------------- model

def init(key):
    """Parameters under the checkpoint's own names; matrices are [out, in]."""
    c = CONFIG
    hidden, mlp, head_dim = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * head_dim, c["num_key_value_heads"] * head_dim
    shapes = {"self_attn.q_proj": (q, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden),
              "self_attn.o_proj": (hidden, q), "mlp.gate_proj": (mlp, hidden), "mlp.up_proj": (mlp, hidden),
              "mlp.down_proj": (hidden, mlp)}
    params = {"model.embed_tokens.weight": 0.02 * jax.random.normal(key, (c["vocab_size"], hidden)),
              "model.norm.weight": jnp.ones(hidden)}
    for layer in range(c["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name, shape in shapes.items():
            key, sub = jax.random.split(key)
            gain = 0.1 if name.endswith(("o_proj", "down_proj")) else 1.0
            params[f"{prefix}{name}.weight"] = gain * jax.random.normal(sub, shape) / shape[1] ** 0.5
        for name, size in (("input_layernorm", hidden), ("post_attention_layernorm", hidden),
                           ("self_attn.q_norm", head_dim), ("self_attn.k_norm", head_dim)):
            params[f"{prefix}{name}.weight"] = jnp.ones(size)
    return params


def rms_norm(x, weight):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + CONFIG["rms_norm_eps"]) * weight


def rope(x, position):
    """x: [batch, seq, heads, head_dim], halves rotated against each other (not interleaved)."""
    half = x.shape[-1] // 2
    freqs = CONFIG["rope_theta"] ** (-jnp.arange(half) / half)
    angle = (position[..., None] * freqs)[:, :, None, :]
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)], -1)


def attention(q, k, v, mask):
    """q, k, v: [batch, heads, seq, head_dim]; mask: [batch, 1, seq, seq], 0 or very negative."""
    scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5 + mask
    weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
    return weights @ v / weights.sum(-1, keepdims=True)


def hidden_states(params, tokens, position, mask):
    """tokens, position: [batch, seq]. Returns the last hidden states, normalised: [batch, seq, hidden]."""
    c = CONFIG
    batch, seq = tokens.shape
    heads, kv_heads, head_dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    x = params["model.embed_tokens.weight"][tokens]  # [batch, seq, hidden]
    for layer in range(c["num_hidden_layers"]):
        def w(name):
            return params[f"model.layers.{layer}.{name}.weight"]
        h = rms_norm(x, w("input_layernorm"))
        q = (h @ w("self_attn.q_proj").T).reshape(batch, seq, heads, head_dim)
        k = (h @ w("self_attn.k_proj").T).reshape(batch, seq, kv_heads, head_dim)
        v = (h @ w("self_attn.v_proj").T).reshape(batch, seq, kv_heads, head_dim)
        q = rope(rms_norm(q, w("self_attn.q_norm")), position)
        k = rope(rms_norm(k, w("self_attn.k_norm")), position)
        k, v = (jnp.repeat(t, heads // kv_heads, axis=2) for t in (k, v))
        h = attention(*(t.swapaxes(1, 2) for t in (q, k, v)), mask).swapaxes(1, 2)
        x = x + h.reshape(batch, seq, heads * head_dim) @ w("self_attn.o_proj").T
        h = rms_norm(x, w("post_attention_layernorm"))
        x = x + (jax.nn.silu(h @ w("mlp.gate_proj").T) * (h @ w("mlp.up_proj").T)) @ w("mlp.down_proj").T
    return rms_norm(x, params["model.norm.weight"])


# ---------------------------------------------------------------- fake quantisation

def fake_quantise(w):
    """What MLX's affine 4-bit group-64 quantisation makes of w, with the gradient of the identity.

    The formulas are those of `quantize` in mlx/backend/cpu/quantized.cpp: the end of the range with the larger
    magnitude is exact. Scales and biases are rounded to bfloat16, as they are stored.
    """
    def bf16(t):
        return t.astype(jnp.bfloat16).astype(jnp.float32)

    g = bf16(w).reshape(-1, 64)
    low, high = g.min(-1, keepdims=True), g.max(-1, keepdims=True)
    low_is_edge = jnp.abs(low) > jnp.abs(high)
    scale = jnp.maximum((high - low) / 15, 1e-7)
    scale = jnp.where(low_is_edge, scale, -scale)
    edge = jnp.where(low_is_edge, low, high)
    q0 = jnp.round(edge / scale)
    bias = jnp.where(q0 == 0, 0, edge)
    scale = jnp.where(q0 == 0, scale, edge / jnp.where(q0 == 0, 1, q0))
    q = jnp.clip(jnp.round((g - bias) / scale), 0, 15)
    return w + jax.lax.stop_gradient((q * bf16(scale) + bf16(bias)).reshape(w.shape) - w)


def spoken(params, rows):
    """The hidden states and targets where the model speaks: [n, hidden], [n], [n] (weight, 0 for padding)."""
    tokens, segment = rows["tokens"], rows["segment"]
    seq = tokens.shape[1] - 1
    same = segment[:, :seq, None] == segment[:, None, :seq]
    causal = jnp.tril(jnp.ones((seq, seq), bool))
    mask = jnp.where(same & causal, 0.0, -1e9)[:, None]
    x = hidden_states(params, tokens[:, :seq], rows["position"][:, :seq], mask)
    speaks = rows["speaks"][:, 1:].reshape(-1)
    # The head is computed only there; a row speaks less than half of the time, what is beyond is not learnt from.
    chosen = jnp.nonzero(speaks, size=speaks.size // 2, fill_value=0)[0]
    weight = (jnp.arange(chosen.size) < speaks.sum()).astype(jnp.float32)
    return x.reshape(-1, x.shape[-1])[chosen], tokens[:, 1:].reshape(-1)[chosen], weight


def loss_fn(params, batch, quantised):
    if quantised:
        params = {name: fake_quantise(p) if p.ndim == 2 else p for name, p in params.items()}
    x, target, weight = (jnp.concatenate(parts) for parts in zip(*(spoken(params, rows) for rows in batch)))
    logits = x @ params["model.embed_tokens.weight"].T  # [n, vocab]
    losses = jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, target[:, None], -1)[:, 0]
    return (losses * weight).sum() / weight.sum()


# ---------------------------------------------------------------- optimiser

def orthogonalise(g):
    """The nearest (semi-)orthogonal matrix, roughly: Newton-Schulz as in Muon (Jordan et al. 2024)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.T if g.shape[0] > g.shape[1] else g
    x = x / (jnp.linalg.norm(x) + 1e-7)
    for _ in range(5):
        s = x @ x.T
        x = a * x + (b * s + c * s @ s) @ x
    return x.T if g.shape[0] > g.shape[1] else x


def is_matrix(name, p):
    return p.ndim == 2 and "embed_tokens" not in name


def update(params, state, grads, lr, step):
    """Muon for the layers' matrices, AdamW for the embedding and the norms; `lr` is the schedule's factor."""
    new_params, new_state = {}, {}
    for name, p in params.items():
        g, (m, v) = grads[name], state[name]
        if is_matrix(name, p):
            m = 0.95 * m + g
            direction = orthogonalise(g + 0.95 * m) * max(1, p.shape[0] / p.shape[1]) ** 0.5
            p = p * (1 - lr * ARGS.matrix_lr * 0.05) - lr * ARGS.matrix_lr * direction
        else:
            m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
            direction = (m / (1 - 0.9 ** step)) / (jnp.sqrt(v / (1 - 0.95 ** step)) + 1e-8)
            p = p - lr * ARGS.vector_lr * direction
        new_params[name], new_state[name] = p, (m, v)
    return new_params, new_state


def train_step(params, state, batch, lr, step, quantised):
    loss, grads = jax.value_and_grad(loss_fn)(params, batch, quantised)
    params, state = update(params, state, grads, lr, step)
    return params, state, loss


# ---------------------------------------------------------------- data

def conversations(path):
    while True:
        with open(path) as file:
            for line in file:
                yield json.loads(line)


def packed_rows(source, rows, row_tokens):
    """Rows packed full of whole conversations, which do not see each other (`segment`)."""
    waiting = []
    while True:
        batch = {name: np.zeros((rows, row_tokens + 1), np.int32) for name in ("tokens", "speaks", "segment", "position")}
        for row in range(rows):
            used, segment = 0, 0
            while True:
                while len(waiting) < 24:
                    waiting.append(next(source))
                fitting = [i for i, (ids, _) in enumerate(waiting) if used + len(ids) <= row_tokens + 1]
                if not fitting:
                    break
                ids, speaks = waiting.pop(fitting[0])
                segment += 1
                end = used + len(ids)
                batch["tokens"][row, used:end] = ids
                batch["speaks"][row, used + 1:end] = speaks[1:]
                batch["segment"][row, used:end] = segment
                batch["position"][row, used:end] = np.arange(len(ids))
                used = end
        yield batch


def batches(path, tokenizer):
    """One group of rows for each entry of ROWS; long conversations go into the long rows, the few longer ones out."""
    def source(shortest, longest):
        for conversation in conversations(path):
            tokens = text.tokens_and_mask(tokenizer, conversation)
            if shortest < len(tokens[0]) <= longest:
                yield tokens

    longest = [row_tokens + 1 for _, row_tokens in ROWS]
    return zip(*(packed_rows(source(low, high), *rows) for rows, low, high in zip(ROWS, [0, *longest], longest)))


def get_tokenizer(data, out):
    path = out / "tokenizer.json"
    if not path.exists():
        source = conversations(data)
        text.train_tokenizer((text.render(next(source)) for _ in range(20_000)), CONFIG["vocab_size"]).save(str(path))
    return text.Tokenizer.from_file(str(path))


def schedule(progress, step):
    """Warm-up over 50 steps, then half a cosine down to 1 %."""
    return min(1, step / 50) * (0.01 + 0.99 * 0.5 * (1 + np.cos(np.pi * min(1, progress))))


def save(params, out):
    np.savez(out / "partial.npz", **{name: np.asarray(p) for name, p in params.items()})
    os.replace(out / "partial.npz", out / "weights.npz")


def main():
    ARGS.out.mkdir(parents=True, exist_ok=True)
    data = ARGS.data / "train.jsonl"
    tokenizer = get_tokenizer(data, ARGS.out)
    assert tokenizer.get_vocab_size() == CONFIG["vocab_size"], tokenizer.get_vocab_size()
    (ARGS.out / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    params = init(jax.random.key(1))
    if ARGS.start_from:
        params = {name: jnp.array(weight) for name, weight in np.load(ARGS.start_from).items()}
    state = {name: (jnp.zeros_like(p), jnp.zeros_like(p) if not is_matrix(name, p) else jnp.zeros(())) for name, p in params.items()}
    print(f"{sum(p.size for p in params.values()):,} parameters", flush=True)
    step_fn = jax.jit(train_step, static_argnames="quantised", donate_argnums=(0, 1))

    started = saved = shown = time.monotonic()
    mean_loss, shown_step = None, 0
    source = batches(data, tokenizer)
    for step in range(1, ARGS.steps + 1):
        now = time.monotonic()
        progress = max((step - 1) / ARGS.steps, (now - started) / (60 * ARGS.minutes))
        if progress >= 1:
            break
        lr = schedule(progress, step)
        params, state, loss = step_fn(params, state, next(source), lr, step, quantised=progress > QUANTISE_FROM)
        loss = float(loss)
        mean_loss = loss if mean_loss is None else 0.98 * mean_loss + 0.02 * loss
        if step % 50 == 0 or step in (1, 2, 5, 10):
            rate = (step - shown_step) * sum(n * length for n, length in ROWS) / (time.monotonic() - shown)
            shown, shown_step = time.monotonic(), step
            print(f"step {step} {(now - started) / 60:.1f} min, {progress:.1%}: loss {mean_loss:.4f} (now {loss:.4f}), {rate:.0f} tokens/s", flush=True)
        if time.monotonic() - saved > SAVE_SECONDS:
            save(params, ARGS.out)
            saved = time.monotonic()
    save(params, ARGS.out)
    print(f"{step - 1} steps in {(time.monotonic() - started) / 60:.1f} minutes, loss {mean_loss:.4f}")


if __name__ == "__main__":
    main()
