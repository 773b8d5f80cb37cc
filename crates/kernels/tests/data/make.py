"""Writes formats.bin and codes.bin beside this file: MLX's own reading of every quantised format.

Run with the pinned versions: pip install mlx==0.32.4 mlx-cpu==0.32.4 numpy; python make.py

formats.bin is a sequence of records: a line `mode bits group_size scale_type out input tokens`, then, little-endian,
words u32 [out, input * bits / 32], scales, biases (affine only) [out, input / group_size], the dequantised matrix
f32 [out, input], activations f32 [tokens, input], and their product with its transpose f32 [tokens, out].

codes.bin has four tables of 256 f32: the value of each E4M3 code, of each E4M3 scale, of each E8M0 scale, and of each
pair of E2M1 codes (only the first 16 differ).
"""

from pathlib import Path

import mlx.core as mx
import numpy as np

OUT, INPUT, TOKENS = 2, 128, 1
DATA = Path(__file__).parent
TYPES = {"f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16}


def raw(array):
    """Bytes of an MLX array, also of bfloat16, which numpy lacks."""
    return np.array(array.view(mx.uint16) if array.dtype.size == 2 else array).tobytes()


def record(rng, mode, bits, group, scale_type):
    words = rng.integers(0, 2**32, (OUT, INPUT * bits // 32), dtype=np.uint32)
    groups = (OUT, INPUT // group)
    if mode == "affine":
        scales = mx.array(rng.normal(0, 0.05, groups)).astype(TYPES[scale_type])
        biases = mx.array(rng.normal(0, 0.5, groups)).astype(TYPES[scale_type])
        stored = raw(scales) + raw(biases)
        # f32 throughout, so that MLX rounds nothing but the last operation.
        scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
    else:
        codes = rng.integers(120, 134, groups) if mode != "nvfp4" else rng.integers(0, 127, groups)
        scales, biases = mx.array(codes.astype(np.uint8)), None
        stored = raw(scales)
        if mode == "mxfp8":
            # The codes that are not numbers have their place in codes.bin.
            codes = words.view(np.uint8)
            codes[(codes & 0x7F) == 0x7F] ^= 1
    form = {"group_size": group, "bits": bits, "mode": mode}
    packed = mx.array(words)
    dequantized = mx.dequantize(packed, scales, biases, dtype=mx.float32, **form)
    x = mx.array(rng.normal(0, 1, (TOKENS, INPUT)).astype(np.float32))
    y = mx.quantized_matmul(x, packed, scales, biases, transpose=True, **form)
    header = f"{mode} {bits} {group} {scale_type} {OUT} {INPUT} {TOKENS}\n".encode()
    return header + words.tobytes() + stored + raw(dequantized) + raw(x) + raw(y)


def formats():
    rng = np.random.default_rng(20240229)
    for bits in (2, 3, 4, 5, 6, 8):
        for group in (32, 64, 128):
            for scale_type in TYPES:
                yield record(rng, "affine", bits, group, scale_type)
    for mode, bits, group in (("mxfp4", 4, 32), ("nvfp4", 4, 16), ("mxfp8", 8, 32)):
        yield record(rng, mode, bits, group, "u8")


def dequantize(words, scales, mode, bits, group):
    scales = mx.array(np.asarray(scales, np.uint8))
    values = mx.dequantize(
        mx.array(words), scales, mode=mode, bits=bits, group_size=group, dtype=mx.float32
    )
    return np.array(values)


def codes():
    every = np.arange(256, dtype=np.uint8)
    # Code 2 of E2M1 is one; so every value of these rows is the row's scale.
    ones = np.full((256, 4), 0x22222222, np.uint32)
    e2m1 = np.repeat(every & 15, 4) * 0x11
    return [
        dequantize(every.view(np.uint32).reshape(8, 8), np.full((8, 1), 127), "mxfp8", 8, 32).flatten(),
        dequantize(ones, np.repeat(every, 2).reshape(256, 2), "nvfp4", 4, 16)[:, 0],
        dequantize(ones, every.reshape(256, 1), "mxfp4", 4, 32)[:, 0],
        dequantize(
            np.tile(e2m1.astype(np.uint8).reshape(256, 4), 4).view(np.uint32),
            np.full((256, 1), 127),
            "mxfp4",
            4,
            32,
        )[:, 0],
    ]


mx.set_default_device(mx.cpu)
(DATA / "formats.bin").write_bytes(b"".join(formats()))
(DATA / "codes.bin").write_bytes(b"".join(table.astype("<f4").tobytes() for table in codes()))
