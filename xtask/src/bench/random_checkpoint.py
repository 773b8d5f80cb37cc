"""Writes a checkpoint of random f32 numbers with mlx-lm's own model. Arguments: the configuration, and
the folder to write to."""

import json
import sys
from pathlib import Path

import mlx.core as mx

mx.set_default_device(mx.cpu)

from mlx.utils import tree_flatten  # noqa: E402
from mlx_lm.utils import _get_classes  # noqa: E402


def main():
    config = json.loads(Path(sys.argv[1]).read_text())
    out = Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    model_class, arguments = _get_classes(config)
    mx.random.seed(0)
    model = model_class(arguments.from_dict(config))
    mx.save_safetensors(str(out / "model.safetensors"), dict(tree_flatten(model.parameters())))
    (out / "config.json").write_text(json.dumps(config))


main()
