"""Writes mlx-lm's logits of the models of hf_folders.py into folder_logits.npz.

mlx-lm is an implementation of Hugging Face's models by others. It runs on processors, in an
environment of its own: `pip install "mlx[cpu]" mlx-lm`, made with 0.32.2. Weights are expanded to
F32.

    PYTHONPATH=apps/llm/tests python apps/llm/tests/make_folder_logits.py
"""

import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import hf_folders
import numpy as np

HERE = Path(__file__).parent
LEFT_OUT = 9
"""Of the 23 bits of a fraction."""

mx: Any = import_module("mlx.core")  # without types
utils: Any = import_module("mlx_lm.utils")


def rounded(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """`logits` to 15 bits each: files are two thirds as large, and no limit is near 3e-5."""
    half, rest = np.uint32(1 << (LEFT_OUT - 1)), np.uint32((1 << LEFT_OUT) - 1)
    return ((logits.view(np.uint32) + half) & ~rest).view(np.float32)


def logits(path: Path, ids: list[int]) -> np.ndarray[Any, Any]:
    """Logits of each token."""
    model, _ = utils.load_model(path, strict=True)
    model.set_dtype(mx.float32)
    out = np.array(model(mx.array([ids])).astype(mx.float32))[0]
    return np.ascontiguousarray(out, np.float32)


def main() -> None:
    data = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in hf_folders.FOLDERS:
            path = hf_folders.write(name, Path(folder) / name)
            found = logits(path, hf_folders.prompt(name))
            data[name] = rounded(found[list(hf_folders.RECORDED)])
            print(name, float(np.abs(found).max()))
    np.savez_compressed(HERE / "folder_logits.npz", **data)


if __name__ == "__main__":
    main()
