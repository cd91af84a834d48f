"""Loads, chats and generates with mutated models; a program that `test_files` runs with the
folders of `gguf_files` and `gguf_mutations` on the path.

Arguments: a seed, the numbers of the first mutation and of the one behind the last, a folder.
"""

import json
import resource
import signal
import sys
from pathlib import Path
from random import Random

import gguf_files
import gguf_mutations

import tensorplug as tp
from tensorplug.errors import TensorplugError
from tensorplug_llm import Engine, LanguageModel, SamplingParams, load_model
from tensorplug_llm.arch import architecture_names
from tensorplug_llm.chat import ChatTemplate, encode_chat

COMPUTE, WAIT, MEMORY = 20.0, 300, 6 << 30
"""Most seconds of processor time and of the clock for one file, and bytes."""
HELLO = [{"role": "user", "content": "he"}]


def use(path: Path, backend: tp.Backend) -> None:
    """What `generate --chat` does, or `embed`."""
    with load_model(path, [backend]) as model:
        if not model.architecture.generates:
            model.embed(["he", "hello"])
            return
        continue_text(model)


def continue_text(model: LanguageModel) -> None:
    """Answer a message."""
    with Engine(model, context=32, texts=1, threaded=False) as engine:
        source = ChatTemplate.from_metadata(model.file.metadata).source
        ids = encode_chat(model.tokenizer, ChatTemplate(source, trusted=True), HELLO)
        for _ in engine.submit(ids, SamplingParams(temperature=0, max_tokens=3)).pieces():
            pass


def main() -> None:
    """Print a line before and after each file: which it is, and what came of it."""
    seed, first, last, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    path = folder / "mutated.gguf"
    wholes = []
    for name in architecture_names():
        whole = gguf_files.write_model(folder / "whole.gguf", name)
        wholes.append(gguf_mutations.parse(whole.read_bytes()))
    tp.load_all()
    backend = tp.open("cpu?threads=1")
    use(folder / "whole.gguf", backend)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for number in range(first, last):
        rng = Random(f"{seed} {number}")
        path.write_bytes(gguf_mutations.mutated(rng, rng.choice(wholes)))
        print(json.dumps(["start", number]), flush=True)
        signal.setitimer(signal.ITIMER_PROF, COMPUTE)
        signal.alarm(WAIT)
        try:
            use(path, backend)
            outcome = "works"
        except TensorplugError as error:
            outcome = f"refused {type(error).__name__}"
            str(error).encode("utf-8", "backslashreplace")
        except Exception as error:  # noqa: BLE001 - this is what is looked for
            outcome = f"WRONG {type(error).__name__}: {str(error)[:300]}"
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        print(json.dumps(["end", number, outcome]), flush=True)


if __name__ == "__main__":
    main()
