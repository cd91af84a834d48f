"""llama.cpp's tokens per second for texts that are continued together, as `batched.py` measures.

It needs llama-cpp-python and nothing of tensorplug. Prints JSON by number of texts.
"""

import argparse
import json
import statistics
import time

import llama_cpp as llama
import numpy as np

ROWS = 256
"""Rows of the cache for each text."""
STRIDE = 7919


class Texts:
    """`count` texts in one context."""

    def __init__(self, model: object, count: int, threads: int) -> None:
        options = llama.llama_context_default_params()
        options.n_seq_max, options.n_ctx = count, count * ROWS
        options.n_batch = options.n_ubatch = 512
        options.n_threads = options.n_threads_batch = threads
        self.vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
        self.context = llama.llama_init_from_model(model, options)
        self._batch = llama.llama_batch_init(512, 0, 1)

    def read(self, tokens: list[tuple[int, int, int, bool]]) -> list[int]:
        """Read (token, position, text, whether the next one is wanted); return the next ones."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, (token, position, text, wanted) in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, position
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, text, wanted
        if llama.llama_decode(self.context, batch):
            raise RuntimeError("llama_decode failed")
        return [self._best(i) for i, (*_, wanted) in enumerate(tokens) if wanted]

    def _best(self, row: int) -> int:
        logits = llama.llama_get_logits_ith(self.context, row)
        return int(np.ctypeslib.as_array(logits, shape=(self.vocabulary,)).argmax())

    def clear(self) -> None:
        """Forget all tokens."""
        llama.llama_memory_clear(llama.llama_get_memory(self.context), True)  # noqa: FBT003 - a C function


def continued(texts: Texts, count: int, prompt: int, steps: int) -> float:
    """Tokens per second of `steps` tokens for each text."""
    texts.clear()
    first = [
        ((STRIDE * (i + 1) + s) % texts.vocabulary, i, s, i == prompt - 1)
        for s in range(count)
        for i in range(prompt)
    ]
    chosen = texts.read(first)
    begin = time.perf_counter()
    for step in range(steps):
        chosen = texts.read([(chosen[s], prompt + step, s, True) for s in range(count)])
    return count * steps / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="path of a GGUF file")
    parser.add_argument("--counts", default="1 4 8 16 32", help="numbers of texts, in one string")
    parser.add_argument("--prompt", type=int, default=8, help="tokens of each prompt")
    parser.add_argument("--steps", type=int, default=48, help="tokens generated for each text")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    silent = llama.llama_log_callback(lambda *_: None)
    llama.llama_log_set(silent, None)
    llama.llama_backend_init()
    defaults = llama.llama_model_default_params()
    model = llama.llama_model_load_from_file(given.model.encode(), defaults)
    if model is None:
        raise SystemExit(f"llama.cpp cannot load {given.model}")
    found = {}
    for count in map(int, given.counts.split()):
        texts = Texts(model, count, given.threads)
        rounds = [
            continued(texts, count, given.prompt, given.steps) for _ in range(given.repeat + 1)
        ]
        found[count] = statistics.median(rounds[1:])
        llama.llama_free(texts.context)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
