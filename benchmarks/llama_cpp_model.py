"""llama.cpp's tokens per second on a model file, as `tensorplug-llm bench` measures ours: JSON.

It needs llama-cpp-python and nothing of tensorplug.
"""

import argparse
import json
import resource
import statistics
import time
from collections.abc import Sequence

import llama_cpp as llama
import numpy as np

WARM_UP = 8
"""Tokens of the text that decoding continues."""
BATCH = 512


def measured(
    path: str, threads: int, prompt_tokens: int, tokens: int, repeat: int
) -> dict[str, float]:
    """Medians of reading a prompt and of continuing one; seconds of loading, and peak memory."""
    silent = llama.llama_log_callback(lambda *_: None)
    llama.llama_log_set(silent, None)
    llama.llama_backend_init()
    begin = time.perf_counter()
    model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
    options = llama.llama_context_default_params()
    options.n_ctx, options.n_batch, options.n_ubatch = 2 * BATCH, BATCH, BATCH
    options.n_threads = options.n_threads_batch = threads
    context = llama.llama_init_from_model(model, options)
    load = time.perf_counter() - begin
    vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    prompt = [(7919 * i + 1) % vocabulary for i in range(prompt_tokens)]

    def read(ids: Sequence[int]) -> int:
        tokens_of_batch = (llama.llama_token * len(ids))(*ids)
        if llama.llama_decode(context, llama.llama_batch_get_one(tokens_of_batch, len(ids))):
            raise RuntimeError("llama_decode failed")
        logits = llama.llama_get_logits_ith(context, -1)
        return int(np.ctypeslib.as_array(logits, shape=(vocabulary,)).argmax())

    def start() -> None:
        llama.llama_memory_clear(llama.llama_get_memory(context), 1)

    prefill, decode = [], []
    for _ in range(repeat + 1):
        start()
        begin = time.perf_counter()
        read(prompt)
        prefill.append(prompt_tokens / (time.perf_counter() - begin))
        start()
        chosen = read(prompt[:WARM_UP])
        begin = time.perf_counter()
        for _ in range(tokens):
            chosen = read([chosen])
        decode.append(tokens / (time.perf_counter() - begin))
    return {
        "prefill": statistics.median(prefill[1:]),
        "decode": statistics.median(decode[1:]),
        "load_s": load,
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="path of a GGUF file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    figures = measured(given.model, given.threads, given.prompt_tokens, given.tokens, given.repeat)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
