"""Writes what llama.cpp makes of the text of test_tokenizer_llama_cpp.py into its data file.

Needs llama-cpp-python 0.3.36, the dependencies of tensorplug-llm, pytest and the models:

    PYTHONPATH=core/src:apps/llm/src python apps/llm/tests/make_llama_cpp_tokens.py
"""

import json
import runpy
from importlib import import_module
from pathlib import Path
from typing import Any

from tensorplug_llm.models import find_model

llama_cpp: Any = import_module("llama_cpp")  # without types


def load_vocabulary(path: Path) -> Any:
    """Return llama.cpp's handle of a vocabulary."""
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    return llama_cpp.llama_model_get_vocab(model)


def tokenize(vocabulary: Any, text: str, *, parse_special: bool) -> list[int]:
    """Return llama.cpp's ids of a text, with bos where the model wants it."""
    raw = text.encode()
    ids = (llama_cpp.llama_token * (len(raw) + 2))()
    count = llama_cpp.llama_tokenize(vocabulary, raw, len(raw), ids, len(ids), True, parse_special)
    return list(ids[:count])


def main() -> None:
    test = runpy.run_path(str(Path(__file__).with_name("test_tokenizer_llama_cpp.py")))
    text, digest, stored = test["corpus"](), test["digest"], test["STORED"]
    for name in test["PACKAGES"]:
        vocabulary = load_vocabulary(find_model(name))
        size = llama_cpp.llama_vocab_n_tokens(vocabulary)
        stored["models"][name] = {
            "text": digest(tokenize(vocabulary, text, parse_special=False)),
            "parse_special": digest(tokenize(vocabulary, text, parse_special=True)),
            "end_of_generation": [
                id for id in range(size) if llama_cpp.llama_vocab_is_eog(vocabulary, id)
            ],
        }
    written = json.dumps(stored, ensure_ascii=False, indent=1) + "\n"
    test["DATA"].write_text(written, encoding="utf-8")


if __name__ == "__main__":
    main()
