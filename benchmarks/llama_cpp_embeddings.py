"""llama.cpp's vectors of texts, as `embedding_speeds.py` asks for them: lines of JSON in and out.

It needs llama-cpp-python and nothing of tensorplug. The seconds are those of its passes only.
"""

import argparse
import json
import sys
import time

import llama_cpp as llama
import numpy as np

MOST = 64
"""Texts of a pass."""


class Embedder:
    """A model in a context for passes of up to `batch` tokens."""

    def __init__(self, path: str, batch: int, threads: int) -> None:
        model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
        options = llama.llama_context_default_params()
        options.n_ctx = options.n_batch = options.n_ubatch = batch
        options.n_seq_max, options.embeddings, options.kv_unified = MOST, True, True
        options.n_threads = options.n_threads_batch = threads
        self._size = llama.llama_model_n_embd(model)
        self._tokens = batch
        self._context = llama.llama_init_from_model(model, options)
        self._batch = llama.llama_batch_init(batch, 0, 1)

    def passes(self, texts: list[list[int]]) -> list[list[list[int]]]:
        """The texts of each pass, in order."""
        found: list[list[list[int]]] = []
        room = 0
        for text in texts:
            if len(text) > room or len(found[-1]) == MOST:
                found.append([])
                room = self._tokens
            found[-1].append(text)
            room -= len(text)
        return found

    def read(self, texts: list[list[int]]) -> tuple[list[list[float]], float]:
        """The vectors of the texts of a pass, and its seconds."""
        batch = self._batch
        tokens = [(i, n, id) for i, text in enumerate(texts) for n, id in enumerate(text)]
        batch.n_tokens = len(tokens)
        for at, (text, position, id) in enumerate(tokens):
            batch.token[at], batch.pos[at], batch.logits[at] = id, position, True
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, text
        start = time.perf_counter()
        if llama.llama_encode(self._context, batch):
            raise RuntimeError("llama_encode failed")
        vectors = [
            np.ctypeslib.as_array(
                llama.llama_get_embeddings_seq(self._context, i), shape=(self._size,)
            ).tolist()
            for i in range(len(texts))
        ]
        return vectors, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    quiet = llama.llama_log_callback(lambda *_: None)
    llama.llama_log_set(quiet, None)
    embedder = Embedder(given.path, given.batch, given.threads)
    for line in sys.stdin:
        vectors: list[list[float]] = []
        seconds = 0.0
        for texts in embedder.passes(json.loads(line)):
            found, taken = embedder.read(texts)
            vectors += found
            seconds += taken
        print(json.dumps({"seconds": seconds, "vectors": vectors}), flush=True)


if __name__ == "__main__":
    main()
