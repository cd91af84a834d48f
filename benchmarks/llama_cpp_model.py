"""llama.cpp's tokens per second on a model file, as `our_model.py` measures ours: JSON.

It needs llama-cpp-python and nothing of tensorplug.
"""

import argparse
import json
import resource
import time
from collections.abc import Sequence

import llama_cpp as llama
import numpy as np
from model_speeds import PIECE, arguments_of, context, speeds


def measured(given: argparse.Namespace) -> dict[str, float]:
    """Medians of reading and of continuing; seconds of loading, and peak memory."""
    silent = llama.llama_log_callback(lambda *_: None)
    llama.llama_log_set(silent, None)
    llama.llama_backend_init()
    begin = time.perf_counter()
    defaults = llama.llama_model_default_params()
    model = llama.llama_model_load_from_file(given.model.encode(), defaults)
    if model is None:
        raise SystemExit(f"llama.cpp cannot load {given.model}")
    options = llama.llama_context_default_params()
    options.n_ctx, options.n_batch, options.n_ubatch = context(given), PIECE, PIECE
    options.n_threads = options.n_threads_batch = given.threads
    made = llama.llama_init_from_model(model, options)
    load = time.perf_counter() - begin
    vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))

    def read(ids: Sequence[int]) -> int:
        tokens = (llama.llama_token * len(ids))(*ids)
        if llama.llama_decode(made, llama.llama_batch_get_one(tokens, len(ids))):
            raise RuntimeError("llama_decode failed")
        logits = llama.llama_get_logits_ith(made, -1)
        return int(np.ctypeslib.as_array(logits, shape=(vocabulary,)).argmax())

    def rewind(position: int) -> None:
        llama.llama_memory_seq_rm(llama.llama_get_memory(made), 0, position, -1)

    figures = speeds(read, rewind, vocabulary, given)
    peak = resource.getrusage(resource.RUSAGE_SELF)
    return {**figures, "load_s": load, "peak_rss_mib": peak.ru_maxrss / 1024}


def main() -> None:
    print(json.dumps(measured(arguments_of(__doc__).parse_args())))


if __name__ == "__main__":
    main()
