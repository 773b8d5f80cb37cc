"""What mlx-vlm's DeepSeek V4 lacks as a reference: it forgets the previous group of overlapping pools at every
call, and knows no pools shorter than 128 positions but those of 4."""

import mlx.core as mx


def settings(module, config):
    """The settings of a configuration, whose pools may have any length."""
    ratios = config["compress_ratios"]
    known = module.ModelConfig.from_dict(config | dict(compress_ratios=[0] * len(ratios)))
    known.compress_ratios = ratios
    return known


def repair(language):
    """Keeps the previous group of overlapping pools from call to call."""
    compressor = language.Compressor
    if hasattr(compressor, "own_call"):
        return
    compressor.own_call = compressor.__call__
    compressor.__call__ = pooled

    def attention(config, layer_idx):
        ratio = config.compress_ratios[layer_idx]
        kinds = {0: language.LocalAttention, 4: language.SparseCompressedAttention}
        return kinds.get(ratio, language.CompressedAttention)(config, layer_idx)

    language.v4_attention_factory = attention


def pooled(self, x, cache, offset):
    if not self.overlap:
        return self.own_call(x, cache, offset)
    kv, gate, base = cache.accumulate_windows(self.wkv(x), self.wgate(x), offset)
    if kv.size == 0:
        return cache.update_and_fetch(mx.zeros((x.shape[0], 0, self.head_dim), dtype=x.dtype))
    kv = mx.unflatten(kv, 1, (-1, self.compress_ratio))
    gate = mx.unflatten(gate, 1, (-1, self.compress_ratio)) + self.ape
    (kv_a, kv_b), (gate_a, gate_b) = mx.split(kv, 2, axis=-1), mx.split(gate, 2, axis=-1)
    nothing = mx.zeros_like(kv_a[:, :1]), mx.full(gate_a[:, :1].shape, -mx.inf)
    before = getattr(cache, "previous_group", nothing)
    cache.previous_group = kv_a[:, -1:], gate_a[:, -1:]
    kv = mx.concatenate([mx.concatenate([before[0], kv_a[:, :-1]], 1), kv_b], axis=2)
    gate = mx.concatenate([mx.concatenate([before[1], gate_a[:, :-1]], 1), gate_b], axis=2)
    mean = (kv * mx.softmax(gate, axis=2, precise=True)).sum(axis=2)
    return cache.update_and_fetch(self.rope(self.norm(mean)[:, None], offset=base).squeeze(1))
