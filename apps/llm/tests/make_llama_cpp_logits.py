"""Writes llama.cpp's logits into the data files of test_accuracy_tiny.py and test_accuracy_real.py.

Weights expanded to F32, F32 keys and values, flash attention off. Needs llama-cpp-python 0.3.36,
the test dependencies and the models; F32 copies of the models go to a temporary folder.

    python apps/llm/tests/make_llama_cpp_logits.py [tiny | smollm2-135m | gemma3-270m]...
"""

import ctypes
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tensorplug_llm.models import find_model
from tensorplug_llm.testing import tiny_models
from tensorplug_llm.testing.model_tests import LOGITS

llama: Any = import_module("llama_cpp")  # without types

HERE = Path(__file__).parent
CONTEXT = 1024
STEPS = 48
TOP = 32
LEFT_OUT = 9
"""Of the 23 bits of a fraction."""
STORY = "The old lighthouse keeper counted the ships that passed in the night. "
PROMPTS = (
    "The capital of France is",
    "Once upon a time, there was a little girl who",
    "def fibonacci(n):\n    ",
    "Water boils at a temperature of",
    "Die Hauptstadt von Deutschland ist",
    STORY * 45 + "In the morning he",
)
"""Five short prompts, and one longer than the window of gemma3's local layers."""


class Oracle:
    """llama.cpp with one model, as close to plain F32 arithmetic as it gets."""

    def __init__(self, path: Path, *, outputs: int) -> None:
        model = llama.llama_model_default_params()
        model.use_extra_bufts = False
        self._model = llama.llama_model_load_from_file(str(path).encode(), model)
        params = llama.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = CONTEXT, CONTEXT, CONTEXT
        params.n_threads = params.n_threads_batch = 2
        params.flash_attn_type = 0
        params.type_k = params.type_v = 0
        if hasattr(params, "n_outputs_max"):
            params.n_outputs_max = params.n_outputs_max_per_seq = outputs
        self._context = llama.llama_init_from_model(self._model, params)
        self._vocabulary = llama.llama_model_get_vocab(self._model)
        self._size = llama.llama_vocab_n_tokens(self._vocabulary)
        self._position = 0

    def tokenize(self, text: str) -> list[int]:
        raw = text.encode()
        ids = (llama.llama_token * (len(raw) + 8))()
        count = llama.llama_tokenize(self._vocabulary, raw, len(raw), ids, len(ids), True, False)
        return list(ids[:count])

    def forget(self) -> None:
        llama.llama_memory_clear(llama.llama_get_memory(self._context), True)
        self._position = 0

    def read(self, ids: list[int], *, all_logits: bool = False) -> np.ndarray:
        """Logits after the last of `ids`, or after each."""
        batch = llama.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i] = token, self._position + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = all_logits or i == len(ids) - 1
        status = llama.llama_decode(self._context, batch)
        llama.llama_batch_free(batch)
        if status:
            raise RuntimeError(f"llama_decode: {status}")
        self._position += len(ids)
        rows = range(len(ids)) if all_logits else [-1]
        return np.stack([self._row(i) for i in rows])

    def _row(self, index: int) -> np.ndarray:
        logits = llama.llama_get_logits_ith(self._context, index)
        return np.ctypeslib.as_array(logits, shape=(self._size,)).copy()


def expanded(source: Path, target: Path) -> Path:
    """Write `source` with all weights as F32."""
    params = llama.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = 0, True
    status = llama.llama_model_quantize(
        str(source).encode(), str(target).encode(), ctypes.byref(params)
    )
    if status:
        raise RuntimeError(f"llama_model_quantize: {status}")
    return target


def rounded(logits: np.ndarray) -> np.ndarray:
    """`logits` to 15 bits each: files are two thirds as large, and no limit is near 3e-5."""
    half, rest = np.uint32(1 << (LEFT_OUT - 1)), np.uint32((1 << LEFT_OUT) - 1)
    return ((logits.view(np.uint32) + half) & ~rest).view(np.float32)


def tiny(folder: Path) -> None:
    """Some logits of every tiny model."""
    data = {}
    for name in tiny_models.TINY_MODELS:
        path = folder / f"{name}.gguf"
        tiny_models.write(name, path)
        full = expanded(path, folder / f"{name}-f32.gguf")
        ids = tiny_models.prompt(name)
        logits = Oracle(full, outputs=len(ids)).read(ids, all_logits=True)
        data[name] = rounded(logits[list(tiny_models.RECORDED)])
    np.savez_compressed(LOGITS, **data)


def real(name: str, folder: Path) -> None:
    """Greedy tokens of a real model; of each step the largest logits and the sum of all."""
    oracle = Oracle(expanded(find_model(name), folder / f"{name}-f32.gguf"), outputs=8)
    data: dict[str, np.ndarray] = {"prompts": np.array(PROMPTS)}
    for i, text in enumerate(PROMPTS):
        oracle.forget()
        ids = oracle.tokenize(text)
        logits = [oracle.read(ids)[0]]
        for _ in range(STEPS - 1):
            logits.append(oracle.read([int(logits[-1].argmax())])[0])
        rows = np.stack(logits)
        top = np.argsort(-rows, axis=1)[:, :TOP]
        values = np.take_along_axis(rows, top, axis=1)
        peak = rows.max(axis=1, keepdims=True).astype(np.float64)
        data[f"ids{i}"] = np.array(ids, np.int32)
        data[f"top{i}"] = top.astype(np.int32)
        data[f"values{i}"] = values
        data[f"log_sum{i}"] = np.log(np.exp(rows - peak).sum(axis=1)) + peak[:, 0]
    np.savez_compressed(HERE / f"llama_cpp_{name}.npz", **data)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or ("tiny", "smollm2-135m", "gemma3-270m"):
            if name == "tiny":
                tiny(Path(folder))
            else:
                real(name, Path(folder))


if __name__ == "__main__":
    main()
