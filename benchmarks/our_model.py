"""tensorplug's tokens per second on a model file, as `llama_cpp_model.py` measures, as JSON."""

import gc
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from model_speeds import arguments_of, context, speeds

import tensorplug as tp
from tensorplug.device import SupportsThreads
from tensorplug_llm import load_model
from tensorplug_llm.bench import peak_memory
from tensorplug_llm.testing import LoneText


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    tp.load_all()
    with tp.open(given.device) as backend:
        if isinstance(backend, SupportsThreads):
            backend.threads = given.threads
        gc.freeze()
        with (
            load_model(Path(given.model), [backend]) as model,
            LoneText(model, context(given)) as text,
        ):

            def read(ids: Sequence[int]) -> int:
                return int(np.argmax(text.prefill(ids)))

            figures = speeds(read, text.rewind, model.hparams.vocabulary, given)
            figures["load_s"] = model.load_seconds
            figures["peak_rss_mib"] = peak_memory() or 0.0
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
