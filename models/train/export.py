"""Turns trained weights into a 4-bit MLX checkpoint: what `mlx_lm.convert -q` would write.

    python export.py --run DIR --out ../jackalope-mini

Runs in an environment with mlx and mlx-lm; `DIR` is the `--out` of train.py.
"""

import argparse
import json
import shutil
from pathlib import Path

import mlx.core as mx
import numpy as np

import text

QUANTISATION = {"group_size": 64, "bits": 4, "mode": "affine"}


def quantised_tensors(weights: dict[str, np.ndarray]) -> dict[str, mx.array]:
    """Every matrix in 4 bits, every vector in bfloat16."""
    tensors = {}
    for name, weight in sorted(weights.items()):
        weight = mx.array(weight).astype(mx.bfloat16)
        if weight.ndim == 1:
            tensors[name] = weight
            continue
        stem = name.removesuffix(".weight")
        tensors[name], tensors[f"{stem}.scales"], tensors[f"{stem}.biases"] = mx.quantize(weight, **QUANTISATION)
    return tensors


def write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    config = json.loads((args.run / "config.json").read_text())
    config |= {"quantization": QUANTISATION, "quantization_config": QUANTISATION}
    write_json(args.out / "config.json", config)
    write_json(args.out / "generation_config.json",
               {"bos_token_id": None, "eos_token_id": [text.IM_END, text.END_OF_TEXT], "pad_token_id": text.END_OF_TEXT})
    write_json(args.out / "tokenizer_config.json", text.hub_config())
    shutil.copyfile(args.run / "tokenizer.json", args.out / "tokenizer.json")

    weights = dict(np.load(args.run / "weights.npz"))
    tensors = quantised_tensors(weights)
    mx.save_safetensors(str(args.out / "model.safetensors"), tensors, metadata={"format": "mlx"})
    write_json(args.out / "model.safetensors.index.json", {
        "metadata": {"total_size": sum(t.nbytes for t in tensors.values()), "total_parameters": sum(w.size for w in weights.values())},
        "weight_map": {name: "model.safetensors" for name in sorted(tensors)}})
    size = sum(f.stat().st_size for f in args.out.iterdir())
    print(f"{args.out}: {len(tensors)} tensors, {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
