"""tensorplug's tokens per second on a model file, as `llama_cpp_model.py` measures, as JSON."""

import gc
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from model_speeds import arguments_of, context, speeds

import tensorplug as tp
from tensorplug.device import SupportsThreads
from tensorplug_llm import load_model
from tensorplug_llm.bench import peak_memory
from tensorplug_llm.models import find_model
from tensorplug_llm.testing import LoneText


@contextmanager
def opened(model: str, device: str, threads: int, positions: int) -> Iterator[LoneText]:
    """A text of up to `positions` tokens for a model, loaded on a device with `threads` threads."""
    tp.load_all()
    with tp.open(device) as backend:
        if isinstance(backend, SupportsThreads):
            backend.threads = threads
        gc.freeze()
        with (
            load_model(find_model(model), [backend]) as loaded,
            LoneText(loaded, positions) as text,
        ):
            yield text


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    with opened(given.model, given.device, given.threads, context(given)) as text:

        def read(ids: Sequence[int]) -> int:
            return int(np.argmax(text.prefill(ids)))

        figures = speeds(read, text.rewind, text.model.hparams.vocabulary, given)
        figures["load_s"] = text.model.load_seconds
        figures["peak_rss_mib"] = peak_memory() or 0.0
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
