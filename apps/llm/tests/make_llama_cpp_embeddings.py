"""Writes llama.cpp's embeddings of tiny models into the data file of test_embedding.py.

F32 weights, flash attention off. Needs llama-cpp-python 0.3.36 next to the test dependencies.

    python apps/llm/tests/make_llama_cpp_embeddings.py
"""

import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tensorplug_llm.testing import tiny_models

llama: Any = import_module("llama_cpp")  # without types

DATA = Path(__file__).with_name("llama_cpp_embeddings.npz")
CONTEXT = 256


class Oracle:
    """llama.cpp with one model that embeds."""

    def __init__(self, path: Path) -> None:
        self._model = llama.llama_model_load_from_file(
            str(path).encode(), llama.llama_model_default_params()
        )
        params = llama.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = CONTEXT
        params.embeddings = True
        params.type_k = params.type_v = 0
        params.flash_attn_type = 0
        self._context = llama.llama_init_from_model(self._model, params)
        is_rank = llama.llama_pooling_type(self._context) == llama.LLAMA_POOLING_TYPE_RANK
        size = llama.llama_model_n_cls_out if is_rank else llama.llama_model_n_embd
        self._size = size(self._model)

    def embed(self, ids: list[int]) -> np.ndarray:
        """The embedding of one text."""
        batch = llama.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.logits[i] = token, i, True
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        if memory := llama.llama_get_memory(self._context):
            llama.llama_memory_clear(memory, True)
        status = llama.llama_decode(self._context, batch)
        llama.llama_batch_free(batch)
        if status:
            raise RuntimeError(f"llama_decode: {status}")
        found = llama.llama_get_embeddings_seq(self._context, 0)
        return np.ctypeslib.as_array(found, shape=(self._size,)).copy()


def main() -> None:
    data = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in tiny_models.EMBEDDING_MODELS:
            path = Path(folder) / f"{name}.gguf"
            tiny_models.write(name, path)
            oracle = Oracle(path)
            data[name] = np.stack([oracle.embed(ids) for ids in tiny_models.texts(name)])
    np.savez_compressed(DATA, **data)


if __name__ == "__main__":
    main()
