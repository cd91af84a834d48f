"""Writes what llama.cpp makes of the text of test_tokenizer_llama_cpp.py into its data file.

Needs llama-cpp-python 0.3.36, the dependencies of tensorplug-llm, pytest and the models:

    python apps/llm/tests/make_llama_cpp_tokens.py [models | vocabularies]...

For the vocabularies the variable LLAMA_CPP_VOCABULARIES names their folder.
"""

import json
import os
import runpy
import struct
import sys
import tempfile
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


def renamed(data: bytes, pre: str) -> bytes:
    """A file without tensors that says `pre` where it says llama-bpe."""
    key = b"tokenizer.ggml.pre" + struct.pack("<I", 8)

    def entry(text: str) -> bytes:
        return key + struct.pack("<Q", len(text)) + text.encode()

    assert data.count(entry("llama-bpe")) == 1
    return data.replace(entry("llama-bpe"), entry(pre))


def measured(test: dict[str, Any], path: Path) -> dict[str, Any]:
    """Digests of the ids of the text, and the tokens that end a generation."""
    text, digest, vocabulary = test["corpus"](), test["digest"], load_vocabulary(path)
    size = llama_cpp.llama_vocab_n_tokens(vocabulary)
    return {
        "text": digest(tokenize(vocabulary, text, parse_special=False)),
        "parse_special": digest(tokenize(vocabulary, text, parse_special=True)),
        "end_of_generation": [
            id for id in range(size) if llama_cpp.llama_vocab_is_eog(vocabulary, id)
        ],
    }


def main() -> None:
    test = runpy.run_path(str(Path(__file__).with_name("test_tokenizer_llama_cpp.py")))
    stored, wanted = test["STORED"], sys.argv[1:] or ["models", "vocabularies"]
    if "models" in wanted:
        stored["models"] = {n: measured(test, find_model(n)) for n in test["PACKAGES"]}
    if "vocabularies" in wanted:
        folder = Path(os.environ["LLAMA_CPP_VOCABULARIES"])
        stored["vocabularies"] = {}
        for name in test["VOCABULARIES"]:
            file, _, pre = name.partition(" as ")
            data = (folder / f"ggml-vocab-{file}.gguf").read_bytes()
            with tempfile.NamedTemporaryFile() as copy:
                copy.write(renamed(data, pre) if pre else data)
                copy.flush()
                found = measured(test, Path(copy.name))
            found["ends"] = len(found.pop("end_of_generation"))
            stored["vocabularies"][name] = found
    written = json.dumps(stored, ensure_ascii=False, indent=1) + "\n"
    test["DATA"].write_text(written, encoding="utf-8")


if __name__ == "__main__":
    main()
